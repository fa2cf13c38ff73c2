"""A sample of the points, another one in each run; python -m tests.crash --all takes all of them.

TEST_SEED repeats a sample, TEST_CRASH_SECONDS takes a larger one.
"""

import os
import sys

import pytest

from tests.crash.campaign import Campaign, described, sample
from tests.crash.cases import CASES
from tests.crash.harness import Harness

LANES = 3
SECONDS = float(os.environ.get("TEST_CRASH_SECONDS", "90"))

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS + 270),
    pytest.mark.skipif(sys.platform != "linux", reason="the proxy asks the kernel who connects"),
]


def test_after_a_crash_at_any_command_nothing_is_stuck_lost_or_done_twice() -> None:
    seed = int(os.environ["TEST_SEED"])
    with Harness(LANES) as harness:
        campaign = Campaign(harness)
        campaign.take(sample(campaign.count(CASES), seed), SECONDS)
    report = f"TEST_SEED={seed} repeats these points:\n{campaign.table()}"
    print(report)
    assert not campaign.failures, "\n".join(
        [*(described(*failure) for failure in campaign.failures), report]
    )

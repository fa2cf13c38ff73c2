"""A sample of the points, another one in each run; python -m tests.crash --all takes all of them.

TEST_SEED repeats a sample, TEST_CRASH_POINTS takes a larger one.
"""

import os
import random
import sys
from collections.abc import Iterator

import pytest

from tests.crash.campaign import Campaign, all_points, chosen, described, sample
from tests.crash.cases import CASES
from tests.crash.harness import Harness

LANES = 3
POINTS = int(os.environ.get("TEST_CRASH_POINTS", "8"))
SEED = int(os.environ.get("TEST_SEED") or random.randrange(2**32))

pytestmark = [
    pytest.mark.crash,
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the proxy asks the kernel who connects"),
]


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with Harness(LANES) as harness:
        yield harness


@pytest.mark.parametrize("scenario", sorted({case.scenario for case in CASES.values()}))
def test_after_a_crash_at_any_command_nothing_is_stuck_lost_or_done_twice(
    harness: Harness, scenario: str
) -> None:
    campaign = Campaign(harness)
    counts = campaign.count(chosen([scenario]))
    points = all_points(counts)
    campaign.take(sample(points, POINTS, SEED))
    print(f"TEST_SEED={SEED}: {POINTS} of {len(points)} points\n{campaign.table()}")
    assert not campaign.failures, f"TEST_SEED={SEED}\n" + "\n".join(
        described(*failure) for failure in campaign.failures
    )

"""python -m tests.crash --all"""

import argparse
import os
import random
import signal
import sys
from itertools import islice

import django


def main() -> int:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    from tests.crash.campaign import Campaign, all_points, chosen, sample
    from tests.crash.cases import CASES
    from tests.crash.harness import Harness
    from tests.crash.point import Point
    from tests.support.proxy import Fault

    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--all", action="store_true", help="every fault at every command")
    parser.add_argument(
        "--every", action="store_true", help="also points that would show the same as another one"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many points, by chance")
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ.get("TEST_SEED") or random.randrange(2**32)),
        help="of the sample (default: TEST_SEED, or another one each time)",
    )
    parser.add_argument(
        "--scenario", action="append", metavar="SCENARIO[/PROCESS]", help="may be repeated"
    )
    parser.add_argument("--fault", action="append", choices=list(Fault), help="may be repeated")
    parser.add_argument("--at", type=int, help="the number of the command; 0 for no fault")
    parser.add_argument("--list", action="store_true", help="print the commands of each case")
    parser.add_argument("--times", type=int, default=1, help="how often the points are taken")
    parser.add_argument("--lanes", type=int, default=10, help="points side by side (default: 10)")
    options = parser.parse_args()
    if not (options.all or options.sample or options.scenario):
        parser.error("give --all, --sample or --scenario, of " + ", ".join(CASES))
    try:
        cases = chosen(options.scenario) if options.scenario else list(CASES)
    except ValueError as error:
        parser.error(str(error))
    faults = [Fault(fault) for fault in options.fault or Fault]
    with Harness(options.lanes) as harness:
        campaign = Campaign(harness)
        if options.at is not None:
            points = [Point(case=c, fault=f, at=options.at) for c in cases for f in faults]
        elif options.sample:
            print(f"seed {options.seed}")
            points = list(
                islice(sample(campaign.count(cases), options.seed, faults), options.sample)
            )
        else:
            points = all_points(campaign.count(cases), faults, every=options.every)
        try:
            campaign.take(points * options.times)
        except KeyboardInterrupt:
            print("\ninterrupted: not all points were taken")
            return 1
        finally:
            if options.list:
                print(campaign.commands())
            print(f"\n{campaign.table()}")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())

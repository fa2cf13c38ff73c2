"""Recovery: a worker is killed in the middle of a task; how long until the next task on the same
resource begins.

trial.py does it once with one peer, in one of the cases of cases.py; scenario.py does it with all,
mostly side by side, as nearly all of the time is spent waiting.
"""

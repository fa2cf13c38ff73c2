"""The locks: what a pair of acquire and release costs, beside others, and what follows from it.

scenario.py starts measure.py for each part, in a process with the environment that the part needs;
tables.py has the targets. This file has the names that both sides know.
"""

FLOOR = "floor: two empty EVALSHA calls"
PLAIN = "ours, plain client"
OWN = "ours, own connection"
TASK = "ours, task: request + advance"
HOLD = "ours, with hold(...): pass"
OURS = (PLAIN, OWN)
REDIS_PY = "redis-py Lock"
PYTHON_REDIS_LOCK = "python-redis-lock"
POTTERY = "pottery Redlock"
PULPCORE = "pulpcore"
OTHERS = (REDIS_PY, PYTHON_REDIS_LOCK, POTTERY, PULPCORE)

ONE = "one exclusive"
TEN = "five exclusive + five shared"
FIFTY = "fifty exclusive"

ROUND_TRIP = "round trip: an empty EVALSHA call, plain client"
PUSH = "LPUSH until another's BLPOP returns"
HANDOFF = "hand-off"

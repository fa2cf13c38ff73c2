"""dispatch and dispatch_many: what a task costs whoever dispatches it.

scenario.py starts measure.py in a process with the addresses of its servers.
"""

SINGLE = "dispatch"
BULK = "dispatch_many"
ROWS = "bulk_create of the same rows, without Redis"

"""Kills, cuts or stalls a process at each command that it sends to Redis or the database, and looks
whether everything comes right afterwards: python -m tests.crash.

A case (cases.py) is a scene with one process under test. Its commands go through a proxy
(tests/support/proxy.py), which counts them and strikes at a given one; a point is a case, a fault
and the number of that command. After the point a fresh worker starts, all becomes quiet, and
checks.py looks at what is there. Lanes (lane.py) take points side by side, each with a database,
a Valkey and a proxy of its own.
"""

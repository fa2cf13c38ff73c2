"""Measurements of this package beside others of its kind, on servers of their own.

    pip install -e ".[test,hiredis]"
    python -m benchmarks plain                  # a table; the same as JSON in build/benchmarks/
    python -m benchmarks plain --peers none     # without the others
    python -m benchmarks plain --peers procrastinate,celery --runs 5 --json figures.json
    python -m benchmarks plain --check          # a missed target makes the exit status 1
    python -m benchmarks plain --help           # to measure less, or more
    python -m benchmarks all --json DIRECTORY   # everything; --quick to see whether it works
    python -m benchmarks.plot DIRECTORY         # docs/benchmarks.md from it, with pictures
                                                # (needs the extra "benchmarks")

The others are installed from PyPI into virtual environments under build/benchmarks/, with the
versions of Django, psycopg, redis-py and hiredis that are installed here. They are made the first
time.

locks measures the lock manager: in one process, beside other locks. All other scenarios measure
task queues, with real workers on a PostgreSQL and a Valkey:

    peers/       who takes part, how each is installed, set up and started
    engines/     the tasks of each, imported in its own environment alone
    scenarios/   what is measured of all alike, and recovery/: what follows the kill of a worker
    stage.py     the servers, a fresh database for each run, the adapter to a peer's processes
    records.py   what the bodies of tasks leave, and what is told from it
    turns.py     peers take turns, round by round

A scenario is a module that has HELP (one line), RUNS (rounds by default), add_arguments(parser) and
either what beside.Scenario asks for or run(arguments) -> Report; and a name in SCENARIOS of
__main__.py. A missing or failing peer is told in the table, and the others go on.
"""

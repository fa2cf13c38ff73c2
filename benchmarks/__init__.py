"""Measurements of this package beside others of its kind, each run on a server of its own.

    pip install -e ".[test,hiredis]"
    python -m benchmarks locks                      # a table; the same as JSON in build/benchmarks/
    python -m benchmarks locks --json figures.json
    python -m benchmarks locks --peers none         # without the others
    python -m benchmarks locks --peers pottery==3.0.1,pulpcore
    python -m benchmarks locks --check              # a missed target makes the exit status 1
    python -m benchmarks locks --help               # to measure less, or more

The others are installed from PyPI into a virtual environment under build/benchmarks/, together with
the versions of Django, django-redis, redis-py and hiredis that are installed here; the measuring
processes run in it. It is made the first time.

A scenario is a module or package that has

    HELP                        one line
    add_arguments(parser)       options of its own
    run(arguments) -> Report    measures; raises UsageError for arguments that make no sense

and a name in SCENARIOS of __main__.py. What several need is beside it: rounds.py for paired
rounds, servers.py, venvs.py, report.py, and settings.py for the processes that measure.
"""

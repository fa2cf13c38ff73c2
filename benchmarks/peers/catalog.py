"""All peers, by name; the first is what is measured against the others."""

from collections.abc import Sequence

from benchmarks.peers.peer import Locks, Peer, each
from benchmarks.venvs import ROOT, UsageError

OURS = "task_locks"
PROCRASTINATE = "procrastinate"
TASKS_DB = "django-tasks-db"
HUEY = "huey"
DRAMATIQ = "dramatiq"
OX = "django-ox"
VTASKS = "django-vtasks"
CELERY = "celery"
CELERY_RESULTS = "celery-results"
CELERY_LOCK = "celery-lock"
CELERY_RETRY = "celery-lock-retry"
PULPCORE = "pulpcore"
PULPCORE_POSTGRES = "pulpcore-postgres"

_CELERY = "celery[redis]==5.7.0"


def _pulpcore(name: str, kind: str) -> Peer:
    program = "from pulpcore.tasking.entrypoint import worker; worker()"
    return Peer(
        name=name,
        engine="pulpcore_app",
        requirements=("pulpcore==3.123.1",),
        commands=each(lambda worker: ("-c", program, "--name-template", worker)),
        setup=f"a process for each executor, {kind}, WORKER_TTL = TTL, CONN_MAX_AGE = 0",
        is_slow=True,
        locks=Locks.SHARED,
        environment={
            "DJANGO_SETTINGS_MODULE": "pulpcore.app.settings",
            "PULP_SETTINGS": str(ROOT / "benchmarks" / "engines" / "pulpcore_settings.py"),
        },
    )


def _celery(name: str, setup: str, *more: str, locks: Locks = Locks.NONE) -> Peer:
    return Peer(
        name=name,
        engine="celery_app",
        requirements=(_CELERY, *more),
        commands=lambda executors, worker: [
            (
                *("-m", "celery", "-A", "benchmarks.engines.celery_app", "worker"),
                *("--concurrency", str(executors), "--hostname", f"{worker}@%h"),
                *("--without-gossip", "--without-mingle"),
            )
        ],
        setup=f"one worker, prefork pool, Redis broker, {setup}",
        locks=locks,
        runs_plain=not locks,
    )


_ALL = (
    Peer(
        name=OURS,
        engine="task_locks",
        requirements=None,
        commands=lambda executors, worker: [
            ("-m", "django", "task_worker", "--concurrency", str(executors), "--name", worker)
        ],
        setup="one worker, defaults",
        locks=Locks.SHARED,
    ),
    Peer(
        name=PROCRASTINATE,
        engine="procrastinate_app",
        requirements=("procrastinate[django]==3.10.0",),
        commands=each(lambda name: ("-m", "django", "procrastinate", "worker", "--name", name)),
        setup="a process with concurrency 1 for each executor; the resource is the job's lock",
        locks=Locks.ONE,
    ),
    Peer(
        name=TASKS_DB,
        engine="tasks_db",
        requirements=("django-tasks-db[compat]==0.13.0",),
        commands=each(
            lambda name: (
                *("-m", "django", "db_worker", "--queue-name", "*", "--worker-id", name),
                "--no-startup-delay",
            )
        ),
        setup="a process for each executor, interval 1 s",
    ),
    _celery(CELERY, "results ignored, defaults"),
    _celery(
        CELERY_RESULTS,
        "django-celery-results in PostgreSQL, defaults",
        "django-celery-results==2.6.0",
    ),
    _celery(
        CELERY_LOCK,
        "results ignored, acks_late, prefetch 1; the body in a blocking redis-py Lock for each "
        "resource in their order, timeout = TTL, shared ones as exclusive",
        locks=Locks.SEVERAL,
    ),
    _celery(
        CELERY_RETRY,
        "results ignored, acks_late, prefetch 1; the body in redis-py Locks, timeout = TTL, shared "
        "ones as exclusive; where one is taken, retry(countdown=1)",
        locks=Locks.SEVERAL,
    ),
    Peer(
        name=HUEY,
        engine="huey_app",
        requirements=("huey[redis]==3.5.4",),
        commands=lambda executors, worker: [
            (
                *("-m", "huey.bin.huey_consumer", "benchmarks.engines.huey_app.huey"),
                *("--workers", str(executors), "--worker-type", "process"),
            )
        ],
        setup="one consumer, process workers; the body in lock_task for each resource, ttl = TTL, "
        "shared ones as exclusive; where one is taken, retry_delay=1",
        locks=Locks.SEVERAL,
        migration=(),
    ),
    Peer(
        name=DRAMATIQ,
        engine="dramatiq_app",
        requirements=("dramatiq[redis]==2.2.1",),
        commands=lambda executors, worker: [
            (
                *("-m", "dramatiq", "benchmarks.engines.dramatiq_app"),
                *("--processes", str(executors), "--threads", "1"),
            )
        ],
        setup="processes with one thread, Redis broker; the body in a ConcurrentRateLimiter of one "
        "for each resource, ttl = TTL, shared ones as exclusive; where one is taken, again in 1 s",
        locks=Locks.SEVERAL,
        migration=(),
    ),
    Peer(
        name=OX,
        engine="ox",
        requirements=("django-ox==1.9.1", "Django>=6"),
        commands=lambda executors, worker: [
            ("-m", "django", "ox_worker", "--processes", str(executors))
        ],
        setup="one supervisor, a process for each executor, interval 1 s; on a newer Python",
        python=(3, 12),
    ),
    Peer(
        name=VTASKS,
        engine="vtasks",
        requirements=("django-vtasks[valkey]==3.2.0", "Django>=6"),
        commands=each(
            lambda name: ("-m", "django", "runworker", "--concurrency", "1", "--id", name)
        ),
        setup="a process with concurrency 1 for each executor, Valkey backend; on a newer Python",
        python=(3, 12),
    ),
    _pulpcore(PULPCORE, "WORKER_TYPE = redis"),
    _pulpcore(PULPCORE_POSTGRES, "WORKER_TYPE = pulpcore"),
)
PEERS = {peer.name: peer for peer in _ALL}


def is_able(peer: Peer, least: Locks) -> bool:
    """Whether it takes part where jobs need such locks."""
    return peer.locks >= least and (peer.runs_plain or least > Locks.NONE)


def chosen(names: str, least: Locks | None = Locks.NONE) -> Sequence[Peer]:
    """Ours, and of the peers that `names` names ("all", "none", or by name with commas) those that
    take part where so much must be locked; None: each of them. Raises UsageError for an unknown
    name.
    """
    able = [name for name, peer in PEERS.items() if least is None or is_able(peer, least)]
    if names == "all":
        wanted = able
    elif names == "none":
        wanted = [OURS]
    else:
        wanted = [OURS, *(name for name in names.split(",") if name != OURS)]
    for name in wanted:
        if name not in PEERS:
            raise UsageError(f"--peers {name!r}: all, none, or some of {', '.join(PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(wanted) if name in able]

"""Which versions of what the tasks need a process can run.

`versions` of a task say what it needs: {"app": "2"}. The abilities of a process say for each name
which versions it has: {"app": {"1", "2"}}. A worker leaves alone what it cannot run.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.module_loading import import_string

from django_task_locks.conf import get_settings
from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks.requests import validated_versions

Abilities = Mapping[str, frozenset[str]]


def own_abilities() -> Abilities:
    """Those of this process by TASK_LOCKS["versions"]; where that is a callable, what it returns
    now. Raises InvalidTask for what it should not return.
    """
    given = get_settings().versions
    if isinstance(given, str):
        given = import_string(given)
    return abilities_of(given() if callable(given) else given)


def abilities_of(given: Any) -> Abilities:
    """From a dict of names to a version or several; raises InvalidTask for anything else."""
    problem = InvalidTask(
        f"versions {given!r}: a dict of names to a version or a list of versions is accepted, as "
        "in {'app': ['1', '2']}"
    )
    if not isinstance(given, Mapping):
        raise problem
    found: dict[str, frozenset[str]] = {}
    for name, versions in given.items():
        several = [versions] if isinstance(versions, str) else versions
        if not isinstance(several, list | tuple | set | frozenset) or not several:
            raise problem
        for version in several:
            validated_versions({name: version})
        found[name] = frozenset(several)
    return found


def abilities_from(arguments: Iterable[str]) -> Abilities:
    """From texts such as "app=2", where a name may come more than once; raises InvalidTask."""
    found: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, version = argument.partition("=")
        found.setdefault(name, []).append(version)
    return abilities_of(found)


def as_json(abilities: Abilities) -> dict[str, list[str]]:
    return {name: sorted(versions) for name, versions in sorted(abilities.items())}


def can_run(abilities: Mapping[str, Iterable[str]], versions: Mapping[str, str]) -> bool:
    """Whether a process with these abilities has all that a task needs."""
    return all(version in abilities.get(name, ()) for name, version in versions.items())

"""What applications import, and that importing it is harmless."""

import inspect
import os
import pkgutil
import subprocess
import sys

import pytest

import django_task_locks

PUBLIC = {
    "__version__",
    "acancel_task",
    "adispatch",
    "adispatch_many",
    "ahold",
    "cancel_task",
    "current_task",
    "dispatch",
    "dispatch_many",
    "hold",
}


def run(program: str) -> str:
    """The program's output, in a process without Django's settings."""
    environment = {**os.environ}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)


def test_root_has_these_names_and_no_others() -> None:
    assert set(django_task_locks.__all__) == PUBLIC
    assert set(dir(django_task_locks)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_name_leads_to_a_documented_function(name: str) -> None:
    function = getattr(django_task_locks, name)

    assert function.__name__ == name
    assert function.__doc__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'dispath'"):
        django_task_locks.dispath  # noqa: B018


def test_package_and_its_names_are_imported_without_settings() -> None:
    output = run(
        "import sys, django_task_locks as package\n"
        "print(package.__version__, 'django' in sys.modules, 'redis' in sys.modules)"
    )

    assert output.split() == [django_task_locks.__version__, "False", "False"]


def test_lock_manager_is_imported_without_django() -> None:
    output = run(
        "import sys, django_task_locks.locks\n"
        "print('django' in sys.modules, 'django_redis' in sys.modules)"
    )

    assert output.split() == ["False", "False"]


def test_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from django_task_locks import *", names)  # noqa: S102

    assert set(names) >= PUBLIC


@pytest.mark.parametrize(
    ("function", "twin"),
    [
        ("dispatch", "adispatch"),
        ("dispatch_many", "adispatch_many"),
        ("cancel_task", "acancel_task"),
    ],
)
def test_async_twin_takes_and_returns_the_same(function: str, twin: str) -> None:
    sync_function = getattr(django_task_locks, function)
    async_function = getattr(django_task_locks, twin)

    assert inspect.signature(sync_function) == inspect.signature(async_function)
    assert inspect.iscoroutinefunction(async_function)


def test_no_module_shares_a_public_name() -> None:
    """Importing a submodule `dispatch` would put it in the place of the function."""
    modules = {module.name for module in pkgutil.iter_modules(django_task_locks.__path__)}

    assert modules & PUBLIC == set()

"""Objects to resource names. A name is text of 1 to 1,024 bytes in UTF-8, any characters."""

from collections.abc import Callable, Iterable
from inspect import ismethod
from typing import Any

from django_task_locks.exceptions import InvalidResource

MAX_NAME_BYTES = 1024
MAX_RESOURCES = 10_000
_LISTS = (tuple, list)

_ACCEPTED = (
    "a name (text of 1 to 1,024 bytes in UTF-8), a saved model instance, or an object with a "
    "lock_resource_name() method is accepted"
)


def resource_name(value: Any) -> str:
    """The name that stands for one object.

    A model instance stands for `app_label.model_name:pk` of the model at the root of its primary
    key: a proxy is its concrete model, and a multi-table child is its parent, since both are views
    of the same row.

    Raises InvalidResource with the value for anything that has no name.
    """
    if isinstance(value, str):
        return _checked(str(value), value)
    if (method := _naming_method(value)) is not None:
        name = method()
        if not isinstance(name, str):
            raise InvalidResource(
                f"resource {value!r}: lock_resource_name() returned {name!r}, text is accepted"
            )
        return _checked(name, value)
    if isinstance(value, type):
        raise InvalidResource(f"resource {value!r} is a class; {_ACCEPTED}")
    if hasattr(value, "_meta") and hasattr(value, "_state"):
        return _checked(_model_name(value), value)
    raise InvalidResource(f"resource {value!r} of type {type(value).__name__}: {_ACCEPTED}")


def resource_names(values: Any) -> tuple[str, ...]:
    """The names of one object or of an iterable of objects; None stands for nothing.

    Raises InvalidResource, also for a mapping or bytes, whose items are hardly what was meant.
    """
    if values is None:
        return ()
    is_one = isinstance(values, str) or (hasattr(values, "_meta") and hasattr(values, "_state"))
    if is_one or _naming_method(values) is not None:
        return (resource_name(values),)
    if isinstance(values, bytes | bytearray | dict) or not isinstance(values, Iterable):
        raise InvalidResource(
            f"resources {values!r} of type {type(values).__name__}: "
            f"a list is accepted, where for each entry {_ACCEPTED}"
        )
    return tuple(resource_name(value) for value in values if value is not None)


def normalized(exclusive: Any, shared: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of both, sorted and without duplicates; a name in both modes is exclusive.

    Raises InvalidResource as `resource_names` does, and for more than 10,000 names together.
    """
    if type(exclusive) in _LISTS and type(shared) in _LISTS:
        exclusive, shared = tuple(exclusive), tuple(shared)
        if _are_normalized(exclusive, shared):
            return exclusive, shared
    exclusive, shared = resource_names(exclusive), resource_names(shared)
    only_exclusive = set(exclusive)
    only_shared = set(shared) - only_exclusive
    count = len(only_exclusive) + len(only_shared)
    if count > MAX_RESOURCES:
        raise InvalidResource(
            f"{count} resources in one request: at most {MAX_RESOURCES:,} are accepted; "
            "lock something coarser that stands for all of them"
        )
    return tuple(sorted(only_exclusive)), tuple(sorted(only_shared))


def _are_normalized(exclusive: tuple[Any, ...], shared: tuple[Any, ...]) -> bool:
    """Whether these are names of the usual kind and as they should be, found out for all of them at
    once.
    """
    names = exclusive + shared
    if set(map(type, names)) != {str}:
        return not names
    together = "".join(names)
    return (
        together.isascii()
        and (len(together) <= MAX_NAME_BYTES or len(max(names, key=len)) <= MAX_NAME_BYTES)
        and len(set(names)) == len(names) <= MAX_RESOURCES
        and _are_ascending(exclusive)
        and _are_ascending(shared)
    )


def _are_ascending(names: tuple[str, ...]) -> bool:
    # the empty text, which is no name, comes first
    return not names or (names[0] != "" and (len(names) == 1 or [*names] == sorted(names)))


def _naming_method(value: Any) -> Callable[[], Any] | None:
    """lock_resource_name() of an object, or of a class that has it as a class method."""
    method: Callable[[], Any] | None = getattr(value, "lock_resource_name", None)
    if isinstance(value, type):
        return method if ismethod(method) else None
    return method if callable(method) else None


def _checked(name: str, value: Any) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidResource(
            f"resource {value!r} cannot be encoded in UTF-8 (a lone surrogate); {_ACCEPTED}"
        ) from None
    if size == 0:
        raise InvalidResource(f"resource {value!r} has an empty name; {_ACCEPTED}")
    if size > MAX_NAME_BYTES:
        raise InvalidResource(f"resource {name[:60]!r}... is {size:,} bytes long; {_ACCEPTED}")
    return name


def _model_name(instance: Any) -> str:
    if instance.pk is None or instance._state.adding:
        raise InvalidResource(
            f"resource {instance!r} of type {type(instance).__name__} is not saved (or was "
            "deleted), so nothing tells it from others; save it first"
        )
    options = instance._meta.concrete_model._meta
    while options.pk.remote_field is not None and options.pk.remote_field.parent_link:
        options = options.pk.remote_field.model._meta.concrete_model._meta
    return f"{options.label_lower}:{options.pk.to_python(instance.pk)}"

"""Objects to resource names: what is accepted, and what it stands for."""

from typing import Any

import pytest

from django_task_locks.exceptions import InvalidResource
from django_task_locks.locks.resources import (
    MAX_RESOURCES,
    normalized,
    resource_name,
    resource_names,
)
from tests.testapp.models import Audiobook, Book, Reprint


class Shelf:
    def __init__(self, name: Any) -> None:
        self.name = name

    def lock_resource_name(self) -> Any:
        return self.name

    def __repr__(self) -> str:
        return f"<Shelf {self.name!r}>"


class Warehouse:
    @classmethod
    def lock_resource_name(cls) -> str:
        return "warehouse"


def test_a_class_with_a_class_method_for_it_has_a_name() -> None:
    assert resource_name(Warehouse) == resource_name(Warehouse()) == "warehouse"
    assert resource_names(Warehouse) == resource_names([Warehouse]) == ("warehouse",)


def saved(model: type[Book], **fields: Any) -> Book:
    """As it comes from the database, which is not asked here."""
    instance = model(pk=7, **fields)
    instance._state.adding = False
    return instance


@pytest.mark.parametrize(
    "name",
    [
        "repo:7",
        " ",
        "a:b",
        "{braces}",
        "wait:x:repo",
        "line\nbreak",
        "\0",
        "É",
        "E\u0301",
        "\U0001f600",
        "x" * 1024,
        "é" * 512,
    ],
    ids=ascii,
)
def test_text_of_1_to_1024_bytes_stands_for_itself(name: str) -> None:
    assert resource_name(name) == name


def test_composed_and_decomposed_letters_are_two_names() -> None:
    assert resource_names(["\u00c9", "E\u0301"]) == ("\u00c9", "E\u0301")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "'' has an empty name"),
        ("x" * 1025, "1,025 bytes long"),
        ("é" * 513, "1,026 bytes long"),
        ("a\ud800", r"'a\\ud800' cannot be encoded"),
        (7, "7 of type int"),
        (1.5, "1.5 of type float"),
        (True, "True of type bool"),
        (b"bytes", "b'bytes' of type bytes"),
        (None, "None of type NoneType"),
        (Book, "is a class"),
        (Shelf, "is a class"),
        (Shelf(7), r"lock_resource_name\(\) returned 7, text is accepted"),
        (Shelf(""), "<Shelf ''> has an empty name"),
    ],
    ids=ascii,
)
def test_what_has_no_name_is_refused_and_named(value: Any, message: str) -> None:
    with pytest.raises(InvalidResource, match=message):
        resource_name(value)


def test_refusal_is_also_the_value_error_that_callers_catch() -> None:
    with pytest.raises(ValueError, match="is accepted"):
        resource_name("")


def test_object_may_name_itself() -> None:
    assert resource_name(Shelf("shelf:3")) == "shelf:3"


def test_instance_stands_for_its_row() -> None:
    assert resource_name(saved(Book)) == "testapp.book:7"


def test_proxy_and_child_stand_for_the_row_that_they_share() -> None:
    assert resource_name(saved(Reprint)) == "testapp.book:7"
    assert resource_name(saved(Audiobook, book_ptr_id=7)) == "testapp.book:7"


def test_primary_key_as_text_is_the_same_row() -> None:
    book = saved(Book)
    book.pk = "7"

    assert resource_name(book) == "testapp.book:7"


def test_unsaved_instance_is_refused() -> None:
    with pytest.raises(InvalidResource, match="is not saved"):
        resource_name(Book(title="Emma"))


def test_instance_with_a_key_that_was_never_saved_is_refused() -> None:
    with pytest.raises(InvalidResource, match="is not saved"):
        resource_name(Book(pk=7, title="Emma"))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ("a", ("a",)),
        (Shelf("s"), ("s",)),
        (saved(Book), ("testapp.book:7",)),
        (None, ()),
        ([], ()),
        ([None], ()),
        (["a", None, Shelf("s"), saved(Book)], ("a", "s", "testapp.book:7")),
        (("a", "b"), ("a", "b")),
        ((name for name in "ab"), ("a", "b")),
    ],
    ids=["text", "object", "instance", "None", "[]", "[None]", "list", "tuple", "generator"],
)
def test_one_object_or_many_or_none_are_accepted(values: Any, names: tuple[str, ...]) -> None:
    assert resource_names(values) == names


@pytest.mark.parametrize("values", [{"a": 1}, b"ab", bytearray(b"ab"), 7, object], ids=repr)
def test_what_is_no_list_of_objects_is_refused(values: Any) -> None:
    with pytest.raises(InvalidResource, match="a list is accepted"):
        resource_names(values)


def test_nested_list_is_refused() -> None:
    with pytest.raises(InvalidResource, match=r"\['a'\] of type list"):
        resource_names([["a"]])


def test_names_are_sorted_without_duplicates() -> None:
    assert normalized(["b", "a", "b"], ["d", "c", "d"]) == (("a", "b"), ("c", "d"))


def test_name_in_both_modes_is_exclusive() -> None:
    assert normalized(["a"], ["a", "b"]) == (("a",), ("b",))


def test_10000_names_are_accepted_and_one_more_is_refused() -> None:
    names = [f"r{number}" for number in range(MAX_RESOURCES)]

    assert len(normalized(names[:5_000], names[5_000:])[1]) == 5_000
    with pytest.raises(InvalidResource, match="10001 resources in one request: at most 10,000"):
        normalized(names, ["one more"])


def test_duplicates_do_not_count() -> None:
    names = [f"r{number}" for number in range(MAX_RESOURCES)]

    assert len(normalized(names, names)[0]) == MAX_RESOURCES

"""The Lua files: their headers tell the truth, and keys are spelt in keys.py alone."""

import re
from importlib.resources import files
from typing import Any

import pytest
from redis import Redis

from django_task_locks.locks import LockManager, protocol, restoration, scripts
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.protocol import Call
from django_task_locks.locks.requests import Lane
from tests.locks.conftest import PREFIX
from tests.locks.support import WORKER, hold, task

FILES = sorted(
    entry.name.removesuffix(".lua")
    for entry in files(scripts).iterdir()
    if entry.name.endswith(".lua")
)
INCLUDES = [name for name in FILES if name.startswith("_")]

# What they take is refused above a number; the longest argument list has two for each.
QUICK = ("_free_unawaited", "_grant_free")

CALLS: dict[str, Call[Any]] = {
    call.script: call
    for call in (
        protocol.request(task("a")),
        protocol.release("a", "", None),
        protocol.requeue("a", "", 1, None),
        protocol.claim(WORKER, "1", []),
        protocol.advance(WORKER, "1", [], "a", 1),
        protocol.settle(),
        protocol.release_owner("owner", 1),
        protocol.retire(WORKER),
        protocol.beat("owner", 1),
        protocol.close_owner("owner"),
        protocol.extend_lead("job", "owner", 1),
        protocol.forget_owner("owner"),
        protocol.forget_entry("a", "owner"),
        protocol.free("r", "a"),
        protocol.scan("requests", "0", 1),
        protocol.suspect("owner"),
        protocol.watch("a"),
        restoration.look(),
        restoration.begin_rebuild(1, "-1:"),
        restoration.restore(task("a"), Lane(), None, 1),
        restoration.sweep("owner", []),
        restoration.verify("owner", []),
        restoration.open_epoch("1:", 0),
        protocol.inspect_request("a"),
        protocol.inspect_resource("r"),
    )
}


def code(name: str) -> str:
    """Without comments."""
    return re.sub(r"--.*", "", scripts.read(name))


def header(name: str) -> str:
    return scripts.read(name).partition("\n\n")[0]


def declared(name: str, table: str) -> list[str]:
    """What the header says is in KEYS or ARGV: "1", "2", or "3.." for all from the third on."""
    return re.findall(rf"^-- {table}\[(\d+(?:\.\.)?)\]", header(name), re.MULTILINE)


def used_arguments(name: str) -> set[str]:
    found = set(re.findall(r"ARGV\[(\d+)\]", code(name)))
    rest = re.findall(r"unpack\(ARGV, (\d+)\)", code(name))
    rest += [str(int(offset) + 1) for offset in re.findall(r"ARGV\[index \+ (\d+)\]", code(name))]
    return found | {f"{first}.." for first in rest}


def words_returned(name: str) -> set[str]:
    return set(re.findall(r"return (?:\{\s*|reply\()'(\w+)'", code(name)))


def words_declared(name: str) -> set[str]:
    _, _, returns = header(name).partition("-- returns ")
    return set(re.findall(r'\{"(\w+)"', returns))


def literals(name: str) -> set[str]:
    return set(re.findall(r"'([^'\n]*)'", code(name)))


def test_every_operation_has_a_file_and_every_file_an_operation() -> None:
    assert sorted(scripts.OPERATIONS) == [name for name in FILES if name not in INCLUDES]


def test_every_include_is_included() -> None:
    included = {
        part for name in FILES for part in re.findall(r"--@include (\w+)", scripts.read(name))
    }
    assert included == set(INCLUDES) - {"_epoch"}, "this one comes before every operation"


def test_an_include_comes_in_once() -> None:
    source = scripts.source("advance", Keys(PREFIX))
    assert "--@include" not in source
    assert source.count("local function light(") == 1


def test_a_further_lock_manager_of_a_prefix_puts_no_script_together(redis_client: Redis) -> None:
    """Which takes tens of milliseconds; a rebuild makes a manager for each look at the epoch."""
    first, further = LockManager(redis_client, PREFIX), LockManager(redis_client, PREFIX)
    assert further.scripts is first.scripts
    assert LockManager(redis_client, "another").scripts is not first.scripts


def test_every_script_loads_whatever_the_prefix(redis_client: Redis) -> None:
    for prefix in ("a", "A.b:c/d@e-f_9", "x" * 64):
        for name in scripts.OPERATIONS:
            assert redis_client.script_load(scripts.source(name, Keys(prefix)))


@pytest.mark.parametrize("name", scripts.OPERATIONS)
class TestHeader:
    def test_it_begins_with_the_name(self, name: str) -> None:
        assert scripts.read(name).startswith(f"-- {name}: ")

    def test_two_keys_route_the_script_and_the_body_needs_none(self, name: str) -> None:
        assert declared(name, "KEYS") == ["1", "2"]
        assert re.search(
            r"^-- KEYS\[1\] +anchor\n-- KEYS\[2\] +absent$", header(name), re.MULTILINE
        )
        assert not re.search(r"\bKEYS\b", code(name))

    def test_declared_arguments_are_numbered_without_a_gap(self, name: str) -> None:
        numbers = declared(name, "ARGV")
        assert [number.rstrip(".") for number in numbers] == [
            str(number) for number in range(1, len(numbers) + 1)
        ]
        assert not any(number.endswith("..") for number in numbers[:-1])

    def test_declared_arguments_are_those_used(self, name: str) -> None:
        assert used_arguments(name) == set(declared(name, "ARGV"))

    def test_the_protocol_sends_what_is_declared(self, name: str) -> None:
        fixed = [number for number in declared(name, "ARGV") if not number.endswith("..")]
        assert len(CALLS[name].arguments) == len(fixed)

    def test_declared_replies_are_those_returned(self, name: str) -> None:
        if name == "advance":
            assert "-- returns what claim returns" in header(name)
            return
        returned = words_returned(name)
        if "refusal(" in code(name):
            returned |= {"closed", "foreign"}
            if "refusal(owner, '')" not in code(name):
                returned |= {"stale_slot"}
        if "claim(owner" in code(name):
            returned |= words_returned("_claim")
        if name == "request":
            returned |= {"held", "granted", "waiting"}  # the request's state
        assert returned == words_declared(name)


def test_the_protocol_knows_every_operation() -> None:
    assert set(CALLS) == set(scripts.OPERATIONS)


def test_a_request_sends_its_resources_last_and_counts_the_exclusive_ones() -> None:
    arguments = protocol.request(hold("a", "x1", "x2", shared=["s"])).arguments
    assert list(arguments[9:]) == ["2", "x1", "x2", "s"]


@pytest.mark.parametrize("name", FILES)
class TestBody:
    def test_no_key_is_spelt(self, name: str) -> None:
        """Families end in a colon, what stands alone would be the first argument of a command."""
        spelt = {text for text in literals(name) if re.search("[:/{}]", text)}
        spelt = {text for text in spelt if "%x+" not in text and "%d+" not in text}  # patterns
        assert not spelt - {"generation:", ":", ":(.*)$"}
        assert not re.findall(r"redis\.p?call\('(?!INFO)\w+', '\w+'", code(name))

    def test_no_number_is_turned_into_text_by_lua(self, name: str) -> None:
        """tostring and .. keep 14 digits; scores and tokens have more."""
        assert "tostring" not in code(name)

    def test_nothing_of_any_length_is_unpacked(self, name: str) -> None:
        """unpack fails near 8,000 values."""
        allowed = {"list, first", "keys, first", "FIELDS", "ARGV, 2", "ARGV, 5", "ARGV, 7"}
        if name in QUICK:
            assert "1700 then break" in code(name)
            return
        for arguments in re.findall(r"unpack\(([^()]*)", code(name)):
            assert any(arguments.startswith(start) for start in allowed), arguments


@pytest.mark.parametrize("name", scripts.OPERATIONS)
def test_every_name_that_is_set_is_local(name: str) -> None:
    """The server refuses to set a global, but not before it comes to that line."""
    source = re.sub(r"--.*", "", scripts.source(name, Keys(PREFIX)))
    declarations = re.findall(r"\blocal ([\w, ]+)", source)
    local = {variable for names in declarations for variable in names.split(", ")}
    local = {variable.removesuffix(" ") for variable in local}
    statements = re.findall(r"^ *(\w+)(?:, \w+)* = [^\n]*[^,\n]$", source, re.MULTILINE)
    assert set(statements) <= local


def test_every_constant_is_used() -> None:
    body = "\n".join(code(name) for name in FILES)
    for constant in Keys(PREFIX).lua_literals():
        assert re.search(rf"\b{constant}\b", body), constant

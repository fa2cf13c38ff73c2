"""What dispatch refuses, before anything is written: a row, a key or a hook."""

from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.db import transaction

from django_task_locks import adispatch, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import Task, TaskGroup
from tests.factories import BookFactory
from tests.testapp import tasks


def local_function() -> Any:
    def inner() -> None: ...

    return inner


class Owner:
    def method(self) -> None: ...


GOOD = {"func": "tests.testapp.tasks.add"}
TOO_MANY = [f"r{number}" for number in range(10_001)]
LOOP: list[Any] = []
LOOP.append(LOOP)

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "args no json": ({"args": [{1, 2}]}, r"args \[\{1, 2\}\] of .*add: .*set"),
    "args nan": ({"args": [float("nan")]}, r"args \[nan\]"),
    "args infinite": ({"args": [float("inf")]}, r"args \[inf\]"),
    "args nul": ({"args": ["a\0"]}, r"'a\\x00' has a NUL"),
    "args surrogate": ({"args": ["a\ud800"]}, r"'a\\ud800' has a lone surrogate"),
    "args key": ({"args": [{1: 2}]}, "key 1 is no text"),
    "args loop": ({"args": LOOP}, "Circular"),
    "args text": ({"args": "abc"}, "args 'abc' of .*: a list or tuple is accepted"),
    "args none": ({"args": None}, "args None"),
    "args set": ({"args": {1}}, r"args \{1\}"),
    "kwargs list": ({"kwargs": [1]}, r"kwargs \[1\] of .*: a dict or None is accepted"),
    "kwargs key": ({"kwargs": {1: 2}}, "key 1 is no text"),
    "kwargs nul": ({"kwargs": {"a": "\0"}}, r"'\\x00' has a NUL"),
    "func lambda": ({"func": lambda: None}, "lambda.*on the top level of a module"),
    "func local": ({"func": local_function()}, "inner.*on the top level of a module"),
    "func method": ({"func": Owner().method}, "method.*on the top level of a module"),
    "func no callable": ({"func": 7}, "function 7 cannot be imported"),
    "func none": ({"func": None}, "function None cannot be imported"),
    "func missing": ({"func": "tests.testapp.tasks.missing"}, "'tests.testapp.tasks.missing'"),
    "func no module": ({"func": "nowhere.function"}, "'nowhere.function' cannot be imported"),
    "func undotted": ({"func": "add"}, "'add' cannot be imported"),
    "func empty": ({"func": ""}, "'' cannot be imported"),
    "func no function": ({"func": "tests.testapp.tasks.os.sep"}, "tests.testapp.tasks.os.sep"),
    "func constant": ({"func": "os.sep"}, "'os.sep'.*cannot be called"),
    "queue empty": ({"queue": ""}, "queue ''.*1 to 100 printable"),
    "queue space": ({"queue": "a b"}, "queue 'a b'"),
    "queue long": ({"queue": "x" * 101}, "1 to 100 printable"),
    "queue none": ({"queue": None}, "queue None"),
    "queue number": ({"queue": 7}, "queue 7"),
    "queue nul": ({"queue": "a\0"}, r"queue 'a\\x00'"),
    "queue surrogate": ({"queue": "a\ud800"}, r"queue 'a\\ud800'"),
    "priority high": ({"priority": 101}, "priority 101: a whole number from -100 to 100"),
    "priority low": ({"priority": -101}, "priority -101"),
    "priority bool": ({"priority": True}, "priority True"),
    "priority float": ({"priority": 1.0}, "priority 1.0"),
    "priority text": ({"priority": "1"}, "priority '1'"),
    "priority none": ({"priority": None}, "priority None"),
    "no way to run": ({"immediate": False, "deferred": False}, "no way to run .*add"),
    "func empty part": ({"func": ".add"}, "'.add' cannot be imported"),
    "group unsaved": ({"task_group": TaskGroup()}, "a saved TaskGroup is accepted"),
    "group other": ({"task_group": 7}, "task_group 7"),
    "loss": ({"on_worker_loss": "retry"}, "'retry'.*'fail' or 'requeue' is accepted"),
    "loss none": ({"on_worker_loss": None}, "on_worker_loss None"),
    "loss list": ({"on_worker_loss": []}, r"on_worker_loss \[\]"),
    "attempts zero": ({"max_attempts": 0}, "max_attempts 0.*from 1 to 32,767"),
    "attempts many": ({"max_attempts": 32_768}, "max_attempts 32768"),
    "attempts bool": ({"max_attempts": True}, "max_attempts True"),
    "attempts text": ({"max_attempts": "1"}, "max_attempts '1'"),
    "limit zero": ({"time_limit": 0}, "time_limit 0 of .*seconds from 0.01 to 31,536,000 or None"),
    "limit negative": ({"time_limit": -1}, "time_limit -1"),
    "limit long": ({"time_limit": 1e9}, "time_limit 1000000000.0"),
    "limit nan": ({"time_limit": float("nan")}, "time_limit nan"),
    "limit bool": ({"time_limit": True}, "time_limit True"),
    "limit text": ({"time_limit": "5"}, "time_limit '5'"),
    "resource empty": ({"exclusive": ""}, "resource '' has an empty name"),
    "resource number": ({"exclusive": 7}, "resources 7 of type int"),
    "resource in list": ({"shared": ["a", 7]}, "resource 7 of type int"),
    "resource long": ({"shared": "x" * 1025}, "1,025 bytes"),
    "resource surrogate": ({"exclusive": ["\ud800"]}, "lone surrogate"),
    "resource bytes": ({"exclusive": b"a"}, "b'a' of type bytes"),
    "resources too many": ({"exclusive": TOO_MANY}, "10001 resources .* at most 10,000"),
    "resources dict": ({"shared": {"a": 1}}, "of type dict"),
}


class TestBadInput:
    @pytest.mark.django_db
    @pytest.mark.parametrize("case", BAD)
    def test_is_refused_before_anything_is_written(
        self, redis_client: redis.Redis, case: str
    ) -> None:
        given, message = BAD[case]

        for function in (dispatch, async_to_sync(adispatch)):
            for immediate in (False, True):
                with pytest.raises(ValueError, match=f"(?s){message}"):
                    function(**{**GOOD, "immediate": immediate, **given})

        assert not Task.objects.exists()
        assert not transaction.get_connection().run_on_commit
        assert redis_client.dbsize() == 0

    def test_unsaved_instance_is_refused(self, locks: LockManager) -> None:
        with pytest.raises(ValueError, match="is not saved"):
            dispatch(tasks.record, exclusive=[BookFactory.build()])

        assert not Task.objects.exists()

    def test_immediate_task_has_a_way_to_run_without_a_worker(self, locks: LockManager) -> None:
        assert dispatch(tasks.add, [1], immediate=True, deferred=False).result == 1

    def test_it_does_not_harm_the_caller_s_transaction(self, locks: LockManager) -> None:
        with transaction.atomic():
            with pytest.raises(ValueError, match="queue"):
                dispatch(tasks.record, queue="")
            kept = dispatch(tasks.record)

        assert list(Task.objects.all()) == [kept]

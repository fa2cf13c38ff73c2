"""ATOMIC_REQUESTS: what a view has dispatched stands or falls with its request."""

import pytest
from django.db import connection
from django.test import Client
from pytest_django import Settings

from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration.by_hand import info
from tests.support.redis_state import leftovers
from tests.testapp.models import Book


@pytest.fixture
def client(locks: LockManager, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Client:
    settings.ROOT_URLCONF = "tests.testapp.urls"
    settings.ALLOWED_HOSTS = ["testserver"]
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    return Client(raise_request_exception=False)


def titles() -> set[str]:
    return set(Book.objects.values_list("title", flat=True))


def test_a_waiting_task_is_sent_with_the_response(client: Client, locks: LockManager) -> None:
    assert client.get("/add").content == b"waiting"

    assert info(locks, Task.objects.get()).state == "granted"
    assert titles() == {"by the view"}


def test_an_immediate_task_counts_with_the_response(client: Client, locks: LockManager) -> None:
    assert client.get("/add?immediate").content == b"completed"

    assert Task.objects.get().state == State.COMPLETED
    assert titles() == {"by the view", "by the task"}
    assert leftovers(locks) == set()


@pytest.mark.parametrize("query", ["fail", "fail&immediate"])
def test_L25_a_view_that_fails_leaves_nothing(
    client: Client, locks: LockManager, query: str
) -> None:
    assert client.get(f"/add?{query}").status_code == 500

    assert not Task.objects.exists()
    assert titles() == set()
    assert leftovers(locks) == set()

"""requeue: a claimed task that never started goes back to its place in the order."""

from collections.abc import Callable

from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Ended, Idle, Lane
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]


def test_it_is_granted_as_before_its_claim(manager: LockManager, stored: Picture) -> None:
    manager.request(task("a", "r", shared=["s"]))
    before = manager.inspect_request("a")
    claimed = Executor(manager).take()
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("done", ("a",))
    after = manager.inspect_request("a")
    assert before is not None
    assert after is not None
    assert (after.state, after.owner, after.slot, after.token) == (
        "granted",
        "queue/default",
        "",
        None,
    )
    assert after.score == before.score
    assert manager.registry(WORKER.owner) == set()
    assert manager.registry("queue/default") == {"a"}


def test_its_slot_is_free_and_it_can_be_claimed_again(manager: LockManager) -> None:
    manager.request(task("a", "r"))
    executor = Executor(manager)
    first = executor.take()
    manager.requeue("a", owner=WORKER.owner, token=first.token)
    second = Executor(manager, OTHER_WORKER).take()
    assert second.id == "a"
    assert second.token > first.token
    assert executor.claim() == Idle()


def test_its_lane_is_lit(manager: LockManager) -> None:
    lane = Lane(queue="other")
    manager.request(task("a", "r", lane=lane))
    executor = Executor(manager, queues=["other"])
    claimed = executor.take()
    while executor.is_woken():
        pass
    manager.requeue("a", owner=WORKER.owner, token=claimed.token)
    assert executor.is_woken()


def test_it_stands_before_those_that_came_later(manager: LockManager) -> None:
    manager.request(task("a", "r"))
    claimed = Executor(manager).take()
    manager.request(task("b", "r"))
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("done", ("a",))
    assert manager.release("a") == Ended("done", ("b",))


def test_a_higher_priority_that_came_meanwhile_goes_first(manager: LockManager) -> None:
    manager.request(task("a", "r"))
    claimed = Executor(manager).take()
    manager.request(task("high", "r", priority=1))
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("done", ("high",))
    found = manager.inspect_request("a")
    assert found is not None
    assert (found.state, found.owner) == ("waiting", "queue/default")
    assert manager.release("high") == Ended("done", ("a",))


def test_higher_readers_that_came_meanwhile_go_with_it_where_all_share(
    manager: LockManager,
) -> None:
    manager.request(task("a", "r", shared=["s"]))
    claimed = Executor(manager).take()
    manager.request(task("reader", shared=["r"], priority=1))
    manager.request(task("free", shared=["s"], priority=1))
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended(
        "done", ("reader",)
    )
    assert manager.release("reader") == Ended("done", ("a",))


def test_repeated_it_is_refused_and_changes_nothing(manager: LockManager, stored: Picture) -> None:
    manager.request(task("a", "r"))
    claimed = Executor(manager).take()
    manager.requeue("a", owner=WORKER.owner, token=claimed.token)
    before = stored()
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("refused")
    assert stored() == before


def test_a_late_one_does_not_take_the_task_from_its_next_worker(
    manager: LockManager, stored: Picture
) -> None:
    manager.request(task("a", "r"))
    claimed = Executor(manager).take()
    manager.requeue("a", owner=WORKER.owner, token=claimed.token)
    Executor(manager, OTHER_WORKER).take()
    before = stored()
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("refused")
    assert manager.requeue("a", owner=OTHER_WORKER.owner, token=claimed.token) == Ended("refused")
    assert stored() == before


def test_an_unknown_id_changes_nothing(manager: LockManager, stored: Picture) -> None:
    assert manager.requeue("a", owner=WORKER.owner, token=1) == Ended("unknown")
    assert not stored()


def test_what_is_waiting_or_granted_is_refused(manager: LockManager, stored: Picture) -> None:
    manager.request(task("a", "r"))
    manager.request(task("b", "r"))
    before = stored()
    for id in "ab":
        assert manager.requeue(id, owner="queue/default", token=None) == Ended("refused")
    assert stored() == before


def test_the_hold_of_a_process_belongs_to_no_queue(manager: LockManager, stored: Picture) -> None:
    grant = manager.request(hold("a", "r"))
    before = stored()
    for token in (None, getattr(grant, "token", None)):
        assert manager.requeue("a", owner=WEB.owner, token=token) == Ended("refused")
    assert stored() == before


def test_of_a_closed_owner_it_works(manager: LockManager) -> None:
    """It is how clean-up gives back what a dead worker had claimed and not started."""
    manager.request(task("a", "r"))
    claimed = Executor(manager).take()
    manager.close_owner(WORKER.owner)
    assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("done", ("a",))
    assert Executor(manager, OTHER_WORKER).take().id == "a"

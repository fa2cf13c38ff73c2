"""LockManager against the model: whatever is asked of it, in whatever order and however often, the
server holds exactly what the model says.

LOCK_MODEL_EXAMPLES=5000 runs it for longer.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, ClassVar, Protocol

import pytest
import redis.asyncio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from django_task_locks.exceptions import InvalidTask, OwnerClosed, StaleSlot
from django_task_locks.locks import AsyncLockManager, LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import (
    Blocked,
    Claimant,
    Claimed,
    Due,
    Ended,
    Grant,
    Idle,
    Lane,
    Lanes,
    Waiting,
)
from django_task_locks.locks.scripts import BATCH
from tests.locks import layout, model
from tests.locks.snapshot import remove_all, snapshot
from tests.support.servers import ValkeyServer

EXAMPLES = int(os.environ.get("LOCK_MODEL_EXAMPLES", "100"))
STEPS = 60

# Names that would meet if a key were put together carelessly.
RESOURCES = ("r", "x:r", "s:r")
LANES = (Lane(), Lane(versions={"app": "2"}), Lane(queue="other"))
IDS = tuple("abcdefgh")
NAMES = ("worker", "web")
TTL = 30

# Every way to want some of the resources, each in one mode.
DEMANDS = tuple(
    tuple(
        frozenset(name for name, its in zip(RESOURCES, modes, strict=True) if its == mode)
        for mode in ("exclusive", "shared")
    )
    for modes in product(("not", "shared", "exclusive"), repeat=len(RESOURCES))
)
priorities = st.sampled_from((0, 0, 0, -1, 1, 100))
some_lanes = st.lists(st.sampled_from(LANES), unique_by=lambda lane: lane.name, min_size=1)


class Adapter(Protocol):
    """A manager under test: its operations by name. An async one drives its own event loop."""

    def call(self, operation: str, *args: Any, **options: Any) -> Any: ...

    def close(self) -> None: ...


class SyncAdapter:
    def __init__(self, server: ValkeyServer, prefix: str, batch: int, **options: Any) -> None:
        self._client = server.client(**options)
        self._manager = LockManager(self._client, prefix, batch=batch)

    def call(self, operation: str, *args: Any, **options: Any) -> Any:
        return getattr(self._manager, operation)(*args, **options)

    def close(self) -> None:
        self._client.close()


class AsyncAdapter:
    def __init__(self, server: ValkeyServer, prefix: str, batch: int, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(server.url, **options)
        self._manager = AsyncLockManager(self._client, prefix, batch=batch)

    def call(self, operation: str, *args: Any, **options: Any) -> Any:
        return self._runner.run(getattr(self._manager, operation)(*args, **options))

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


class LockMachine(RuleBasedStateMachine):
    """Draws operations, asks both, and compares the replies and then the server in full.

    Processes die and come back as new incarnations; what is sent in the name of an earlier one, or
    of an earlier generation of a slot, is a late message of the dead. A repeated call is asked of
    the model a second time, too: for both of them it must be harmless.

    A subclass says which manager is asked (make_adapter), how many waiters a call of it examines
    (batch), and where to look at its keys (client); `steps` counts the operations of a run.
    """

    client: ClassVar[Redis]
    batch: ClassVar[int] = BATCH
    prefix = "model"
    steps: ClassVar[int] = 0

    @staticmethod
    def make_adapter(prefix: str) -> Adapter:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        remove_all(self.client, self.prefix)
        self.adapter = self.make_adapter(self.prefix)
        self.keys = Keys(self.prefix)
        self.model = model.Model()
        self.incarnations = dict.fromkeys(NAMES, 1)
        self.generations: dict[tuple[str, int], int] = {}
        self.last_arrival = 0
        self.last_token = 0
        # Whatever was ever held, for late messages: id, owner, token.
        self.tokens: list[tuple[str, str, int]] = []
        # Lanes whose marker was taken by an executor that has not claimed since.
        self.dark: set[str] = set()

    def teardown(self) -> None:
        self.adapter.close()
        remove_all(self.client, self.prefix)

    # -- asking both ---------------------------------------------------------------------------

    def repetitions(self, data: st.DataObject) -> range:
        """Once, or twice when the first reply was lost."""
        return range(data.draw(st.sampled_from((1, 1, 2)), label="times sent"))

    def ask(
        self, of_model: Callable[[], Any], operation: str, *args: Any, **options: Any
    ) -> tuple[Any, Any]:
        """The model's answer and the manager's, None and None where both refuse."""
        type(self).steps += 1
        try:
            wanted = of_model()
        except model.Closed:
            with pytest.raises(OwnerClosed):
                self.adapter.call(operation, *args, **options)
            wanted = got = None
        except model.Stale:
            with pytest.raises(StaleSlot):
                self.adapter.call(operation, *args, **options)
            wanted = got = None
        except model.OfAnother:
            with pytest.raises(InvalidTask, match="take a new one"):
                self.adapter.call(operation, *args, **options)
            wanted = got = None
        else:
            got = self.adapter.call(operation, *args, **options)
        self.compare()
        return wanted, got

    @property
    def most(self) -> int:
        """Requests that one call promotes."""
        return min(self.batch, model.MOST)

    def compare(self) -> None:
        found = snapshot(self.client, self.prefix)
        self.learn_arrivals(found)
        self.learn_tokens(found)
        assert layout.observed(found, self.keys) == layout.expected(self.model, self.keys)
        assert int(str(found.get(self.keys.seq, 0))) >= max(self.last_arrival, self.last_token)
        assert layout.unmarked(found, self.keys) == set()
        self.compare_markers(found)

    def learn_arrivals(self, found: dict[str, Any]) -> None:
        """Of those whose time had come, in this order."""
        for request in self.model.promoted:
            record = json.loads(found[self.keys.request(request.id)])
            request.arrival = int(record["score"]) % 2**43
            assert request.arrival > self.last_arrival
            self.last_arrival = request.arrival
        self.model.promoted.clear()

    def learn_tokens(self, found: dict[str, Any]) -> None:
        """The model knows no tokens: each new one is greater than all that were given before."""
        new = [request for request in self.model.in_order("held") if request.token is None]
        for request in new:
            request.token = int(json.loads(found[self.keys.request(request.id)])["token"])
            assert request.token > self.last_token
            self.tokens.append((request.id, request.owner, request.token))
        tokens = {request.token for request in new if request.token}
        assert len(tokens) == len(new)
        self.last_token = max(tokens, default=self.last_token)

    def compare_markers(self, found: dict[str, Any]) -> None:
        """A lane with something ready is lit, or else somebody is on the way to it."""
        lit = layout.lit_lanes(found, self.keys)
        assert lit <= {"", *self.model.lanes}
        ready = {request.lane for request in self.model.in_order("granted")}
        assert ready <= lit | self.dark
        self.dark -= lit

    # -- drawing -------------------------------------------------------------------------------

    def draw_owner(self, data: st.DataObject) -> str:
        name = data.draw(st.sampled_from(NAMES), label="name")
        now = self.incarnations[name]
        before = data.draw(st.sampled_from((0, 0, 0, 0, 1)), label="incarnations ago")
        return f"{name}@{max(1, now - before)}"

    def draw_process(self, data: st.DataObject, *, executor: bool) -> model.Process:
        owner = self.draw_owner(data)
        if not executor:
            return model.Process(owner, TTL)
        number = data.draw(st.sampled_from((0, 1)), label="slot")
        now = self.generations.get((owner, number), 1)
        before = data.draw(st.sampled_from((0, 0, 0, 0, 1)), label="generations ago")
        return model.Process(owner, TTL, (number, max(1, now - before)))

    def has_free_ids(self) -> bool:
        return len(self.model.requests) < len(IDS)

    def waiting_holds_that_were_granted(self) -> list[str]:
        return [
            request.id
            for request in self.model.in_order("held")
            if request.is_hold and request.was_handed_over
        ]

    def draw_id(self, data: st.DataObject, *, known: bool) -> str:
        """One that has a request or has none, as far as there is such a one."""
        fitting = [id for id in IDS if (id in self.model.requests) is known]
        return data.draw(st.sampled_from(fitting or IDS), label="id")

    def draw_held(self, data: st.DataObject) -> tuple[str, str, int]:
        """A held request's id, owner and token; sometimes one that is held no more."""
        present = [
            (request.id, request.owner, request.token)
            for request in self.model.in_order("held")
            if request.token
        ]
        is_late = data.draw(st.sampled_from((False, False, False, True)), label="late")
        return data.draw(
            st.sampled_from(self.tokens if is_late or not present else present), label="held"
        )

    def draw_version(self, data: st.DataObject) -> str:
        is_old = data.draw(st.sampled_from((False, False, False, False, True)), label="old lanes")
        return "" if is_old else str(self.model.lanes_version)

    # -- requests ------------------------------------------------------------------------------

    @precondition(lambda self: self.has_free_ids())
    @rule(data=st.data(), lane=st.sampled_from(LANES))
    def request_for_a_task(self, data: st.DataObject, lane: Lane) -> None:
        self.request(data, self.draw_id(data, known=False), None, lane=lane)

    @precondition(lambda self: self.has_free_ids())
    @rule(data=st.data(), lane=st.sampled_from(LANES))
    def request_for_a_task_that_is_not_due(self, data: st.DataObject, lane: Lane) -> None:
        id = self.draw_id(data, known=False)
        self.request(data, id, None, lane=lane, due=self.draw_due(data))

    def draw_due(self, data: st.DataObject) -> int:
        """A time in ms that does not come while this machine runs."""
        hours = data.draw(st.sampled_from((1, 2, 3)), label="due in hours")
        return int(time.time()) * 1000 + hours * 3_600_000

    @precondition(lambda self: self.model.in_order("due"))
    @rule(data=st.data(), moment=st.sampled_from((1, 2, 3)))
    def time_passes(self, data: st.DataObject, moment: int) -> None:
        """For one that was not due yet."""
        ids = sorted(request.id for request in self.model.in_order("due"))
        id = data.draw(st.sampled_from(ids), label="id")
        self.model.requests[id].due = moment
        self.client.zadd(self.keys.due, {id: moment})

    @precondition(lambda self: self.has_free_ids())
    @rule(data=st.data())
    def try_for_a_task(self, data: st.DataObject) -> None:
        self.request(data, self.draw_id(data, known=False), None, wait=False)

    @precondition(lambda self: self.has_free_ids())
    @rule(data=st.data(), wait=st.booleans(), executor=st.booleans())
    def request_for_a_hold(self, data: st.DataObject, wait: bool, executor: bool) -> None:
        process = self.draw_process(data, executor=executor)
        self.request(data, self.draw_id(data, known=False), process, wait=wait)

    @precondition(lambda self: self.model.requests)
    @rule(data=st.data(), wait=st.booleans(), hold=st.booleans())
    def request_again(self, data: st.DataObject, wait: bool, hold: bool) -> None:
        """A known id is answered with its state, whatever else is asked."""
        process = self.draw_process(data, executor=True) if hold else None
        self.request(data, self.draw_id(data, known=True), process, wait=wait)

    def request(
        self,
        data: st.DataObject,
        id: str,
        process: model.Process | None,
        *,
        lane: Lane = LANES[0],
        wait: bool = True,
        due: int | None = None,
    ) -> None:
        exclusive, shared = data.draw(st.sampled_from(DEMANDS), label="exclusive, shared")
        priority = data.draw(priorities, label="priority")
        asked = LockRequest(
            id=id,
            exclusive=tuple(exclusive),
            shared=tuple(shared),
            priority=priority,
            lane=lane,
            claimant=claimant(process) if process else None,
            label=f"label of {id}",
            run_after=due / 1000 if due else None,
        )
        for _ in self.repetitions(data):
            arrival = int(self.client.get(self.keys.seq) or 0) + 1
            is_new = id not in self.model.requests
            in_the_model = model.Request(
                id=id,
                exclusive=exclusive,
                shared=shared,
                priority=priority,
                queue=lane.queue,
                lane=lane.name,
                lane_description=lane.description,
                process=process,
                label=f"label of {id}",
                due=due,
            )
            wanted, got = self.ask(
                partial(self.model.request, in_the_model, arrival, wait=wait),
                "request" if wait else "try_request",
                asked,
            )
            if wanted in ("granted", "held"):
                assert got == Grant(id, self.model.requests[id].token)
            elif wanted == "waiting":
                assert got == Waiting(id)
            elif wanted == "due":
                assert got == Due(id)
            elif wanted == "blocked":
                self.check_blockers(got, in_the_model)
            if is_new and not due and id in self.model.requests:
                self.last_arrival = arrival

    def check_blockers(self, got: Any, request: model.Request) -> None:
        assert isinstance(got, Blocked)
        assert got.id == request.id
        assert got.blockers
        in_the_way = {other.id: other for other in self.model.in_the_way_of(request)}
        for blocker in got.blockers:
            other = in_the_way[blocker.id]
            assert blocker.resource in request.exclusive | request.shared
            named = other.exclusive if blocker.mode == "exclusive" else other.shared
            assert blocker.resource in named
            assert (blocker.state, blocker.owner) == (other.state, other.owner)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """By the holder, or by one that is it no more."""
        id, owner, token = self.draw_held(data)
        self.release(data, id, owner=owner, token=token)

    @precondition(lambda self: self.model.requests)
    @rule(data=st.data(), by=st.sampled_from(("anybody", "process", "queue")))
    def cancel(self, data: st.DataObject, by: str) -> None:
        """Without a token: as a cancel does it, or the owner of a hold that waits."""
        owners = {"anybody": "", "queue": "queue/default"}
        owner = owners[by] if by in owners else self.draw_owner(data)
        self.release(data, self.draw_id(data, known=True), owner=owner)

    def release(
        self, data: st.DataObject, id: str, *, owner: str = "", token: int | None = None
    ) -> None:
        for _ in self.repetitions(data):
            wanted, got = self.ask(
                partial(self.model.release, id, owner, token),
                "release",
                id,
                owner=owner,
                token=token,
            )
            self.check_ended(wanted, got)

    def check_ended(self, wanted: tuple[str, tuple[str, ...]], got: Any) -> None:
        status, granted = wanted
        if self.batch < BATCH:  # in order within a batch
            assert got == Ended(status, got.granted)
            assert sorted(got.granted) == sorted(granted)
        else:
            assert got == Ended(status, granted)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        id, owner, token = self.draw_held(data)
        later = data.draw(st.sampled_from((False, False, True)), label="later")
        due = self.draw_due(data) if later else None
        for _ in self.repetitions(data):
            wanted, got = self.ask(
                partial(self.model.requeue, id, owner, token, due),
                "requeue",
                id,
                owner=owner,
                token=token,
                run_after=due / 1000 if due else None,
            )
            self.check_ended(wanted, got)

    @precondition(lambda self: self.waiting_holds_that_were_granted())
    @rule(data=st.data())
    def wait_for_grant(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.waiting_holds_that_were_granted()), label="id")
        news = self.adapter.call("wait_for_grant", id, 5)
        assert news == Grant(id, self.model.requests[id].token)
        self.model.requests[id].was_handed_over = False
        self.compare()

    # -- executors -----------------------------------------------------------------------------

    @rule(data=st.data(), lanes=some_lanes)
    def claim(self, data: st.DataObject, lanes: list[Lane]) -> None:
        process = self.draw_process(data, executor=True)
        version = self.draw_version(data)
        for _ in self.repetitions(data):
            self.claim_as(process, version, [lane.name for lane in lanes])

    def claim_as(self, process: model.Process, version: str, lanes: list[str]) -> None:
        before = self.id_in_slot(process)
        wanted, got = self.ask(
            partial(self.model.claim, process, int(version or -1), lanes, self.most),
            "claim",
            claimant(process),
            version,
            lanes,
        )
        self.check_claim(wanted, got, lanes, before)

    @precondition(lambda self: self.tokens and self.batch == BATCH)  # else it leaves work to others
    @rule(data=st.data(), lanes=some_lanes)
    def advance(self, data: st.DataObject, lanes: list[Lane]) -> None:
        process = self.draw_process(data, executor=True)
        version = self.draw_version(data)
        names = [lane.name for lane in lanes]
        id, _, token = self.draw_held(data)
        held = self.id_in_slot(process)
        if held and data.draw(st.sampled_from((True, True, False)), label="in good order"):
            id, token = held, self.model.requests[held].token or 0
        for _ in self.repetitions(data):
            before = self.id_in_slot(process)
            wanted, got = self.ask(
                partial(self.model.advance, process, int(version or -1), names, id, token),
                "advance",
                claimant(process),
                version,
                names,
                id=id,
                token=token,
            )
            self.check_claim(wanted, got, names, before)

    def check_claim(
        self, wanted: str | None, got: Any, lanes: list[str], before: str | None
    ) -> None:
        if wanted is None:
            return
        if wanted == "lanes":
            listed = {lane.name: lane for lane in LANES if lane.name in self.model.lanes}
            assert got == Lanes(str(self.model.lanes_version), listed)
        elif wanted == "idle":
            assert isinstance(got, Idle)
            self.check_next_due(got)
            self.dark.difference_update(lanes)
        else:
            token = self.model.requests[wanted].token
            assert got == Claimed(wanted, token or 0)
            if wanted != before:
                self.dark.difference_update(lanes)

    def check_next_due(self, got: Idle) -> None:
        """Told in seconds from now, and at once if there were more due than one call promotes."""
        due = [request.due or 0 for request in self.model.in_order("due")]
        if not due:
            assert got.next_due_in is None
            return
        assert got.next_due_in is not None
        assert abs(got.next_due_in - max(0.0, min(due) / 1000 - time.time())) < 5

    @rule(data=st.data(), lanes=some_lanes)
    def wait_for_ready(self, data: st.DataObject, lanes: list[Lane]) -> None:
        """An idle executor takes a marker, and then claims, or dies before."""
        names = [lane.name for lane in lanes]
        process = self.draw_process(data, executor=True)
        before = layout.lit_lanes(snapshot(self.client, self.prefix), self.keys)
        if not before & {"", *names} or self.id_in_slot(process):
            return
        assert self.adapter.call("wait_for_ready", names, 5) is True
        taken = before - layout.lit_lanes(snapshot(self.client, self.prefix), self.keys)
        assert len(taken) == 1
        self.dark |= taken
        self.compare()
        if data.draw(st.sampled_from((True, True, True, False)), label="lives on"):
            self.claim_as(process, str(self.model.lanes_version), names)

    def id_in_slot(self, process: model.Process) -> str | None:
        assert process.slot
        return self.model.slots.get(process.owner, {}).get(process.slot[0])

    # -- processes -----------------------------------------------------------------------------

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def replace_executor(self, data: st.DataObject, name: str) -> None:
        """One has died, whatever it held, and the next generation takes its slot."""
        self.retire(data, f"{name}@{self.incarnations[name]}")

    @rule(data=st.data(), is_declared_missing=st.booleans())
    def die(self, data: st.DataObject, is_declared_missing: bool) -> None:
        """The process is gone, whatever it held, and another goes by its name."""
        name = data.draw(st.sampled_from(NAMES), label="name")
        if is_declared_missing:
            self.close_owner(data, f"{name}@{self.incarnations[name]}")
        self.incarnations[name] += 1

    @rule(
        data=st.data(),
        of_process=st.sampled_from(
            (
                "beat",
                "retire",
                "close_owner",
                "release_owner",
                "forget_owner",
                "forget_entry",
                "suspect",
                "send",
            )
        ),
    )
    def process(self, data: st.DataObject, of_process: str) -> None:
        """Clean-up, mostly of those that are gone; in any order."""
        name = data.draw(st.sampled_from(NAMES), label="name")
        alive = data.draw(st.sampled_from((0, 0, 1)), label="alive")
        owner = f"{name}@{max(1, self.incarnations[name] - 1 + alive)}"
        getattr(self, of_process)(data, owner)

    def retire(self, data: st.DataObject, owner: str) -> None:
        numbers = sorted(self.model.slots.get(owner, {})) or [0, 1]
        number = data.draw(st.sampled_from(numbers), label="slot")
        generation = self.generations.get((owner, number), 1)
        process = model.Process(owner, TTL, (number, generation))
        for _ in self.repetitions(data):
            wanted, got = self.ask(partial(self.model.retire, process), "retire", claimant(process))
            assert set(got) == wanted
            assert len(got) == len(wanted)
        self.generations[owner, number] = generation + 1

    def beat(self, data: st.DataObject, owner: str) -> None:
        for _ in self.repetitions(data):
            if owner not in self.model.closed:
                self.dark.clear()
            self.ask(partial(self.model.beat, owner, TTL, self.most), "beat", owner, TTL)

    def close_owner(self, data: st.DataObject, owner: str) -> None:
        for _ in self.repetitions(data):
            wanted, got = self.ask(partial(self.model.close_owner, owner), "close_owner", owner)
            assert set(got) == wanted

    def release_owner(self, data: st.DataObject, owner: str) -> None:
        batch = data.draw(st.sampled_from((1, 2, 500)), label="batch")
        for _ in self.repetitions(data):
            wanted, got = self.ask(
                partial(self.model.release_owner, owner), "release_owner", owner, batch
            )
            assert got == wanted

    def forget_owner(self, data: st.DataObject, owner: str) -> None:
        for _ in self.repetitions(data):
            if not self.model.registry(owner):
                self.dark.clear()
            wanted, got = self.ask(partial(self.model.forget_owner, owner), "forget_owner", owner)
            assert got == wanted

    def forget_entry(self, data: st.DataObject, owner: str) -> None:
        id = self.draw_id(data, known=True)
        for _ in self.repetitions(data):
            wanted, got = self.ask(
                partial(self.model.forget_entry, id, owner), "forget_entry", id, owner
            )
            assert got is wanted

    def suspect(self, data: st.DataObject, owner: str) -> None:
        for _ in self.repetitions(data):
            wanted, (seconds, ttl) = self.ask(partial(self.model.suspect, owner), "suspect", owner)
            assert seconds >= 0
            assert ttl == wanted

    def send(self, data: st.DataObject, owner: str) -> None:
        self.ask(partial(self.model.send, owner, "cancel"), "send", owner, "cancel")

    # -- looking -------------------------------------------------------------------------------

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES))
    def look(self, data: st.DataObject, resource: str) -> None:
        self.inspect_request(self.draw_id(data, known=True))
        self.inspect_resource(resource)
        assert self.adapter.call("owners") == self.model.owners
        assert self.adapter.call("lanes") == {
            lane.name: lane for lane in LANES if lane.name in self.model.lanes
        }
        for owner in {*self.model.owners, "queue/default"}:
            assert self.adapter.call("registry", owner) == self.model.registry(owner)
        assert self.adapter.call("known", IDS) == set(self.model.requests)

    def inspect_request(self, id: str) -> None:
        found = self.adapter.call("inspect_request", id)
        request = self.model.requests.get(id)
        if request is None:
            assert found is None
            return
        assert (found.state, found.owner, found.lane) == (
            request.state,
            request.owner,
            "" if request.is_hold else request.lane,
        )
        assert found.exclusive == tuple(sorted(request.exclusive))
        assert found.shared == tuple(sorted(request.shared))
        assert (found.token, found.score) == (request.token, layout.score(request))
        in_the_way = {other.id: other for other in self.model.in_the_way_of(request)}
        assert bool(found.blockers) == (request.state == "waiting" and bool(in_the_way))
        assert found.run_after == (request.due / 1000 if request.due else None)
        for blocker in found.blockers:
            other = in_the_way[blocker.id]
            assert (blocker.state, blocker.owner) == (other.state, other.owner)

    def inspect_resource(self, resource: str) -> None:
        found = self.adapter.call("inspect_resource", resource)
        wanting = [
            request
            for request in self.model.in_order("waiting", "granted", "held")
            if resource in request.exclusive | request.shared
        ]
        waiters = [request.id for request in wanting if request.state == "waiting"]
        holders = {request.id for request in wanting if request.state != "waiting"}
        assert {holder.id for holder in found.holders} == holders
        assert [waiter.id for waiter in found.waiters] == waiters
        assert found.holder_count == len(holders)
        assert found.exclusive_waiter_count + found.shared_waiter_count == len(waiters)


def claimant(process: model.Process) -> Claimant:
    slot = f"{process.slot[0]}.{process.slot[1]}" if process.slot else ""
    return Claimant(owner=process.owner, ttl=process.ttl, slot=slot)


@pytest.mark.timeout(0 if "LOCK_MODEL_EXAMPLES" in os.environ else 600)  # a failure is shrunk
@pytest.mark.parametrize(
    ("adapter", "options", "batch"),
    [
        (SyncAdapter, {}, BATCH),
        (SyncAdapter, {"decode_responses": True}, 1),
        (AsyncAdapter, {}, BATCH),
    ],
    ids=["sync", "sync, text, small batches", "async"],
)
def test_the_manager_does_what_the_model_does(
    valkey: ValkeyServer,
    redis_client: Redis,
    adapter: type[SyncAdapter] | type[AsyncAdapter],
    options: dict[str, Any],
    batch: int,
) -> None:
    class Machine(LockMachine):
        client = redis_client

        @staticmethod
        def make_adapter(prefix: str) -> Adapter:
            return adapter(valkey, prefix, batch, **options)

    Machine.batch = batch
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=set(Phase) - {Phase.explain},  # it traces every line, for minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Machine.steps > 20 * EXAMPLES, "the machine hardly does anything"

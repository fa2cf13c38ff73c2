"""The values that go into the lock manager: validated before anything is sent."""

import pickle
from copy import copy, deepcopy
from typing import Any

import pytest
from redis import Redis

from django_task_locks.exceptions import InvalidResource, InvalidTask
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import (
    Claimant,
    Lane,
    validated_priority,
    validated_queue,
)


class TestLockRequest:
    def test_resources_are_sorted_names_without_duplicates(self) -> None:
        request = LockRequest(id="a", exclusive=("b", "a", "b"), shared=("d", "c", "d"))
        assert (request.exclusive, request.shared) == (("a", "b"), ("c", "d"))

    def test_a_name_in_both_modes_is_exclusive(self) -> None:
        request = LockRequest(id="a", exclusive=("r",), shared=("r", "s"))
        assert (request.exclusive, request.shared) == (("r",), ("s",))

    def test_it_belongs_to_its_queue_until_somebody_claims_it(self) -> None:
        assert LockRequest(id="a", lane=Lane(queue="bulk")).owner == "queue/bulk"

    def test_with_a_claimant_it_belongs_to_that_process(self) -> None:
        assert LockRequest(id="a", claimant=Claimant(owner="web@1", ttl=30)).owner == "web@1"

    @pytest.mark.parametrize("name", ["", "x" * 1025, "\udcff"])
    def test_a_name_that_cannot_be_one_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidResource):
            LockRequest(id="a", exclusive=(name,))
        with pytest.raises(InvalidResource):
            LockRequest(id="a", shared=(name,))

    def test_more_than_ten_thousand_are_refused_before_anything_is_sent(
        self, redis_client: Redis
    ) -> None:
        names = tuple(str(number) for number in range(10_001))
        with pytest.raises(InvalidResource, match="10001 resources"):
            LockManager(redis_client, "test").request(LockRequest(id="a", shared=names))
        assert redis_client.dbsize() == 0

    @pytest.mark.parametrize("label", ["\udcff", b"nightly", 7])
    def test_a_label_that_cannot_be_sent_is_refused(self, label: Any) -> None:
        with pytest.raises(InvalidTask, match="label"):
            LockRequest(id="a", label=label)

    def test_it_and_its_lane_can_be_told_apart_in_a_set(self) -> None:
        lane = Lane(queue="bulk", versions={"app": "2"})
        assert {lane, Lane(queue="bulk", versions={"app": "2"})} == {lane}
        request = LockRequest(id="a", exclusive=("r",), lane=lane)
        assert len({request, LockRequest(id="a", exclusive=("r",), lane=lane)}) == 1

    def test_an_empty_id_is_refused(self) -> None:
        with pytest.raises(InvalidResource, match="id"):
            LockRequest(id="")

    def test_it_can_be_copied_and_pickled(self) -> None:
        request = LockRequest(id="a", exclusive=("r",), shared=("s",), priority=3)
        assert copy(request) == deepcopy(request) == pickle.loads(pickle.dumps(request)) == request  # noqa: S301
        assert type(copy(request)) is LockRequest

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            LockRequest(id="a").priority = 1  # type: ignore[misc]


class TestPriority:
    @pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100])
    def test_whole_numbers_from_minus_to_plus_a_hundred_are_accepted(self, priority: int) -> None:
        assert validated_priority(priority) == priority
        assert LockRequest(id="a", priority=priority).priority == priority

    @pytest.mark.parametrize("priority", [-101, 101, 1.0, "1", None, True, 10**400])
    def test_anything_else_is_refused_and_named(self, priority: Any) -> None:
        with pytest.raises(InvalidTask, match="priority"):
            validated_priority(priority)
        with pytest.raises(InvalidTask, match="-100 to 100"):
            LockRequest(id="a", priority=priority)


class TestQueue:
    @pytest.mark.parametrize("queue", ["default", "a", "q" * 100, "a/b:c@d", "größe", "*", "{}"])
    def test_a_short_text_without_white_space_is_accepted(self, queue: str) -> None:
        assert validated_queue(queue) == queue

    @pytest.mark.parametrize(
        "queue", ["", " ", "a b", "a\n", "\ta", "q" * 101, "\0", "\udcff", None, 1, b"a"]
    )
    def test_anything_else_is_refused_and_named(self, queue: Any) -> None:
        with pytest.raises(InvalidTask, match="queue"):
            validated_queue(queue)
        with pytest.raises(InvalidTask, match="queue"):
            Lane(queue=queue)


class TestLane:
    def test_without_versions_it_is_its_queue(self) -> None:
        assert Lane(queue="bulk").name == "bulk"

    def test_the_order_of_versions_makes_no_difference(self) -> None:
        one, two = Lane(versions={"a": "1", "b": "2"}), Lane(versions={"b": "2", "a": "1"})
        assert one.name == two.name
        assert one.description == two.description

    def test_different_lanes_have_different_names(self) -> None:
        lanes = [
            Lane(),
            Lane(queue="other"),
            Lane(versions={"a": "1"}),
            Lane(versions={"a": "2"}),
            Lane(versions={"b": "1"}),
            Lane(versions={"a": "1", "b": "1"}),
            Lane(queue='default{"a":"1"}'),
            Lane(versions={'a": "1", "b': "1"}),
        ]
        assert len({lane.name for lane in lanes}) == len(lanes)

    @pytest.mark.parametrize("lane", [Lane(), Lane(queue="ö", versions={"a": 'é"\\', "b": ""})])
    def test_it_comes_back_from_its_description(self, lane: Lane) -> None:
        assert Lane.from_description(lane.description) == lane


class TestClaimant:
    @pytest.mark.parametrize("ttl", [0, -1])
    def test_a_ttl_that_is_no_time_is_refused(self, ttl: float) -> None:
        with pytest.raises(ValueError, match="ttl"):
            Claimant(owner="worker@1", ttl=ttl)

    @pytest.mark.parametrize("owner", ["", "queue/default"])
    def test_an_owner_that_is_no_process_is_refused(self, owner: str) -> None:
        with pytest.raises(ValueError, match="owner"):
            Claimant(owner=owner, ttl=30)

    @pytest.mark.parametrize("slot", ["", "0.1", "12.3456", "999999.999999999999999"])
    def test_a_slot_is_a_number_and_a_generation(self, slot: str) -> None:
        assert Claimant(owner="worker@1", ttl=30, slot=slot).slot == slot

    @pytest.mark.parametrize("slot", ["0", "0.", ".1", "a.b", "0.1.2", "-1.1", "0.1\n", " 0.1"])
    def test_anything_else_is_refused_and_named(self, slot: str) -> None:
        with pytest.raises(ValueError, match="slot"):
            Claimant(owner="worker@1", ttl=30, slot=slot)

    def test_digits_of_other_scripts_are_refused(self) -> None:
        with pytest.raises(ValueError, match="slot"):
            Claimant(owner="worker@1", ttl=30, slot="\u0660.\u0661")

    def test_an_owner_has_a_name(self) -> None:
        with pytest.raises(ValueError, match="owner"):
            Claimant(owner="", ttl=30)

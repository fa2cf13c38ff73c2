"""How a process that is no worker announces itself, beats, and goes."""

import os
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from pytest_django import Settings

from django_task_locks import dispatch, lock_files, presence
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus
from django_task_locks.states import State
from tests.integration.conftest import point_at
from tests.support.processes import wait_until
from tests.support.redis_state import answered, leftovers
from tests.support.servers import ValkeyServer
from tests.support.suite import TTL
from tests.testapp import tasks
from tests.testapp.models import Book

BEATER = "task-locks-heartbeat"


@pytest.fixture
def _quick_beats(settings: Settings) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "heartbeat_interval": 0.05}


def beaters() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == BEATER]


class TestFirstUse:
    def test_process_is_announced_with_row_lock_file_and_heartbeat(
        self, locks: LockManager
    ) -> None:
        assert not AppStatus.objects.exists()

        present = presence.present()

        status = AppStatus.objects.get()
        assert (status.pk, status.owner) == (present.status.pk, present.owner)
        assert (status.name, status.hostname) == (socket.gethostname(), socket.gethostname())
        assert (status.pid, status.app_type) == (os.getpid(), AppStatus.AppType.OTHER)
        assert status.ttl == timedelta(seconds=TTL)
        assert list(AppStatus.objects.online()) == [status]
        assert lock_files.is_held(status.lock_file, status.owner)
        assert wait_until(locks.owners, what="the beat in Redis") == {status.owner: TTL}
        assert len(beaters()) == 1

    def test_next_use_finds_it_announced(self, locks: LockManager) -> None:
        assert presence.present() is presence.present()

    def test_many_threads_announce_it_once(self, locks: LockManager) -> None:
        found = []
        barrier = threading.Barrier(8, timeout=10)

        def use() -> None:
            barrier.wait()
            found.append(presence.present().owner)
            connections.close_all()

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(found) == 8
        assert set(found) == {AppStatus.objects.get().owner}

    def test_dispatch_to_a_worker_needs_no_announcement(self, locks: LockManager) -> None:
        dispatch(tasks.record)

        assert not AppStatus.objects.exists()

    def test_directory_that_cannot_be_written_is_named(
        self, locks: LockManager, settings: Settings, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "run_dir": tmp_path / "file"}

        with pytest.raises(ImproperlyConfigured, match=r"'run_dir'\] is '.*file'"):
            presence.present()

        assert not AppStatus.objects.exists()
        assert beaters() == []

    def test_it_does_not_wait_for_a_transaction_of_its_own(self, locks: LockManager) -> None:
        """SQLite has one writer, and that is this thread. Elsewhere the row is there at once."""
        began = time.monotonic()
        with transaction.atomic():
            Book.objects.create(title="Emma")
            present = presence.present()
            if connection.vendor != "sqlite":
                assert AppStatus.objects.filter(pk=present.status.pk).exists()
            seconds = time.monotonic() - began
            assert lock_files.is_held(present.status.lock_file, present.owner)

        assert seconds < 5
        assert wait_until(AppStatus.objects.current, what="the row").owner == present.owner

    def test_rollback_does_not_take_the_announcement_back(self, locks: LockManager) -> None:
        with transaction.atomic():
            present = presence.present()
            transaction.set_rollback(True)

        assert wait_until(AppStatus.objects.current, what="the row").owner == present.owner


@pytest.mark.usefixtures("_quick_beats")
class TestHeartbeat:
    def test_it_moves_on(self, locks: LockManager) -> None:
        presence.present()
        first = AppStatus.objects.get().last_heartbeat

        assert wait_until(
            lambda: AppStatus.objects.filter(last_heartbeat__gt=first).exists(), what="a beat"
        )

    def test_it_waits_for_redis_and_goes_on(
        self, own_locks: LockManager, server: ValkeyServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        present = presence.present()
        wait_until(own_locks.owners)
        server.stop()
        wait_until(lambda: "heartbeat failed" in caplog.text, what="the warning")
        stopped = AppStatus.objects.get().last_heartbeat
        assert wait_until(
            lambda: AppStatus.objects.filter(last_heartbeat__gt=stopped).exists(),
            what="a beat in the database meanwhile",
        )

        server.start()

        found = wait_until(lambda: answered(own_locks.owners), what="the owner in Redis")
        assert found == {present.owner: TTL}
        assert presence.present() is present


def delete_row(locks: LockManager, owner: str) -> None:
    AppStatus.objects.all().delete()


def declare_missing(locks: LockManager, owner: str) -> None:
    AppStatus.objects.update(missing_at=DatabaseNow())


def close_in_redis(locks: LockManager, owner: str) -> None:
    locks.close_owner(owner)


LOSSES = [delete_row, declare_missing, close_in_redis]


class TestLoss:
    @pytest.mark.usefixtures("_quick_beats")
    @pytest.mark.parametrize("lose", LOSSES)
    def test_process_that_lost_its_record_is_told_and_announced_anew(
        self, locks: LockManager, lose: object, caplog: pytest.LogCaptureFixture
    ) -> None:
        lost = presence.present()
        wait_until(locks.owners)

        lose(locks, lost.owner)  # type: ignore[operator]

        wait_until(lambda: AppStatus.objects.current() is None and not beaters())
        assert f"declared missing; what it held is no longer its own owner={lost.owner}" in (
            caplog.text
        )
        present = presence.present()
        assert present.owner != lost.owner
        assert AppStatus.objects.current() == present.status
        assert dispatch(tasks.record, exclusive="a", immediate=True).state == State.COMPLETED

    @pytest.mark.parametrize("lose", LOSSES)
    def test_use_before_the_next_beat_finds_out_by_itself(
        self, locks: LockManager, lose: object
    ) -> None:
        """Whoever declared it missing may have closed the owner a moment ago."""
        lost = presence.present()
        wait_until(locks.owners)
        lose(locks, lost.owner)  # type: ignore[operator]
        locks.close_owner(lost.owner)

        task = dispatch(tasks.record, exclusive="a", immediate=True, deferred=False)

        assert task.state == State.COMPLETED, task.error
        assert presence.present().owner != lost.owner
        assert leftovers(locks) == set()


class TestLeaving:
    def test_nothing_stays(self, locks: LockManager) -> None:
        present = presence.present()
        wait_until(locks.owners)

        presence.leave()

        assert not AppStatus.objects.exists()
        assert AppStatus.objects.current() is None
        assert not Path(present.status.lock_file).exists()
        assert locks.owners() == {}
        assert beaters() == []
        presence.leave()

    def test_next_use_announces_it_anew(self, locks: LockManager) -> None:
        first = presence.present().owner
        presence.leave()

        assert presence.present().owner != first

    def test_what_it_still_holds_keeps_the_record(self, locks: LockManager) -> None:
        present = presence.present()
        locks.try_request(LockRequest(id="x", exclusive=("a",), claimant=present.claimant))

        presence.leave()

        assert AppStatus.objects.get() == present.status
        assert locks.owners() == {present.owner: TTL}
        assert beaters() == []

    def test_redis_that_is_away_keeps_the_record(
        self, own_locks: LockManager, server: ValkeyServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        present = presence.present()
        server.stop()

        presence.leave()

        assert AppStatus.objects.get() == present.status
        assert "without taking its record along" in caplog.text


def test_first_use_while_redis_is_away_is_announced_in_the_database(
    own_locks: LockManager, server: ValkeyServer, settings: Settings
) -> None:
    point_at(settings, "unix:///nonexistent/valkey.sock")
    present = presence.present()
    assert AppStatus.objects.get().owner == present.owner
    point_at(settings, server.url)

    wait_until(lambda: present.owner in own_locks.owners(), what="the beat in Redis")

"""Uploads that are synced while they come: by size, by time, never believed before the disk has answered."""

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from ca import errors
from deploy.processes import wait_until
from node.diskio.durable import Disk
from node.staging import upload_file as upload_module
from node.staging.upload_file import UploadFile
from tests.unit.upload_machine import (
    CONTENT,
    REFUSALS,
    SHA256,
    UUID,
    Crash,
    Machine,
    assert_goes_on,
    assert_stored,
)

MIB = 1 << 20


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that little content reaches."""
    monkeypatch.setattr(upload_module, "SYNC_BYTES", 100_000)
    monkeypatch.setattr(upload_module, "UNSYNCED_BYTES_MAX", 150_000)


def append_all(upload: UploadFile) -> None:
    for start in range(0, len(CONTENT), 10_000):
        upload.append(CONTENT[start : start + 10_000])


def wait_durable(upload: UploadFile, offset: int) -> None:
    wait_until(lambda: upload.durable_offset == offset, what=f"offset {offset}", timeout_s=30)


@pytest.mark.usefixtures("small_steps")
def test_bytes_are_synced_by_themselves_after_a_bound(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:60_000])
        upload.append(CONTENT[60_000:130_000])
        wait_durable(upload, 130_000)
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset == 130_000


def test_sync_that_is_begun_does_not_hold_the_writer_up(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.begin_sync()  # nothing to do
        machine.faults.sync_may_end.clear()
        upload.append(b"first")
        upload.begin_sync()
        upload.append(b"second")
        upload.begin_sync()  # one is at it
        assert upload.durable_offset == 0
        machine.faults.sync_may_end.set()
        wait_durable(upload, 5)
        assert upload.sync() == 11


def test_sync_that_could_not_begin_is_left_to_the_next(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(b"first")
        machine.uploads._threads.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            upload.begin_sync()
        assert (upload.durable_offset, machine.faults.data_syncs) == (0, 0)
        assert upload.sync() == 5
        assert machine.faults.data_syncs == 2  # of the bytes, then of the offset


def test_few_bytes_are_synced_by_themselves_after_a_time(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(b"first")
        machine.now_s += upload_module.SYNC_S / 2
        upload.append(b"second")
        assert upload.durable_offset == 0
        machine.now_s += upload_module.SYNC_S / 2
        upload.append(b"third")
        wait_durable(upload, 16)
        machine.now_s += upload_module.SYNC_S / 2
        upload.append(b"fourth")  # its age counts, not the time since the last sync
        assert upload.durable_offset == 16


@pytest.mark.usefixtures("small_steps")
def test_bytes_go_on_while_a_slow_disk_syncs_and_none_counts_before_it_has(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.sync_may_end.clear()
        upload.append(CONTENT[:110_000])
        upload.append(CONTENT[110_000:200_000])
        assert (upload.offset, upload.durable_offset) == (200_000, 0)
        assert machine.uploads.durable_offset(UUID) == 0
        assert machine.path("offset").read_bytes() == b""  # the record waits for the data
        machine.faults.sync_may_end.set()
        wait_durable(upload, 110_000)
        assert upload.sync() == 200_000


@pytest.mark.usefixtures("small_steps")
def test_writer_waits_for_a_disk_that_is_too_far_behind(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.sync_may_end.clear()
        upload.append(CONTENT[:100_000])
        upload.append(CONTENT[100_000:240_000])
        writer = threading.Thread(target=upload.append, args=(CONTENT[240_000:260_000],))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        machine.faults.sync_may_end.set()
        writer.join(30)
        assert not writer.is_alive()
        wait_durable(upload, 260_000)


@REFUSALS
@pytest.mark.usefixtures("small_steps")
def test_failed_sync_behind_the_writer_breaks_the_upload(
    machine: Machine, error_number: int, told: type[errors.FilestoreError]
) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:50_000])
        upload.sync()
        machine.faults.sync_failure = error_number
        upload.append(CONTENT[50_000:150_000])
        with pytest.raises(told):
            upload.sync()
        machine.faults.sync_failure = None
        for call in (upload.sync, upload.finish, lambda: upload.append(b"x")):
            with pytest.raises(errors.Internal):
                call()
        assert upload.durable_offset == 50_000
    assert_goes_on(machine, 50_000)


@pytest.mark.usefixtures("small_steps")
def test_next_append_tells_of_a_sync_that_failed_behind_it(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.sync_failure = errno.EIO
        with pytest.raises(errors.Internal):
            append_all(upload)
        assert upload.broken
        assert upload.durable_offset == 0


@REFUSALS
@pytest.mark.usefixtures("small_steps")
def test_failed_write_goes_back_to_what_the_sync_behind_it_made_durable(
    machine: Machine, error_number: int, told: type[errors.FilestoreError]
) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.sync_may_end.clear()
        upload.append(CONTENT[:100_000])
        upload.append(CONTENT[100_000:110_000])
        machine.faults.write_failure = error_number
        ending = threading.Timer(0.1, machine.faults.sync_may_end.set)
        ending.start()
        with pytest.raises(told):
            upload.append(CONTENT[110_000:])
        ending.join()
        machine.faults.write_failure = None
        assert upload.offset == upload.durable_offset == 100_000 == machine.path("data").stat().st_size
        upload.append(CONTENT[100_000:])
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


@pytest.mark.usefixtures("small_steps")
def test_rollback_waits_for_the_sync_that_would_call_its_bytes_durable(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.sync_may_end.clear()
        upload.append(CONTENT[:100_000])
        ending = threading.Timer(0.1, machine.faults.sync_may_end.set)
        ending.start()
        upload.rollback_to(1000)
        ending.join()
        assert upload.offset == upload.durable_offset == 1000
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.sha256 == hashlib.sha256(CONTENT[:1000]).hexdigest()


@pytest.mark.usefixtures("small_steps")
def test_store_waits_for_syncs_before_it_closes_their_files(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.sync_may_end.clear()
        upload.append(CONTENT[:100_000])
    closing = threading.Thread(target=machine.uploads.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    machine.faults.sync_may_end.set()
    closing.join(30)
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset == 100_000


@pytest.mark.usefixtures("small_steps")
def test_crash_at_any_disk_call_of_a_sync_behind_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    calls, survived = 0, False
    while not survived:
        machine = Machine(tmp_path / str(calls))
        durable = 0
        with machine.uploads.open(UUID, len(CONTENT)) as upload:
            machine.faults.fail_after(calls, Crash())
            try:
                for start in range(0, len(CONTENT), 50_000):
                    upload.append(CONTENT[start : start + 50_000])
                    durable = max(durable, upload.durable_offset)
                upload.sync()
                survived = True
            except Crash:
                durable = max(durable, upload.durable_offset)
                calls += 1
        machine.restart()
        with machine.uploads.open(UUID, len(CONTENT)) as upload:
            assert upload.offset >= durable
            assert upload.sha256 == hashlib.sha256(CONTENT[: upload.offset]).hexdigest()
            upload.append(CONTENT[upload.offset :])
            upload.finish(SHA256)
        assert_stored(machine, CONTENT)
        machine.stop()
    assert calls > 10


def test_names_of_a_new_upload_are_durable_before_its_first_offset_and_synced_once(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        machine.faults.synced.clear()
        upload.append(CONTENT[:1000])
        upload.sync()
        directory = machine.path("data").parent
        assert [path for path, _ in machine.faults.synced] == [directory, directory.parent]
        assert machine.faults.synced[0][1] == ["data", "offset"]
        upload.append(CONTENT[1000:])
        upload.sync()
        assert len(machine.faults.synced) == 2
    machine.restart()
    machine.faults.synced.clear()
    machine.uploads.open(UUID, None).close()  # the process before may have died between the two
    assert {directory, directory.parent} <= {path for path, _ in machine.faults.synced}


def test_offset_is_not_recorded_when_the_names_cannot_be_made_durable(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:1000])
        machine.faults.directory_failure = errno.EIO
        with pytest.raises(errors.Internal):
            upload.sync()
        assert upload.durable_offset == 0
        assert machine.path("offset").read_bytes() == b""


def test_small_content_that_is_finished_at_once_is_synced_once(machine: Machine) -> None:
    with machine.uploads.open(UUID, 4) as upload:
        machine.faults.synced.clear()
        machine.faults.data_syncs = 0
        upload.append(b"abcd")
        finished = upload.finish()
    assert machine.faults.data_syncs == 0  # the sync that seals it is all
    leaf = machine.directory / "blobs" / finished.sha256[:2] / finished.sha256[2:4]
    directory = machine.directory / "uploads" / UUID
    assert [path for path, _ in machine.faults.synced] == [
        directory,
        directory.parent,
        leaf.parent.parent,
        leaf.parent,
        leaf,
        directory,
    ]
    assert_stored(machine, b"abcd")


def blocks_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_large_upload_gets_room_in_large_steps_and_gives_back_what_is_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "PREALLOCATED_BYTES", 8 * MIB)
    content = bytes(5 * MIB)
    with machine.uploads.open(UUID, None) as upload:
        upload.append(content[: 3 * MIB])
        assert machine.faults.reserved == []
        upload.append(content[3 * MIB :])
        assert machine.faults.reserved == [(3 * MIB, 10 * MIB)]
        assert machine.path("data").stat().st_size == 5 * MIB
        if blocks_bytes(machine.path("data")) < 13 * MIB:
            pytest.skip("this file system does not reserve room")
        finished = upload.finish()
    name = finished.sha256
    assert blocks_bytes(machine.directory / "blobs" / name[:2] / name[2:4] / name) < 6 * MIB
    assert_stored(machine, content)


def test_no_room_is_reserved_beyond_the_declared_size(machine: Machine) -> None:
    with machine.uploads.open(UUID, 6 * MIB) as upload:
        upload.append(bytes(5 * MIB))
        upload.append(bytes(MIB))
    assert machine.faults.reserved == [(0, 6 * MIB)]


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_upload_fits_where_no_room_can_be_reserved(machine: Machine, error_number: int) -> None:
    machine.faults.reserving = error_number
    content = bytes(5 * MIB)
    with machine.uploads.open(UUID, None) as upload:
        upload.append(content)
        upload.finish()
    assert_stored(machine, content)


def test_dropped_bytes_give_their_room_back_and_get_it_anew(machine: Machine) -> None:
    with machine.uploads.open(UUID, 12 * MIB) as upload:
        upload.append(bytes(5 * MIB))
        upload.rollback_to(0)
        upload.append(bytes(6 * MIB))
    assert machine.faults.reserved == [(0, 12 * MIB), (0, 12 * MIB)]


def test_many_buffers_are_taken_as_one(machine: Machine) -> None:
    with machine.uploads.open(UUID, len(CONTENT)) as upload:
        assert upload.append(CONTENT[:1000], CONTENT[1000:100_000], memoryview(CONTENT)[100_000:]) == len(
            CONTENT
        )
        with pytest.raises(errors.PayloadTooLarge):
            upload.append(b"x")
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


def test_buffers_that_the_disk_refuses_are_not_part_of_the_hash(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:50_000])
        upload.sync()
        machine.faults.fail_after(1, errno.ENOSPC)  # the first of the two is written
        with pytest.raises(errors.InsufficientStorage):
            upload.append(CONTENT[50_000:60_000], CONTENT[60_000:])
        machine.faults.fail_after(0, None)
        assert upload.offset == upload.durable_offset == 50_000 == machine.path("data").stat().st_size
        upload.append(CONTENT[50_000:])
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


class Slots:
    """The small records of an upload as they are on the medium: a write is there once it was synced."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.synced: dict[str, bytes] = {}
        self.kill_at = ""  # the sync of this record is never reached

    def disk(self) -> Disk:
        return Disk(fdatasync=self.sync)

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == self.kill_at:
            raise Crash
        os.fdatasync(descriptor)
        if path.name in ("offset", "epoch"):
            self.synced[path.name] = path.read_bytes()

    def cut_power(self) -> None:
        for name in ("offset", "epoch"):
            self.machine.path(name).write_bytes(self.synced.get(name, b""))


@pytest.fixture
def slots(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Slots:
    made = Slots(machine)
    monkeypatch.setattr(machine.faults, "disk", made.disk)
    machine.restart()
    return made


def test_going_back_that_was_interrupted_twice_keeps_what_stays(machine: Machine, slots: Slots) -> None:
    """The record of the lower offset is durable before the data is cut to it."""
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.sync()
        slots.kill_at = "offset"
        with pytest.raises(Crash):
            upload.rollback_to(100_000)
    machine.restart()
    with pytest.raises(Crash):
        machine.uploads.open(UUID, None)
    slots.cut_power()
    slots.kill_at = ""
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset >= 100_000
        assert upload.sha256 == hashlib.sha256(CONTENT[: upload.offset]).hexdigest()


def test_epoch_that_a_killed_process_left_is_durable_before_bytes_come_in_it(
    machine: Machine, slots: Slots
) -> None:
    """Else a holder of before could have them dropped."""
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:1000])
        upload.sync()
        upload.enter_epoch(1)
        slots.kill_at = "epoch"
        with pytest.raises(Crash):
            upload.enter_epoch(2)
    slots.kill_at = ""
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        upload.enter_epoch(2)
        upload.append(CONTENT[1000:])
        upload.sync()
    machine.stop()
    slots.cut_power()
    machine.start()
    assert machine.uploads.epoch(UUID) == 2

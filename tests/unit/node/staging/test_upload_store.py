"""Uploads: an offset that was called durable is never lost, and its bytes are those that came."""

import errno
import hashlib
import os
import resource
import stat
import uuid
from pathlib import Path

import pytest

from ca import errors
from node.staging import upload_file as upload_module
from node.staging import upload_store
from node.storage.blobs import BlobStore
from node.storage.pins import encode_finished
from node.storage.segments import BlobDamaged, FinishedBlob
from tests.unit.upload_machine import (
    CONTENT,
    OTHER,
    REFUSALS,
    SHA256,
    UUID,
    Crash,
    Machine,
    assert_goes_on,
    assert_stored,
)


def test_upload_in_pieces_becomes_a_blob(machine: Machine) -> None:
    with machine.uploads.open(UUID, len(CONTENT)) as upload:
        assert upload.offset == 0
        for start in range(0, len(CONTENT), 70_000):
            upload.append(memoryview(CONTENT)[start : start + 70_000])
        assert upload.durable_offset == 0
        assert upload.sync() == len(CONTENT) == upload.durable_offset
        assert upload.finish(SHA256) == FinishedBlob(SHA256, len(CONTENT))
    assert machine.uploads.list_uuids() == [UUID]
    assert machine.uploads.discard(UUID)
    assert not machine.uploads.discard(UUID)
    assert machine.uploads.list_uuids() == []
    assert_stored(machine, CONTENT)


def test_finish_asked_again_answers_the_same_also_after_a_restart(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        first = upload.finish()
        assert upload.finish(SHA256) == first
        with pytest.raises(errors.Conflict):
            upload.append(b"more")
    machine.restart()
    assert machine.uploads.durable_offset(UUID) == len(CONTENT)
    with machine.uploads.open(UUID, len(CONTENT)) as upload:
        assert upload.offset == upload.durable_offset == upload.sync() == len(CONTENT)
        assert upload.finish() == first
        with pytest.raises(errors.ChecksumMismatch):
            upload.finish("0" * 64)
    assert_stored(machine, CONTENT)


@pytest.mark.parametrize(
    ("stop", "prefix_bytes_max", "kept_bytes"),
    [(70_000, 1 << 20, 70_000), (len(CONTENT) + 1, 1 << 30, len(CONTENT)), (70_000, 69_999, 0), (0, 1, 0)],
)
def test_finished_content_gives_way_to_an_upload_of_what_it_began_with(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, stop: int, prefix_bytes_max: int, kept_bytes: int
) -> None:
    monkeypatch.setattr(upload_store, "PREFIX_BYTES_MAX", prefix_bytes_max)
    finished = machine.uploads.open(UUID, None)
    finished.append(CONTENT)
    finished.finish()
    with machine.uploads.reopen(finished, stop) as upload:
        assert stat.S_IMODE(machine.path("data").stat().st_mode) == 0o600  # sealed is what is finished
        assert upload.offset == upload.durable_offset == kept_bytes
        assert upload.sha256 == hashlib.sha256(CONTENT[:kept_bytes]).hexdigest()
        upload.append(b"other")
    machine.restart()
    assert machine.uploads.durable_offset(UUID) == kept_bytes


def test_name_of_finished_content_is_durable_before_its_end_as_an_upload(machine: Machine) -> None:
    """A process that was killed may have synced neither."""
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.finish()
    machine.restart()
    machine.faults.synced.clear()
    machine.uploads.open(UUID, None).close()
    synced = [path for path, _ in machine.faults.synced]
    leaf = machine.directory / "blobs" / SHA256[:2] / SHA256[2:4]
    assert synced.index(leaf) < synced.index(machine.path("data").parent)


def test_crash_while_finished_content_gives_way_loses_nothing_that_stays(tmp_path: Path) -> None:
    """The write quorum may rest on this copy of the first bytes."""
    calls, survived = 0, False
    while not survived:
        machine = Machine(tmp_path / str(calls))
        finished = machine.uploads.open(UUID, None)
        finished.append(CONTENT)
        finished.enter_epoch(3)
        finished.finish()
        machine.faults.fail_after(calls, Crash())
        try:
            machine.uploads.reopen(finished, 70_000).close()
            survived = True
        except Crash:
            calls += 1
        machine.restart()
        assert machine.uploads.prefix_sha256(UUID, 70_000) == hashlib.sha256(CONTENT[:70_000]).hexdigest()
        assert machine.uploads.epoch(UUID) == 3
        with machine.uploads.open(UUID, None) as upload:
            assert upload.offset in (70_000, len(CONTENT))
            if upload.finished is None:
                upload.append(CONTENT[70_000:])
            upload.finish(SHA256)
        assert_stored(machine, CONTENT)
        machine.stop()
    assert calls > 3


def test_finished_upload_whose_blob_is_gone_starts_over(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.finish()
    machine.blobs.delete(SHA256)
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset == upload.durable_offset == 0
        upload.append(CONTENT)
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


def test_content_with_another_hash_is_dropped(machine: Machine) -> None:
    with machine.uploads.open(UUID, 3) as upload:
        upload.append(b"bad")
        upload.sync()
        with pytest.raises(errors.ChecksumMismatch):
            upload.finish(SHA256)
        assert upload.offset == upload.durable_offset == 0
        upload.append(b"now")
        assert upload.finish().sha256 == hashlib.sha256(b"now").hexdigest()


def test_upload_is_not_finished_by_the_record_of_another_one(machine: Machine) -> None:
    contents = {str(uuid.uuid4()): os.urandom(5_000) for _ in range(2)}
    for upload_id, content in contents.items():
        with machine.uploads.open(upload_id, None) as upload:
            upload.append(content)
            upload.finish()
    one, other = (machine.directory / "uploads" / upload_id / "finished" for upload_id in contents)
    exchanged = one.read_bytes(), other.read_bytes()
    one.write_bytes(exchanged[1])
    other.write_bytes(exchanged[0])
    machine.restart()
    for upload_id, content in contents.items():
        with machine.uploads.open(upload_id, None) as upload:
            assert (upload.finished, upload.offset) == (None, 0)
            upload.append(content)
            assert upload.finish().sha256 == hashlib.sha256(content).hexdigest()


def test_upload_that_an_older_release_finished_is_finished(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        blob = upload.finish()
    machine.path("finished").write_bytes(encode_finished(blob, ""))  # that did not say whose it is
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.finished == blob


def test_upload_that_is_not_complete_cannot_finish(machine: Machine) -> None:
    with machine.uploads.open(UUID, 10) as upload:
        upload.append(b"12345")
        with pytest.raises(errors.OffsetMismatch):
            upload.finish()
        with pytest.raises(errors.PayloadTooLarge):
            upload.append(b"678901")
        assert upload.offset == 5
    with pytest.raises(errors.PayloadTooLarge):  # a size declared late must hold what is there
        machine.uploads.open(UUID, 4)
    with machine.uploads.open(UUID, None) as upload:
        upload.append(b"67890")
        upload.finish()


def test_second_writer_is_locked_out_but_may_ask_the_offset(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(b"12345")
        upload.sync()
        upload.append(b"67890")
        with pytest.raises(errors.UploadLocked):
            machine.uploads.open(UUID, None)
        with pytest.raises(errors.UploadLocked):
            machine.uploads.discard(UUID)
        assert machine.uploads.durable_offset(UUID) == 5
    with machine.uploads.open(UUID, None) as again:  # kept open meanwhile: nothing had to be hashed
        assert again is upload
        assert again.offset == 10


def test_asking_the_offset_makes_no_upload(machine: Machine) -> None:
    for name in (UUID, "../../x", "", UUID.upper() + "A"):
        with pytest.raises(errors.NotFound):
            machine.uploads.durable_offset(name)
    assert machine.uploads.list_uuids() == []
    with pytest.raises(errors.NotFound):
        machine.uploads.open("../x", None)


def test_open_uploads_are_bounded_and_idle_ones_give_way(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "data", open_max=2)
    first, second = machine.uploads.open(UUID, None), machine.uploads.open(OTHER, None)
    third = UUID[:-1] + "3"
    with pytest.raises(errors.Unavailable):
        machine.uploads.open(third, None)
    first.append(b"12345")
    first.sync()
    first.close()
    first.close()
    machine.uploads.open(third, None).close()
    assert second.append(b"x") == 1
    with machine.uploads.open(UUID, None) as again:
        assert again is not first
        assert again.offset == 5
    machine.stop()


def test_held_piece_is_not_durable_before_it_was_checked(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(b"good")
        upload.withhold()
        upload.append(b"bad!")
        assert upload.sync() == 4
        upload.rollback_to(4)
        assert upload.offset == 4
        upload.withhold()
        upload.append(b"fine")
        upload.release()
        assert upload.sync() == 8
        upload.withhold()
        upload.append(b"cut off")
    assert machine.uploads.open(UUID, None) is upload
    assert upload.offset == 8
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.sha256 == hashlib.sha256(b"goodfine").hexdigest()


def test_rollback_below_the_durable_offset_is_durable_before_new_bytes_are(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.sync()
        upload.rollback_to(1000)
        upload.append(b"\0" * 5000)
    machine.restart()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset == 1000
        assert upload.sha256 == hashlib.sha256(CONTENT[:1000]).hexdigest()


def test_full_disk_after_a_rollback_does_not_bring_dropped_bytes_back(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.sync()
        upload.rollback_to(1000)
        machine.faults.fail_after(0, errno.ENOSPC)
        with pytest.raises(errors.InsufficientStorage):
            upload.append(b"\0" * 5000)
        machine.faults.fail_after(0, None)
        assert upload.offset == upload.durable_offset == 1000
        upload.append(CONTENT[1000:])
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


def test_data_shorter_than_its_durable_offset_is_not_trusted(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.sync()
    machine.stop()
    os.truncate(machine.path("data"), 10)
    machine.start()
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset == upload.durable_offset == 0


@pytest.mark.parametrize("name", ["data", "offset", "directory"])
def test_link_in_an_upload_is_refused(machine: Machine, tmp_path: Path, name: str) -> None:
    machine.uploads.open(UUID, None).close()
    machine.stop()
    target = machine.path("data").parent if name == "directory" else machine.path(name)
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    machine.start()
    with pytest.raises(errors.Internal):
        machine.uploads.open(UUID, None)
    with pytest.raises(errors.Internal):  # and again: the failure left nothing locked
        machine.uploads.durable_offset(UUID)


@REFUSALS
def test_failed_write_goes_back_to_the_durable_offset(
    machine: Machine, error_number: int, told: type[errors.FilestoreError]
) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:1000])
        upload.sync()
        upload.withhold()
        upload.append(CONTENT[1000:2000])
        machine.faults.fail_after(1, error_number)
        with pytest.raises(told):
            upload.append(CONTENT[2000:])
        machine.faults.fail_after(0, None)
        assert upload.offset == upload.durable_offset == 1000 == machine.path("data").stat().st_size
        upload.rollback_to(1000)
        upload.append(CONTENT[1000:])
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


def test_failed_sync_is_never_believed_when_tried_again(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:1000])
        upload.sync()
        upload.append(CONTENT[1000:2000])
        machine.faults.fail_after(0, errno.EIO)
        with pytest.raises(errors.Internal):
            upload.sync()
        machine.faults.fail_after(0, None)
        for call in (upload.sync, upload.finish, upload.withhold, lambda: upload.append(b"x")):
            with pytest.raises(errors.Internal):
                call()
        assert upload.durable_offset == 1000
    assert_goes_on(machine, 1000)


def test_bytes_that_a_failing_disk_changed_are_not_trusted(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:1000])
        upload.sync()
        upload.append(CONTENT[1000:])
        machine.faults.fail_after(0, errno.EIO)
        with pytest.raises(errors.Internal):
            upload.sync()
    with open(machine.path("data"), "r+b") as file:
        file.write(b"rot")
    with pytest.raises(errors.Internal):
        machine.uploads.open(UUID, None)  # the disk still fails; what is known of it must not be forgotten
    machine.faults.fail_after(0, None)
    with machine.uploads.open(UUID, None) as again:
        assert again.offset == again.durable_offset == 0


def test_crash_at_any_disk_call_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    calls, survived = 0, False
    while not survived:
        machine = Machine(tmp_path / str(calls))
        machine.faults.fail_after(calls, Crash())
        acknowledged = [0]
        try:
            with machine.uploads.open(UUID, len(CONTENT)) as upload:
                for start in range(0, len(CONTENT), 100_000):
                    upload.append(CONTENT[start : start + 100_000])
                    acknowledged.append(upload.sync())
                upload.finish(SHA256)
            survived = True
        except Crash:
            calls += 1
        durable = acknowledged[-1]
        machine.restart()
        with machine.uploads.open(UUID, len(CONTENT)) as upload:
            assert upload.offset >= durable
            assert upload.sha256 == hashlib.sha256(CONTENT[: upload.offset]).hexdigest()
            if upload.finished is None:
                upload.append(CONTENT[upload.offset :])
            assert upload.finish(SHA256) == FinishedBlob(SHA256, len(CONTENT))
        assert_stored(machine, CONTENT)
        machine.stop()
    assert calls > 25


def test_finished_record_is_durable_before_the_data_moves(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        machine.faults.synced.clear()
        upload.finish(SHA256)
    names = [names for path, names in machine.faults.synced if path == machine.path("data").parent]
    assert names == [["data", "finished", "offset"], ["finished", "offset"]]


MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.mark.parametrize("beside_bytes", [1, 1 << 20])
def test_md5_is_kept_beside_the_sha256_through_rollbacks_and_restarts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, beside_bytes: int
) -> None:
    monkeypatch.setattr(upload_module, "BESIDE_BYTES", beside_bytes)
    with machine.uploads.open(UUID, None, with_md5=True) as upload:
        upload.append(CONTENT[:100_000])
        upload.sync()
        upload.withhold()
        upload.append(b"wrong")
        upload.rollback_to(100_000)
        upload.append(CONTENT[100_000:200_000])
        upload.rollback_to(1000)
        upload.append(CONTENT[1000:150_000])
        upload.sync()
    machine.restart()
    with machine.uploads.open(UUID, None, with_md5=True) as upload:
        upload.append(CONTENT[150_000:])
        upload.finish(SHA256)
        assert upload.md5() == MD5
    with machine.uploads.open(UUID, None, with_md5=True) as upload:
        assert upload.md5() == MD5
    machine.restart()
    with machine.uploads.open(UUID, None, with_md5=True) as upload:
        assert upload.finish() == FinishedBlob(SHA256, len(CONTENT))
        assert upload.md5() == MD5


@REFUSALS
def test_md5_of_large_pieces_is_right_after_a_write_that_failed_beside_it(
    machine: Machine, error_number: int, told: type[errors.FilestoreError]
) -> None:
    content = CONTENT * 20
    pieces = [content[:2_000_000], content[2_000_000:2_100_000], content[2_100_000:]]
    with machine.uploads.open(UUID, None, with_md5=True) as upload:
        upload.append(*pieces[:2])
        upload.sync()
        machine.faults.fail_after(30, error_number)
        with pytest.raises(told):
            upload.append(pieces[2])
        machine.faults.fail_after(0, None)
        assert upload.offset == 2_100_000
        upload.append(pieces[2])
        upload.finish()
        assert upload.md5() == hashlib.md5(content).hexdigest()
    assert_stored(machine, content)


def test_md5_of_content_that_the_disk_has_changed_is_not_told(machine: Machine) -> None:
    with machine.uploads.open(UUID, None, with_md5=True) as upload:
        upload.append(CONTENT)
        upload.finish()
    path = machine.directory / "blobs" / SHA256[:2] / SHA256[2:4] / SHA256
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"rot")
    machine.restart()
    with machine.uploads.open(UUID, None, with_md5=True) as upload, pytest.raises(BlobDamaged):
        upload.md5()


def test_md5_is_not_computed_unless_it_is_wanted(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.finish()
        assert upload.md5() == ""


def test_few_are_kept_open_where_a_process_may_have_few_descriptors(tmp_path: Path) -> None:
    """A hundred uploads of ten bytes: a process of 256 descriptors had none left, and got none back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    store = BlobStore(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        kept = upload_store.UploadStore(store)
        for number in range(100):
            with kept.open(str(uuid.UUID(int=number)), None) as upload:
                upload.append(b"0123456789")
                upload.sync()
        left = 256 - (len(os.listdir("/proc/self/fd")) - before)
        assert left > 200
        assert kept.durable_offset(str(uuid.UUID(int=0))) == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    kept.close()
    store.close()

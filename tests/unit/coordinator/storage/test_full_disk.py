"""A real file system with little room: what a node needs for itself is not given to uploads."""

import errno
import os
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ca.errors import InsufficientStorage
from metadata.rpc.node_health import NodeHealth
from node.diskio.durable import Disk
from node.diskio.executor import DiskWorkers
from node.membership.disk_monitor import PROBE_S, DiskWatch
from node.staging.upload_file import UploadFile
from node.staging.upload_store import UploadStore
from node.storage.blob_files import SPARE_BYTES
from node.storage.blobs import BlobStore
from node.uploads.write_locks import UploadLocks
from runtime.disk import FILES_SPARE, writable_bytes
from tests.cluster.failing_disk import failing_disk
from tests.unit.node_records import node_record
from tests.unit.packed_store import CONTENT, put, read

UUID = "0192d3a4-0000-7000-8000-000000000001"
PIECE = os.urandom(1 << 20)
ROOM_BYTES = 10 << 20  # beside the reserve


def append(upload: UploadFile, pieces: int) -> None:
    for _ in range(pieces):
        upload.append(PIECE)
        upload.sync()


@pytest.mark.parametrize(
    ("files", "left", "writable_bytes_left"),
    [(1000, FILES_SPARE, 40_960), (1000, FILES_SPARE - 1, 0), (1000, 0, 0), (0, 0, 40_960)],
)
def test_disk_without_room_for_files_is_full(files: int, left: int, writable_bytes_left: int) -> None:
    """No number of files at all is that of a file system which has none."""
    # Block sizes; blocks, free ones, free for others than the superuser; files in the same way; the rest.
    found = os.statvfs_result((4096, 4096, 100, 11, 10, files, left + 5, left, 0, 255))
    assert writable_bytes(found) == writable_bytes_left


def test_small_blobs_are_served_by_a_node_that_starts_on_a_full_disk(tmp_path: Path) -> None:
    """The disk was filled by others while it was down: what it needs to read was not given back."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with failing_disk(tmp_path / "image", mounted):
        with closing(BlobStore(mounted / "data")) as blobs:
            name = put(blobs, CONTENT)
        with (mounted / "ballast").open("wb", buffering=0) as ballast:
            for piece in (PIECE, PIECE[:512], PIECE[:1]):
                with suppress(OSError):
                    while True:
                        ballast.write(piece)
        with closing(BlobStore(mounted / "data")) as blobs:
            assert read(blobs, name) == CONTENT
            assert blobs.packed.remove(name, unless=lambda: False)


def test_upload_leaves_the_reserve_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with failing_disk(tmp_path / "image", mounted):
        blobs = BlobStore(mounted / "data")
        uploads = UploadStore(blobs)
        ballast = os.open(mounted / "ballast", os.O_WRONLY | os.O_CREAT)
        reserve_bytes = blobs.free_bytes() - blobs.room_bytes()
        assert 0 < reserve_bytes < SPARE_BYTES
        os.posix_fallocate(ballast, 0, blobs.room_bytes() - ROOM_BYTES)
        with uploads.open(UUID, None) as upload:
            with pytest.raises(InsufficientStorage):
                append(upload, 64)
            kept = upload.durable_offset
            assert 2 * len(PIECE) <= kept <= ROOM_BYTES
            assert upload.offset == kept
            assert blobs.free_bytes() > reserve_bytes * 0.9  # metadata of the file system takes some
            os.ftruncate(ballast, 0)
            os.fsync(ballast)
            append(upload, 64)
            assert upload.finish().size_bytes == kept + 64 * len(PIECE)
        os.close(ballast)
        uploads.close()
        blobs.close()


async def test_disk_that_takes_no_bytes_is_told_and_told_again_when_it_does(tmp_path: Path) -> None:
    faults: list[int] = []

    def fsync(descriptor: int) -> None:
        if faults:
            raise OSError(faults[0], os.strerror(faults[0]))
        os.fsync(descriptor)

    disk, blobs = DiskWorkers(), BlobStore(tmp_path / "data", disk=Disk(fsync=fsync))
    watch = DiskWatch(disk, blobs, UploadLocks())
    assert watch.heartbeat().takes_bytes  # nobody has looked yet: there is no reason for an alarm
    await watch.check()
    assert watch.heartbeat().takes_bytes
    assert watch.heartbeat().free_bytes > 0
    for fault in (errno.EIO, errno.EROFS):
        faults[:] = [fault]
        watch._writable_at_s -= PROBE_S
        await watch.check()
        assert not watch.heartbeat().takes_bytes
        assert watch.heartbeat().free_bytes == 0
        faults.clear()
        await watch.check()
        assert watch.heartbeat().takes_bytes
    faults[:] = [errno.EMFILE]
    watch._writable_at_s -= PROBE_S
    await watch.check()
    assert watch.heartbeat().takes_bytes  # this process has too many files open: that is no news of the disk
    disk.close()
    blobs.close()


async def test_disk_without_any_room_takes_no_bytes_and_does_not_fail(tmp_path: Path) -> None:
    """Whether or not the last few bytes of a probe still find a place: the superuser has a reserve."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with failing_disk(tmp_path / "image", mounted):
        disk, blobs = DiskWorkers(), BlobStore(mounted / "data")
        watch = DiskWatch(disk, blobs, UploadLocks())
        await watch.check()
        assert (watch.is_writable(), watch.heartbeat().disk_full) == (True, False)
        ballast = os.open(mounted / "ballast", os.O_WRONLY | os.O_CREAT)
        os.posix_fallocate(ballast, 0, blobs.free_bytes())
        await watch.check()
        told = watch.heartbeat()
        assert (told.takes_bytes, told.disk_full, told.disk_fails, told.free_bytes) == (False, True, False, 0)
        assert not watch.is_writable()
        health = NodeHealth()
        health.receive("n1", told, at_s=0.0)
        assert health.disk("n1") == "full"
        (known,) = health.candidates([node_record("n1")], at_s=1.0)
        assert not known.has_room(0)
        os.ftruncate(ballast, 0)
        os.fsync(ballast)
        await watch.check()
        assert (watch.is_writable(), watch.heartbeat().disk_full) == (True, False)
        os.close(ballast)
        disk.close()
        blobs.close()

"""A store of uploads whose disk fails when told to, and that can lose its process."""

import errno
import hashlib
import os
import random
import threading
from pathlib import Path

import pytest

from ca import errors
from node.diskio.durable import RECORD_BYTES, Disk, Octets, preallocate, write_out
from node.staging.upload_store import UploadStore
from node.storage.blobs import BlobStore

UUID = "0192d3a4-0000-7000-8000-000000000001"
OTHER = "0192d3a4-0000-7000-8000-000000000002"
CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REFUSALS = pytest.mark.parametrize(
    ("error_number", "told"), [(errno.ENOSPC, errors.InsufficientStorage), (errno.EIO, errors.Internal)]
)


class Crash(BaseException):
    """The process is gone at this call: nothing catches it."""


class Faults:
    """A disk whose calls fail when told to, and that counts them."""

    def __init__(self) -> None:
        self.calls_left = -1
        self.failure: BaseException | None = None
        self.synced: list[tuple[Path, list[str]]] = []  # each directory with what was in it
        self.reserved: list[tuple[int, int]] = []  # start and length
        self.reserving: int | None = None  # the error number of every reservation
        self.sync_may_end = threading.Event()  # cleared: data syncs hang
        self.sync_may_end.set()
        self.sync_failure: int | None = None  # of data syncs only
        self.data_syncs = 0
        self.directory_failure: int | None = None
        self.write_failure: int | None = None  # of content, not of records
        self.begun: list[tuple[int, int]] = []  # start and length of what the disk was told to begin with
        self.beginning: int | None = None  # the error number of every such call

    def fail_after(self, calls: int, failure: BaseException | int | None) -> None:
        self.calls_left = calls
        self.failure = OSError(failure, os.strerror(failure)) if isinstance(failure, int) else failure

    def check(self) -> None:
        if self.failure is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise self.failure

    def pwrite(self, descriptor: int, buffer: Octets, offset: int) -> int:
        self.check()
        if self.write_failure is not None and len(buffer) > RECORD_BYTES:
            raise OSError(self.write_failure, os.strerror(self.write_failure))
        return os.pwrite(descriptor, memoryview(buffer)[:50_000], offset)

    def sync(self, descriptor: int) -> None:
        self.check()
        os.fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            if self.directory_failure is not None:
                raise OSError(self.directory_failure, os.strerror(self.directory_failure))
            self.synced.append((path, sorted(os.listdir(path))))

    def data_sync(self, descriptor: int) -> None:
        assert self.sync_may_end.wait(60)
        self.data_syncs += 1
        if self.sync_failure is not None:
            raise OSError(self.sync_failure, os.strerror(self.sync_failure))
        self.sync(descriptor)

    def reserve(self, descriptor: int, start: int, length: int) -> None:
        if self.reserving is not None:
            raise OSError(self.reserving, os.strerror(self.reserving))
        preallocate(descriptor, start, length)
        self.reserved.append((start, length))

    def begin(self, descriptor: int, start: int, length: int) -> None:
        if self.beginning is not None:
            raise OSError(self.beginning, os.strerror(self.beginning))
        write_out(descriptor, start, length)
        self.begun.append((start, length))

    def disk(self) -> Disk:
        return Disk(
            pwrite=self.pwrite,
            fsync=self.sync,
            fdatasync=self.data_sync,
            preallocate=self.reserve,
            write_out=self.begin,
        )


class Machine:
    """A store that can lose its process, or its power."""

    def __init__(self, directory: Path, *, open_max: int = 8) -> None:
        self.directory = directory
        self.faults = Faults()
        self.now_s = 0.0
        self.open_max = open_max
        self.start()

    def start(self) -> None:
        self.faults.fail_after(0, None)
        self.blobs = BlobStore(self.directory, disk=self.faults.disk())
        self.uploads = UploadStore(self.blobs, open_max=self.open_max, clock_s=lambda: self.now_s)

    def stop(self) -> None:
        self.uploads.close()  # as a crash does it: nothing is synced
        self.blobs.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def path(self, name: str) -> Path:
        return self.directory / "uploads" / UUID / name


def assert_stored(machine: Machine, content: bytes) -> None:
    with machine.blobs.open(hashlib.sha256(content).hexdigest()) as blob:
        blob.verify_range(0, len(content))
        assert os.pread(blob.fd, len(content) + 1, 0) == content


def assert_goes_on(machine: Machine, offset: int) -> None:
    """From this offset, to the whole of CONTENT."""
    with machine.uploads.open(UUID, None) as again:
        assert again.offset == again.durable_offset == offset
        again.append(CONTENT[offset:])
        again.finish(SHA256)
    assert_stored(machine, CONTENT)

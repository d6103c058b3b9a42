"""A store of uploads whose disk fails when told to, and that can lose its process."""

import hashlib
import os
import random
from pathlib import Path

from node.blobs import BlobStore
from node.durable import Disk, Octets
from node.uploads import UploadStore

UUID = "0192d3a4-0000-7000-8000-000000000001"
OTHER = "0192d3a4-0000-7000-8000-000000000002"
CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Crash(BaseException):
    """The process is gone at this call: nothing catches it."""


class Faults:
    """A disk whose calls fail when told to, and that counts them."""

    def __init__(self) -> None:
        self.calls_left = -1
        self.failure: BaseException | None = None
        self.synced: list[tuple[Path, list[str]]] = []  # each directory with what was in it

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
        return os.pwrite(descriptor, memoryview(buffer)[:50_000], offset)

    def sync(self, descriptor: int) -> None:
        self.check()
        os.fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.synced.append((path, sorted(os.listdir(path))))

    def disk(self) -> Disk:
        return Disk(pwrite=self.pwrite, fsync=self.sync, fdatasync=self.sync)


class Machine:
    """A store that can lose its process, or its power."""

    def __init__(self, directory: Path, *, open_max: int = 8) -> None:
        self.directory = directory
        self.faults = Faults()
        self.open_max = open_max
        self.start()

    def start(self) -> None:
        self.faults.fail_after(0, None)
        self.blobs = BlobStore(self.directory, disk=self.faults.disk())
        self.uploads = UploadStore(self.blobs, open_max=self.open_max)

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

"""Blobs on one disk: what comes in whole is there for good, what is not the blob is never served.

At the end, what a real machine does to uploads too: records torn at any byte, kill -9, a disk without room.
"""

import dataclasses
import errno
import fcntl
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import ChecksumMismatch, FilestoreError, InsufficientStorage, Internal, InvalidRequest
from node.diskio.durable import SLOT_BYTES, Disk, Octets, OffsetRecord, decode_offset
from node.staging.upload_store import UploadStore
from node.storage.blobs import BlobStore
from node.storage.placement_lock import PlacingLock
from node.storage.quarantine import Quarantine
from node.storage.segments import (
    SEGMENT_BYTES,
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    SegmentHasher,
    SegmentSums,
    SidecarInvalid,
    decode_sidecar,
    encode_sidecar,
)
from tests.unit.upload_machine import Machine

CONTENT = b"the quick brown fox" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LARGE = bytes(range(256)) * (SEGMENT_BYTES // 256) * 2 + b"tail"
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()
UUID = "0192d3a4-0000-7000-8000-000000000001"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    opened = BlobStore(tmp_path / "data")
    yield opened
    opened.close()


def put(store: BlobStore, content: bytes = CONTENT) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    with store.receive(sha256, len(content)) as writer:
        writer.write(content)
        assert writer.finish() == FinishedBlob(sha256, len(content))
    return sha256


def path_of(tmp_path: Path, sha256: str = SHA256) -> Path:
    return tmp_path / "data" / "blobs" / sha256[:2] / sha256[2:4] / sha256


def test_received_blob_is_read_back(store: BlobStore, tmp_path: Path) -> None:
    put(store)
    with store.open(SHA256) as blob:
        assert blob.size_bytes == len(CONTENT)
        blob.verify_range(0, blob.size_bytes)
        assert os.pread(blob.fd, blob.size_bytes, 0) == CONTENT
    assert store.has(SHA256)
    assert store.size_bytes(SHA256) == len(CONTENT)
    for name in (SHA256, SHA256 + ".sums"):
        assert path_of(tmp_path).with_name(name).stat().st_mode & 0o777 == 0o400
    assert os.listdir(tmp_path / "data" / "uploads") == []


def test_name_that_is_affirmed_is_durable_whoever_put_it_there(store: BlobStore) -> None:
    sha256 = put(store)
    synced: list[Path] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        os.fsync(descriptor)

    store.disk = dataclasses.replace(store.disk, fsync=fsync)
    assert store.affirm(sha256)
    assert sha256[2:4] in {path.name for path in synced}


def test_empty_content_is_a_blob(store: BlobStore) -> None:
    with store.open(put(store, b"")) as blob:
        assert blob.size_bytes == 0
        blob.verify_range(0, 0)


def test_same_blob_twice_is_stored_once(store: BlobStore) -> None:
    put(store)
    with store.open(SHA256) as reader:
        put(store)
        assert os.pread(reader.fd, len(CONTENT), 0) == CONTENT
    assert list(store.iterate()) == [SHA256]


def test_iterate_names_every_blob_once_in_order(store: BlobStore) -> None:
    names = {put(store, str(number).encode()) for number in range(40)}
    assert list(store.iterate()) == sorted(names)


def test_blob_that_is_not_there_is_missing(store: BlobStore) -> None:
    with pytest.raises(BlobMissing):
        store.open(SHA256)
    put(store)
    with pytest.raises(BlobMissing):
        store.open(SHA256[:60] + "0000")
    assert not store.has("0" * 64)
    assert not store.delete("0" * 64)
    assert not Quarantine(store).take("0" * 64)


@pytest.mark.parametrize(
    "name", ["", "a", "../../etc/passwd", SHA256.upper(), SHA256 + "\n", "/" * 64, "\0" * 64]
)
def test_name_that_is_no_sha256_is_refused(store: BlobStore, name: str) -> None:
    for call in (store.open, store.has, store.delete, Quarantine(store).take, store.affirm):
        with pytest.raises(InvalidRequest):
            call(name)
    with pytest.raises(InvalidRequest):
        store.receive(name, 1)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"!", b""])
def test_wrong_content_is_not_kept(store: BlobStore, tmp_path: Path, content: bytes) -> None:
    with store.receive(SHA256, len(CONTENT)) as writer:
        writer.write(content)
        with pytest.raises(ChecksumMismatch):
            writer.write(b"\0" * (len(CONTENT) + 1))  # beyond the declared size
        with pytest.raises(ChecksumMismatch):
            writer.finish()
    assert not store.has(SHA256)
    assert os.listdir(tmp_path / "data" / "uploads") == []


def test_leftovers_of_a_crash_are_removed_at_start(store: BlobStore, tmp_path: Path) -> None:
    writer = store.receive(SHA256, len(CONTENT))
    writer.write(CONTENT)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_bytes(b"")
    (tmp_path / "data" / "uploads" / "incoming-link").symlink_to(outside)

    BlobStore(tmp_path / "data").close()

    assert os.listdir(tmp_path / "data" / "uploads") == []
    assert (outside / "keep").exists()


def test_changed_byte_is_found_in_its_segment_only(store: BlobStore, tmp_path: Path) -> None:
    put(store, LARGE)
    path = path_of(tmp_path, LARGE_SHA256)
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(SEGMENT_BYTES + 7)
        file.write(b"\xff")
    with store.open(LARGE_SHA256) as blob:
        assert [blob.verify_segment(n) for n in range(3)] == [True, False, True]
        blob.verify_range(0, SEGMENT_BYTES)
        blob.verify_range(2 * SEGMENT_BYTES, len(LARGE))
        with pytest.raises(BlobDamaged):
            blob.verify_range(SEGMENT_BYTES - 1, SEGMENT_BYTES + 1)


@pytest.mark.parametrize("damage", ["truncated", "longer", "sidecar gone", "sidecar cut", "sidecar changed"])
def test_file_that_its_sidecar_does_not_describe_is_damaged(
    store: BlobStore, tmp_path: Path, damage: str
) -> None:
    put(store)
    path = path_of(tmp_path)
    sidecar = path.with_name(path.name + ".sums")
    path.chmod(0o600)
    sidecar.chmod(0o600)
    if damage == "truncated":
        os.truncate(path, 10)
    elif damage == "longer":
        os.truncate(path, len(CONTENT) + 1)
    elif damage == "sidecar gone":
        sidecar.unlink()
    elif damage == "sidecar cut":
        os.truncate(sidecar, 20)
    else:
        sidecar.write_bytes(sidecar.read_bytes()[:-1] + b"\0")
    with pytest.raises(BlobDamaged):
        store.open(SHA256)
    assert not store.has(SHA256)


@pytest.mark.parametrize("level", ["ab", "cd", "blob", "sidecar"])
def test_link_is_not_followed_at_any_level(store: BlobStore, tmp_path: Path, level: str) -> None:
    put(store)
    path = path_of(tmp_path)
    sidecar = path.with_name(path.name + ".sums")
    linked = {"ab": path.parent.parent, "cd": path.parent, "blob": path, "sidecar": sidecar}[level]
    elsewhere = tmp_path / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)

    with pytest.raises(BlobDamaged):
        store.open(SHA256)
    assert not store.has(SHA256)
    assert list(store.iterate()) == ([SHA256] if level == "sidecar" else [])
    if level in ("ab", "cd"):
        with pytest.raises(Internal):
            put(store)
        with pytest.raises(Internal):
            store.delete(SHA256)
        assert SHA256 in [found.name for found in elsewhere.rglob("*")]


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_regular_file_is_damaged_and_hangs_nobody(
    store: BlobStore, tmp_path: Path, kind: str
) -> None:
    put(store)
    path = path_of(tmp_path)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BlobDamaged):
        store.open(SHA256)
    assert list(store.iterate()) == []


def test_damaged_blob_is_replaced_by_a_new_copy(store: BlobStore, tmp_path: Path) -> None:
    put(store)
    path = path_of(tmp_path)
    path.unlink()
    path.symlink_to("/etc/hostname")
    put(store)
    with store.open(SHA256) as blob:
        blob.verify_range(0, len(CONTENT))


def test_deleted_blob_is_gone_but_readers_go_on(store: BlobStore, tmp_path: Path) -> None:
    put(store)
    with store.open(SHA256) as blob:
        assert store.delete(SHA256)
        assert os.pread(blob.fd, len(CONTENT), 0) == CONTENT
    assert not store.has(SHA256)
    assert list(path_of(tmp_path).parent.iterdir()) == []


def test_quarantined_blob_is_out_of_service_until_purged(store: BlobStore) -> None:
    quarantine = Quarantine(store)
    for _ in range(2):
        put(store)
        assert quarantine.take(SHA256)
        assert not store.has(SHA256)
    assert [name for name, _ in quarantine.names()] == [SHA256]
    assert quarantine.purge(SHA256)
    assert not quarantine.purge(SHA256)
    assert quarantine.names() == []


class Faults:
    """A disk whose calls fail when told to."""

    def __init__(self) -> None:
        self.error_number = 0
        self.calls_left = 0

    def fail_after(self, calls: int, error_number: int) -> None:
        self.calls_left, self.error_number = calls, error_number

    def check(self) -> None:
        if self.error_number:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OSError(self.error_number, os.strerror(self.error_number))

    def pwrite(self, descriptor: int, buffer: Octets, offset: int) -> int:
        self.check()
        return os.pwrite(descriptor, memoryview(buffer)[:1000], offset)  # short writes, as the kernel may do

    def sync(self, descriptor: int) -> None:
        self.check()
        os.fsync(descriptor)

    def disk(self) -> Disk:
        return Disk(pwrite=self.pwrite, fsync=self.sync, fdatasync=self.sync)


@pytest.mark.parametrize(
    ("error_number", "told"), [(errno.ENOSPC, InsufficientStorage), (errno.EIO, Internal)]
)
def test_any_disk_call_may_fail_and_the_next_attempt_succeeds(
    tmp_path: Path, error_number: int, told: type[FilestoreError]
) -> None:
    faults = Faults()
    store = BlobStore(tmp_path / "data", disk=faults.disk())
    for calls in range(100):
        faults.fail_after(calls, error_number)
        try:
            put(store)
        except told:
            assert os.listdir(tmp_path / "data" / "uploads") == []
            faults.fail_after(0, 0)
            put(store)
            store.delete(SHA256)
        else:
            break
    faults.fail_after(0, 0)
    assert calls > 20
    with store.open(SHA256) as blob:
        blob.verify_range(0, len(CONTENT))
    store.close()


def test_sidecar_is_read_back_and_every_changed_byte_is_noticed() -> None:
    sums = SegmentSums(SEGMENT_BYTES + 1, b"0123456789abcdef")
    raw = encode_sidecar(sums)
    assert decode_sidecar(raw, SEGMENT_BYTES + 1) == sums
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 0x40
        with pytest.raises(SidecarInvalid):
            decode_sidecar(bytes(changed), SEGMENT_BYTES + 1)
    for size_bytes in (0, SEGMENT_BYTES, SEGMENT_BYTES + 2, 2**53 - 1):
        with pytest.raises(SidecarInvalid):
            decode_sidecar(raw, size_bytes)


@pytest.mark.parametrize("step", [1 << 20, (1 << 20) + 1, SEGMENT_BYTES, len(LARGE)])
def test_hashes_do_not_depend_on_how_the_bytes_came(step: int) -> None:
    whole, parts = SegmentHasher(), SegmentHasher()
    whole.update(LARGE)
    for start in range(0, len(LARGE), step):
        parts.update(memoryview(LARGE)[start : start + step])
    assert parts.sums() == whole.sums()
    assert parts.sha256() == whole.sha256() == LARGE_SHA256


def test_hasher_goes_back_to_a_checkpoint_in_an_earlier_segment() -> None:
    hasher = SegmentHasher()
    hasher.update(LARGE[:100])
    checkpoint = hasher.checkpoint()
    hasher.update(LARGE)
    hasher.restore(checkpoint)
    hasher.update(LARGE[100:])
    whole = SegmentHasher()
    whole.update(LARGE)
    assert hasher.sha256() == LARGE_SHA256
    assert hasher.sums() == whole.sums()


@pytest.mark.parametrize("kept", range(SLOT_BYTES + 1))
@pytest.mark.parametrize("before", [1, 2, 3])
def test_offset_record_torn_at_any_byte_keeps_the_older_offset(
    tmp_path: Path, kept: int, before: int
) -> None:
    def torn_write(fd: int, buffer: Octets, offset: int) -> int:
        os.pwrite(fd, memoryview(buffer)[:kept], offset)
        raise KeyboardInterrupt

    descriptor = os.open(tmp_path / "offset", os.O_RDWR | os.O_CREAT)
    record = OffsetRecord(descriptor, Disk())
    for number in range(1, before + 1):
        record.write(number * 100)
    with pytest.raises(KeyboardInterrupt):
        OffsetRecord(descriptor, Disk(pwrite=torn_write)).write(2**53 - 1)
    found = OffsetRecord(descriptor, Disk())
    assert found.offset == (2**53 - 1 if kept == SLOT_BYTES else before * 100)

    with pytest.raises(KeyboardInterrupt):  # and again, while the next start writes that slot once more
        OffsetRecord(descriptor, Disk(pwrite=torn_write)).confirm()
    assert OffsetRecord(descriptor, Disk()).offset == found.offset
    found.write(700)
    assert OffsetRecord(descriptor, Disk()).offset == 700
    record.close()


@given(st.binary(max_size=SLOT_BYTES + 4))
def test_noise_is_no_offset(raw: bytes) -> None:
    assert decode_offset(raw) == (0, 0)


WRITER = """
import random, sys
from pathlib import Path
from node.storage.blobs import BlobStore
from node.staging.upload_store import UploadStore
upload = UploadStore(BlobStore(Path(sys.argv[1]))).open(sys.argv[2], None)
source = random.Random(3)
source.randbytes(upload.offset)
while True:
    upload.append(source.randbytes(1 << 16))
    if upload.offset % (1 << 18) == 0:
        print(upload.sync(), flush=True)
"""


def test_killed_writer_leaves_every_acknowledged_byte(tmp_path: Path) -> None:
    acknowledged = 0
    for lines in (1, 3, 7):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "data"), UUID],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[4],
        ) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                acknowledged = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
            for line in writer.stdout:  # what it said between the last line read and its end
                acknowledged = int(line) if line.endswith(b"\n") else acknowledged
        store = BlobStore(tmp_path / "data")
        uploads = UploadStore(store)
        assert uploads.durable_offset(UUID) >= acknowledged
        with uploads.open(UUID, None) as upload:
            assert upload.offset >= acknowledged > 0
            content = random.Random(3).randbytes(upload.offset)
            assert upload.sha256 == hashlib.sha256(content).hexdigest()
            assert (tmp_path / "data" / "uploads" / UUID / "data").read_bytes() == content
        uploads.close()
        store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_disk_that_is_really_full_refuses_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    store = BlobStore(small_disk / "data")
    uploads = UploadStore(store)
    with uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.sync()
        with pytest.raises(InsufficientStorage):
            upload.append(b"\0" * (3 << 20))
        assert upload.offset == upload.durable_offset == len(CONTENT)
        upload.finish(SHA256)
    with store.receive("0" * 64, 3 << 20) as writer, pytest.raises(InsufficientStorage):
        writer.write(b"\0" * (3 << 20))
    assert 1 << 20 < store.free_bytes() < store.total_bytes() == 2 << 20
    with store.open(SHA256) as blob:
        blob.verify_range(0, len(CONTENT))
    uploads.close()
    store.close()


def test_one_process_at_a_time_places_blobs(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    ours, theirs = PlacingLock(directory), PlacingLock(directory)  # as two processes have it open
    try:
        with ours, pytest.raises(BlockingIOError):
            fcntl.flock(theirs._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with theirs:
            pass
    finally:
        ours.close()
        theirs.close()
        os.close(directory)


def test_levels_of_the_store_are_synced_once_by_a_process_and_again_when_they_are_made_anew(
    machine: Machine,
) -> None:
    name = hashlib.sha256(b"abcd").hexdigest()
    leaf = machine.directory / "blobs" / name[:2] / name[2:4]
    levels = [leaf.parent.parent, leaf.parent, leaf]

    def stored() -> list[Path]:
        machine.faults.synced.clear()
        with machine.blobs.receive(name, 4) as writer:
            writer.write(b"abcd")
            writer.finish()
        return [path for path, _ in machine.faults.synced]

    assert stored() == levels
    assert stored() == levels[2:]
    machine.blobs.delete(name)
    leaf.rmdir()
    assert stored() == levels[1:]
    machine.restart()
    assert stored() == levels  # a process that was killed may have made them

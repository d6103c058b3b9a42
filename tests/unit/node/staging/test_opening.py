"""Uploads that are opened again are hashed once, in steps, and large ones do not hold up the others."""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ca.errors import Unavailable
from node.diskio.executor import LONG_JOBS_MAX, DiskWorkers
from node.staging import resumed_hash
from node.staging.resumed_hash import HashedUploads, open_in_steps
from node.staging.upload_file import UploadFile
from node.staging.upload_store import UploadStore
from node.storage import segments
from node.storage.blobs import BlobStore
from node.storage.segments import SegmentHasher

MIB = 1 << 20
CONTENT = os.urandom(9 * MIB + 17)
DEADLINE_S = 60.0


def name(number: int) -> str:
    return f"0199c5a2-0000-7000-8000-{number:012d}"


class Reads:
    """How many bytes were read to be hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size_bytes = 0
        update_from = SegmentHasher.update_from

        def counted(hasher: SegmentHasher, descriptor: int, stop: int) -> None:
            before = hasher.size_bytes
            update_from(hasher, descriptor, stop)
            self.size_bytes += hasher.size_bytes - before

        monkeypatch.setattr(segments.SegmentHasher, "update_from", counted)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[BlobStore]:
    store = BlobStore(tmp_path)
    yield store
    store.close()


def fill(uploads: UploadStore, number: int, content: bytes = CONTENT) -> None:
    with uploads.open(name(number), None) as upload:
        upload.append(content)
        upload.sync()


def test_more_uploads_than_are_kept_open_are_not_hashed_at_each_piece(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, uploads = Reads(monkeypatch), UploadStore(blobs, open_max=2)
    contents = dict.fromkeys(range(6), b"")
    for piece in range(5):
        for number in contents:
            part = os.urandom(MIB + piece)
            with uploads.open(name(number), None) as upload:
                assert upload.offset == len(contents[number])
                upload.append(part)
                upload.sync()
            contents[number] += part
    for number, content in contents.items():
        with uploads.open(name(number), None) as upload:
            assert upload.finish().sha256 == hashlib.sha256(content).hexdigest()
    assert reads.size_bytes == 0
    uploads.close()


def test_bytes_that_were_never_durable_are_not_in_what_is_kept(blobs: BlobStore) -> None:
    uploads = UploadStore(blobs, open_max=1)
    fill(uploads, 1)
    upload = uploads.open(name(1), None)
    upload.append(b"not synced")
    upload.close()
    fill(uploads, 2)  # the first one's files are closed
    with uploads.open(name(1), None) as upload:
        assert (upload.offset, upload.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    uploads.close()


def test_upload_that_was_rolled_back_or_discarded_is_hashed_as_it_is_now(blobs: BlobStore) -> None:
    uploads = UploadStore(blobs, open_max=1)
    for number, stop in ((1, MIB), (2, 0)):
        fill(uploads, number)
        with uploads.open(name(number), None) as upload:
            upload.rollback_to(stop)
            upload.append(b"others")
            upload.sync()
        fill(uploads, 9, b"")
        with uploads.open(name(number), None) as upload:
            assert upload.sha256 == hashlib.sha256(CONTENT[:stop] + b"others").hexdigest()
    uploads.discard(name(1))
    with uploads.open(name(1), None) as upload:
        assert (upload.offset, upload.sha256) == (0, hashlib.sha256().hexdigest())
    uploads.close()


def test_states_are_bounded_by_their_number_and_their_size() -> None:
    states = HashedUploads(states_max=2, segments_max=3)
    hashers = {}
    for number, size in enumerate((0, 0, 0, 2 * segments.SEGMENT_BYTES, 2 * segments.SEGMENT_BYTES)):
        hashers[number] = SegmentHasher()
        hashers[number].update(bytes(size))
        states.keep(name(number), hashers[number])
    assert [states.take(name(number)) for number in range(5)] == [None, None, None, None, hashers[4]]


async def test_large_uploads_do_not_hold_up_one_behind_them(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as hash at a time, in many steps each: the small one has its turn after one step of each."""
    monkeypatch.setattr(resumed_hash, "STEP_BYTES", MIB)
    uploads = UploadStore(blobs)
    for number in range(LONG_JOBS_MAX):
        fill(uploads, number)
    fill(uploads, 99, CONTENT[:1000])
    uploads.close()
    disk, uploads, ended = DiskWorkers(), UploadStore(blobs), []

    async def opened(number: int) -> None:
        def step(bytes_max: int) -> UploadFile:
            return uploads.open(name(number), None, hash_bytes_max=bytes_max)

        upload = await open_in_steps(disk, step)
        ended.append(number)
        assert upload.offset == (1000 if number == 99 else len(CONTENT))
        upload.close()

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(opened(number) for number in (*range(LONG_JOBS_MAX), 99)))
    assert ended[0] == 99
    uploads.close()
    disk.close()


async def test_opening_ends_in_time_and_the_next_one_goes_on_there(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumed_hash, "STEP_BYTES", MIB)
    uploads = UploadStore(blobs)
    fill(uploads, 1)
    uploads.close()
    reads, disk, uploads = Reads(monkeypatch), DiskWorkers(), UploadStore(blobs)

    def step(bytes_max: int) -> UploadFile:
        return uploads.open(name(1), None, hash_bytes_max=bytes_max)

    refused = 0
    while True:
        try:
            upload = await open_in_steps(disk, step, within_s=0.0)
            break
        except Unavailable:
            refused += 1
    assert refused == len(CONTENT) // MIB
    assert upload.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert reads.size_bytes == len(CONTENT)
    upload.close()
    uploads.close()
    disk.close()

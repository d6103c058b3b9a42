"""Partial replicas on disk: what is found again, what is begun anew, who holds them, and when they go."""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ca.errors import ChecksumMismatch, InsufficientStorage, Internal, Unavailable
from node.diskio.durable import Disk
from node.storage.blobs import BlobStore
from node.storage.partial_blob import HEADER_BYTES, RECORD_BYTES, Partial, SegmentMismatch
from node.storage.partial_store import PartialStore
from node.storage.segments import SEGMENT_BYTES, FinishedBlob, SegmentHasher, SegmentSums

CONTENT = os.urandom(2 * SEGMENT_BYTES + 1000)


def hashed(content: bytes) -> tuple[FinishedBlob, SegmentSums]:
    hasher = SegmentHasher()
    hasher.update(content)
    return FinishedBlob(hasher.sha256(), len(content)), hasher.sums()


BLOB, SUMS = hashed(CONTENT)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[BlobStore]:
    store = BlobStore(tmp_path)
    yield store
    store.close()


@pytest.fixture
def store(blobs: BlobStore) -> PartialStore:
    return PartialStore(blobs)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "partials" / BLOB.sha256


def segment(index: int) -> bytes:
    return CONTENT[index * SEGMENT_BYTES : (index + 1) * SEGMENT_BYTES]


def put(partial: Partial, *indexes: int) -> None:
    for index in indexes:
        partial.writer(index, index + 1).write(segment(index))
        partial.keep(index, index + 1)


def leave(store: PartialStore, *indexes: int) -> None:
    """What a fetch leaves that got so far."""
    partial = store.open(BLOB, SUMS)
    put(partial, *indexes)
    partial.close()


def missing(store: PartialStore) -> list[tuple[int, int]]:
    partial = store.open(BLOB, SUMS)
    try:
        return partial.missing_segments()
    finally:
        partial.close()


def test_segments_that_were_kept_are_found_again(store: PartialStore) -> None:
    leave(store, 2, 0)
    partial = store.open(BLOB, SUMS)
    assert (partial.missing_segments(), partial.prefix_bytes) == ([(1, 2)], SEGMENT_BYTES)
    assert partial.lacking_bytes == SEGMENT_BYTES
    partial.close()


def test_segment_that_was_written_and_not_kept_has_to_come_again(store: PartialStore) -> None:
    partial = store.open(BLOB, SUMS)
    partial.writer(0, 1).write(segment(0))
    partial.close()
    assert missing(store) == [(0, 3)]


def test_whole_content_becomes_the_blob_and_leaves_nothing(
    store: PartialStore, blobs: BlobStore, directory: Path
) -> None:
    leave(store, 1)
    partial, hasher = store.open(BLOB, SUMS), SegmentHasher()
    put(partial, 0, 2)
    partial.hash_until(hasher, BLOB.size_bytes)
    partial.install(hasher)
    partial.close()
    with blobs.open(BLOB.sha256) as blob:
        blob.verify_range(0, len(CONTENT))
        assert (os.pread(blob.fd, len(CONTENT), 0), blob.sums) == (CONTENT, SUMS)
        assert os.fstat(blob.fd).st_mode & 0o777 == 0o400
    assert not directory.exists()


def test_content_that_is_not_the_blob_is_not_installed(store: PartialStore, blobs: BlobStore) -> None:
    other = FinishedBlob(hashlib.sha256(b"other").hexdigest(), BLOB.size_bytes)
    partial, hasher = store.open(other, SUMS), SegmentHasher()
    put(partial, 0, 1, 2)
    partial.hash_until(hasher, other.size_bytes)
    with pytest.raises(ChecksumMismatch):
        partial.install(hasher)
    partial.close()
    assert not blobs.has(other.sha256)
    assert not blobs.has(BLOB.sha256)


@pytest.mark.parametrize("cut", range(1, RECORD_BYTES))
def test_torn_record_counts_as_never_written(store: PartialStore, directory: Path, cut: int) -> None:
    leave(store, 0, 1)
    state = directory / "state"
    os.truncate(state, state.stat().st_size - cut)
    assert missing(store) == [(1, 3)]
    leave(store, 2)  # written over the torn one
    assert missing(store) == [(1, 2)]


def rewrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def flip_record(directory: Path) -> None:
    rewrite(directory / "state", HEADER_BYTES + 3, b"\xff")


def tear_header(directory: Path) -> None:
    os.truncate(directory / "state", HEADER_BYTES - 1)


def flip_header(directory: Path) -> None:
    rewrite(directory / "state", 20, b"\xff\xff")


def empty_state(directory: Path) -> None:
    os.truncate(directory / "state", 0)


def flood_state(directory: Path) -> None:
    os.truncate(directory / "state", 1 << 20)


def cut_content(directory: Path) -> None:
    os.truncate(directory / "content", SEGMENT_BYTES - 1)


def lengthen_content(directory: Path) -> None:
    os.truncate(directory / "content", len(CONTENT) + 1)


def remove_content(directory: Path) -> None:
    (directory / "content").unlink()


def remove_state(directory: Path) -> None:
    (directory / "state").unlink()


def link_content(directory: Path) -> None:
    (directory / "content").rename(directory.parent / "elsewhere")
    (directory / "content").symlink_to(directory.parent / "elsewhere")


def pipe_for_state(directory: Path) -> None:
    (directory / "state").unlink()
    os.mkfifo(directory / "state")


def file_in_its_place(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    directory.write_bytes(b"?")


DAMAGES = [
    flip_record,
    tear_header,
    flip_header,
    empty_state,
    flood_state,
    cut_content,
    lengthen_content,
    remove_content,
    remove_state,
    link_content,
    pipe_for_state,
    file_in_its_place,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_no_sound_partial_is_begun_anew(
    store: PartialStore, directory: Path, damage: Callable[[Path], None]
) -> None:
    leave(store, 0)
    damage(directory)
    assert missing(store) == [(0, 3)]
    leave(store, 0)
    assert missing(store) == [(1, 3)]


def test_nothing_is_written_through_a_link(store: PartialStore, directory: Path) -> None:
    leave(store, 0)
    link_content(directory)
    before = (directory.parent / "elsewhere").read_bytes()
    leave(store, 1)
    assert (directory.parent / "elsewhere").read_bytes() == before


def test_partial_of_other_checksums_is_begun_anew(store: PartialStore) -> None:
    leave(store, 0)
    other = SegmentSums(SUMS.size_bytes, bytes(len(SUMS.digests)))
    partial = store.open(BLOB, other)
    assert partial.missing_segments() == [(0, 3)]
    partial.close()


def test_foreign_files_in_a_partial_do_not_last(store: PartialStore, directory: Path) -> None:
    leave(store, 0)
    (directory / "stranger").write_bytes(b"?")
    leave(store, 1, 2)
    partial, hasher = store.open(BLOB, SUMS), SegmentHasher()
    partial.hash_until(hasher, BLOB.size_bytes)
    partial.install(hasher)
    partial.close()
    assert not directory.exists()


def test_foreign_names_beside_partials_are_left_alone(store: PartialStore, directory: Path) -> None:
    stranger = directory.parent / "README"
    stranger.write_bytes(b"?")
    assert store.clean(0) == 0
    assert stranger.exists()


def test_wrong_bytes_are_noticed_at_the_end_of_their_segment(store: PartialStore) -> None:
    partial = store.open(BLOB, SUMS)
    writer = partial.writer(0, 3)
    with pytest.raises(SegmentMismatch) as caught:
        writer.write(segment(0) + bytes(SEGMENT_BYTES))
    assert (caught.value.index, writer.verified) == (1, 1)
    partial.close()


def test_bytes_beyond_the_span_are_refused(store: PartialStore) -> None:
    partial = store.open(BLOB, SUMS)
    with pytest.raises(SegmentMismatch):
        partial.writer(2, 3).write(segment(2) + b"x")
    partial.close()


def test_bytes_may_come_in_pieces_of_any_size(store: PartialStore) -> None:
    partial = store.open(BLOB, SUMS)
    writer = partial.writer(0, 3)
    for start in range(0, len(CONTENT), 300_007):
        assert not writer.is_complete
        writer.write(CONTENT[start : start + 300_007])
    assert (writer.is_complete, writer.verified) == (True, 3)
    partial.close()


def test_partial_has_one_holder_at_a_time_in_all_processes(blobs: BlobStore, store: PartialStore) -> None:
    partial, second = store.open(BLOB, SUMS), PartialStore(blobs)
    with pytest.raises(Unavailable):
        second.open(BLOB, SUMS)
    assert second.clean(0) == 0
    partial.close()
    second.open(BLOB, SUMS).close()


def test_old_partial_goes_and_a_young_one_stays(store: PartialStore, directory: Path) -> None:
    leave(store, 0)
    assert store.clean() == 0
    two_days_ago = directory.stat().st_mtime - 2 * 86_400
    os.utime(directory / "state", (two_days_ago, two_days_ago))
    assert store.clean() == 1
    assert not directory.exists()


def test_oldest_idle_partial_makes_room_for_a_new_one(blobs: BlobStore, tmp_path: Path) -> None:
    store = PartialStore(blobs, partials_max=2)
    made = [hashed(str(number).encode()) for number in range(4)]
    for number, (blob, sums) in enumerate(made[:2]):
        store.open(blob, sums).close()
        os.utime(tmp_path / "partials" / blob.sha256 / "state", (number, number))
    held = [store.open(*made[2]), store.open(*made[1])]
    assert {path.name for path in (tmp_path / "partials").iterdir()} == {made[n][0].sha256 for n in (1, 2)}
    with pytest.raises(Unavailable):
        store.open(*made[3])
    for partial in held:
        partial.close()


def test_partial_that_was_sealed_before_a_crash_can_be_gone_on_with(
    store: PartialStore, directory: Path
) -> None:
    leave(store, 0, 1, 2)
    (directory / "content").chmod(0o400)
    partial = store.open(BLOB, SUMS)
    assert partial.missing_segments() == []
    assert (directory / "content").stat().st_mode & 0o777 == 0o600
    partial.close()


class FullStore(BlobStore):
    """A disk that has as much room as a test says."""

    left_bytes = 1 << 40

    def free_bytes(self) -> int:
        return self.left_bytes

    def total_bytes(self) -> int:
        return 1 << 40


def test_reserve_is_kept_before_and_while_a_replica_comes(tmp_path: Path) -> None:
    blobs = FullStore(tmp_path)
    store = PartialStore(blobs)
    blobs.left_bytes = (64 << 20) + len(CONTENT) - 1
    with pytest.raises(InsufficientStorage):
        store.open(BLOB, SUMS)
    blobs.left_bytes += 1
    partial = store.open(BLOB, SUMS)
    other = FinishedBlob(hashlib.sha256(b"other").hexdigest(), BLOB.size_bytes)
    with pytest.raises(InsufficientStorage):  # the room is promised to the first one
        store.open(other, SUMS)
    put(partial, 0)
    blobs.left_bytes -= 2 * SEGMENT_BYTES  # somebody else wrote as much
    with pytest.raises(InsufficientStorage):
        partial.writer(1, 2)
    partial.close()
    blobs.close()


def test_idle_partials_go_when_their_room_is_needed(tmp_path: Path, directory: Path) -> None:
    class Crowded(BlobStore):
        def free_bytes(self) -> int:
            return 0 if directory.exists() else 1 << 40

    blobs = Crowded(tmp_path)
    store = PartialStore(blobs)
    directory.mkdir()
    (directory / "content").write_bytes(b"idle")
    store.open(*hashed(b"wanted")).close()
    assert not directory.exists()
    blobs.close()


def test_failed_sync_is_never_followed_by_a_success(tmp_path: Path) -> None:
    failing = [False]

    def fdatasync(descriptor: int) -> None:
        if failing[0]:
            failing[0] = False  # the kernel reports it once
            raise OSError(errno.EIO, "broken")
        os.fdatasync(descriptor)

    blobs = BlobStore(tmp_path, disk=Disk(fdatasync=fdatasync))
    store = PartialStore(blobs)
    partial = store.open(BLOB, SUMS)
    put(partial, 0)
    for index in (1, 2):
        partial.writer(index, index + 1).write(segment(index))
    failing[0] = True
    for index in (1, 2):  # what the other's pages hold nobody knows either
        with pytest.raises(Internal):
            partial.keep(index, index + 1)
    partial.close()
    assert missing(store) == [(1, 3)]
    blobs.close()

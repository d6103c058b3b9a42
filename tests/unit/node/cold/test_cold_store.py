"""The cold form of a replica, as the store shows it: whatever holds of a file holds of it."""

import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ca.errors import FilestoreError
from node.cold.chunks import ChunkMissing, ChunkStore
from node.cold.cutting import ChunkCutter
from node.custody.freezing import NotFrozen
from node.diskio.durable import Disk
from node.storage.blobs import BlobStore
from node.storage.cold_blobs import OpenColdBlob
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged, BlobMissing, FinishedBlob, segment_digest
from tests.unit.cold_store import (
    collect_all,
    freeze,
    is_cold,
    put_file,
    read,
    stored_bytes,
    thaw,
    version,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    with closing(BlobStore(tmp_path)) as opened:
        yield opened


def test_versions_cost_what_changed_and_are_read_as_they_were(store: BlobStore, tmp_path: Path) -> None:
    contents = [version(number) for number in range(4)]
    names = [put_file(store, content) for content in contents]
    freeze(store, names[0])
    first_bytes = stored_bytes(tmp_path)
    freeze(store, *names[1:])
    assert first_bytes < 0.6 * len(contents[0])  # half of it is text
    assert stored_bytes(tmp_path) < 3 * first_bytes
    for name, content in zip(names, contents, strict=True):
        assert is_cold(store, name)
        assert read(store, name) == content
        assert store.size_bytes(name) == len(content)
        assert store.has(name)
    assert list(store.iterate()) == sorted(names)


def test_cold_blob_becomes_a_file_again_and_its_chunks_go(store: BlobStore, tmp_path: Path) -> None:
    contents = [version(number) for number in range(2)]
    names = [put_file(store, content) for content in contents]
    freeze(store, *names)
    thaw(store, names[0])
    assert not store.cold.has_name(names[0])
    assert (tmp_path / "blobs" / names[0][:2] / names[0][2:4] / names[0]).read_bytes() == contents[0]
    chunks = store.cold.chunks.totals()[0]
    assert 0 < collect_all(store).removed < chunks
    assert read(store, names[1]) == contents[1]
    thaw(store, names[1])
    collect_all(store)
    assert store.cold.chunks.totals() == (0, 0)


def test_ranges_and_segments_are_those_of_the_file(store: BlobStore) -> None:
    content = version(0, size_bytes=9_000_001)
    name = put_file(store, content)
    with store.open(name) as hot:
        sums = hot.sums
    freeze(store, name)
    with store.open(name) as blob:
        assert blob.sums == sums
        for start, stop in [(0, 1), (8_999_999, 9_000_001), (4_194_303, 4_194_306), (1, 9_000_000)]:
            at, found = start, b""
            while at < stop:
                piece = blob.pread(stop - at, at)
                found += piece
                at += len(piece)
            assert found == content[start:stop]
        assert [segment_digest(blob.read_segment(index) or b"") for index in range(3)] == [
            sums.digest(index) for index in range(3)
        ]
        assert blob.read_segment(3) is None
        with open(blob.whole_descriptor(), "rb") as file:
            assert file.read() == content


@pytest.mark.parametrize(("pause_s", "ready_bytes"), [(0, 6 << 20), (0.03, 3 << 20)])
def test_what_is_decoded_ahead_is_bounded(store: BlobStore, pause_s: float, ready_bytes: int) -> None:
    """A reader that pauses this long takes less than 20 MB/s."""
    content = version(0, size_bytes=20_000_000)
    name = put_file(store, content)
    freeze(store, name)
    with store.open(name) as blob:
        assert isinstance(blob, OpenColdBlob)
        at = 0
        while at < blob.size_bytes:
            until = blob.verified_stop(at, blob.size_bytes)
            assert not blob.is_trusted(at, until)
            blob.verify_range(at, until)
            assert blob.is_trusted(at, until)
            assert blob.ready_bytes <= ready_bytes
            time.sleep(pause_s)
            at = until


def test_deletion_removes_both_forms(store: BlobStore) -> None:
    name = put_file(store, version(0))
    freeze(store, name)
    assert not store.delete(name, unless=lambda: True)
    assert store.has(name)
    assert store.delete(name)
    assert not store.has_name(name)
    assert not store.delete(name)
    collect_all(store)
    assert store.cold.chunks.totals()[0] == 0


def test_affirmation_survives_freezing_and_marks_a_cold_blob(store: BlobStore) -> None:
    name = put_file(store, version(0))
    sidecar = next(Path(f"/proc/self/fd/{store._blobs}").resolve().rglob("*.sums"))
    os.utime(sidecar, (1000, 1000))
    freeze(store, name)
    assert store.affirmed_at_s(name) == 1000
    mark = store.mark(name)
    assert store.affirm(name)
    assert store.affirmed_at_s(name) > 1000
    assert mark is not None
    assert store.mark(name) != mark


def test_content_that_arrives_again_takes_the_place_of_the_cold_form(store: BlobStore) -> None:
    content = version(0)
    name = put_file(store, content)
    freeze(store, name)
    put_file(store, content)
    assert store.has_file(name)
    assert not store.cold.has_name(name)
    assert read(store, name) == content


def test_content_that_arrives_again_while_it_turns_cold_stays_a_file(store: BlobStore) -> None:
    content = version(0)
    name = put_file(store, content)
    place = store.replace_by_cold

    def arrives_first(sha256: str, *, file: tuple[int, int], manifest: tuple[int, int]) -> bool:
        put_file(store, content)
        return place(sha256, file=file, manifest=manifest)

    store.replace_by_cold = arrives_first  # type: ignore[method-assign]
    with pytest.raises(NotFrozen):
        freeze(store, name)
    assert store.has_file(name)
    assert read(store, name) == content


def test_blob_that_is_deleted_while_it_turns_cold_does_not_come_back(store: BlobStore) -> None:
    name = put_file(store, version(0))
    writer = store.cold.writer

    def deletes_then_writes(blob: object) -> object:
        store.delete(name)
        return writer(blob)  # type: ignore[arg-type]

    store.cold.writer = deletes_then_writes  # type: ignore[method-assign, assignment]
    with pytest.raises(NotFrozen):
        freeze(store, name)
    assert not store.has_name(name)


def test_file_with_other_content_than_its_name_does_not_turn_cold(store: BlobStore, tmp_path: Path) -> None:
    name = put_file(store, version(0))
    path = tmp_path / "blobs" / name[:2] / name[2:4] / name
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"other")
    with pytest.raises(BlobDamaged):
        freeze(store, name)
    assert not store.cold.has_name(name)
    assert path.exists()


def test_rotten_chunk_is_stored_again_by_the_next_replica_that_has_it(
    store: BlobStore, tmp_path: Path
) -> None:
    first, second = version(0), version(1)
    names = [put_file(store, content) for content in (first, second)]
    freeze(store, names[0])
    damage_packs(tmp_path)
    with pytest.raises(BlobDamaged) as raised:
        read(store, names[0])
    assert raised.value.chunk
    freeze(store, names[1])
    assert read(store, names[1]) == second


def test_damaged_manifest_is_damage_and_quarantine_keeps_what_is_sound(
    store: BlobStore, tmp_path: Path
) -> None:
    content = version(0, size_bytes=9_000_000)
    name = put_file(store, content)
    freeze(store, name)
    damage_packs(tmp_path, every=1_500_000)
    quarantine = Quarantine(store)
    assert quarantine.take(name)
    assert not store.has_name(name)
    kept = quarantine.open(name)
    assert kept is not None
    with kept:
        kept.read(kept.size_bytes)
        assert not kept.put_back()
        assert kept.wrong_spans()
        sound = [
            index
            for index in range(3)
            if (found := kept.read_segment(index)) is not None
            and found == content[index * 4_194_304 : (index + 1) * 4_194_304]
        ]
        assert len(sound) < 3
    name = put_file(store, version(1))
    freeze(store, name)
    (tmp_path / "cold" / name[:2] / name).chmod(0o600)
    (tmp_path / "cold" / name[:2] / name).write_bytes(b"no manifest")
    with pytest.raises(BlobDamaged):
        store.open(name)
    assert quarantine.take(name)
    assert not store.has_name(name)


def test_sound_blob_comes_back_from_quarantine(store: BlobStore) -> None:
    content = version(0)
    name = put_file(store, content)
    freeze(store, name)
    quarantine = Quarantine(store)
    assert not quarantine.take(name, unless=lambda: True)
    assert quarantine.take(name)
    kept = quarantine.open(name)
    assert kept is not None
    with kept:
        kept.read(kept.size_bytes)
        assert kept.put_back()
    assert read(store, name) == content


def test_reader_of_a_blob_that_was_removed_is_told_that_it_is_missing(store: BlobStore) -> None:
    name = put_file(store, version(0))
    freeze(store, name)
    with store.open(name) as blob:
        store.delete(name)
        collect_all(store)
        with pytest.raises(BlobMissing):
            blob.pread(1, 0)


def test_full_disk_leaves_the_file(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name = put_file(store, version(0))
    monkeypatch.setattr(store, "room_bytes", lambda: 1000)
    with pytest.raises(FilestoreError):
        freeze(store, name)
    assert store.has_file(name)
    assert os.listdir(store.cold.manifests.drafts) == []


def test_draft_keeps_its_chunks_and_one_of_a_dead_process_does_not(store: BlobStore) -> None:
    content = version(0)
    chunk_id = hashlib.sha256(content[:100_000]).digest()
    chunks, blob = store.cold.chunks, put_file(store, content)
    with store.open(blob) as opened:
        facts = opened
    with store.cold.writer(FinishedBlob(facts.sha256, facts.size_bytes)) as writer:
        assert writer.add([(chunk_id, 100_000)]) == {chunk_id}
        writer.put([(chunk_id, content[:100_000])])
        collect_all(store)
        assert chunks.get(chunk_id) == content[:100_000]
        assert writer.add([(chunk_id, 100_000)]) == set()
    left = Path(f"/proc/self/fd/{store.cold.manifests.drafts}").resolve() / "left"
    left.write_bytes(bytes(54) + chunk_id + bytes(8))
    collect_all(store)
    assert not left.exists()
    with pytest.raises(ChunkMissing):
        chunks.get(chunk_id)


def damage_packs(tmp_path: Path, *, every: int = 40_000) -> None:
    """Change one byte in this many of each pack."""
    for pack in (tmp_path / "chunks").glob("*.pack"):
        with pack.open("r+b") as file:
            for at in range(every // 2, pack.stat().st_size - 100_000, every):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))


def exchange_rows(tmp_path: Path, ids: list[bytes]) -> None:
    """The rows of two chunks lead to each other's records, as after an old page of the index came back."""
    with closing(sqlite3.connect(tmp_path / "chunks" / "index.sqlite")) as db, db:
        columns = "pack, offset, length, digest, affirmed_at_ns"
        rows = [
            db.execute(f"SELECT {columns} FROM blobs WHERE sha256 = ?", (each,)).fetchone() for each in ids
        ]
        for chunk_id, row in zip(ids, reversed(rows), strict=True):
            db.execute("DELETE FROM blobs WHERE sha256 = ?", (chunk_id,))
            db.execute("INSERT INTO blobs VALUES (?, ?, ?, ?, ?, ?)", (chunk_id, *row))


@pytest.mark.parametrize("is_known", [True, False], ids=["trusted", "not read yet"])
def test_chunk_of_another_name_is_not_taken_for_it(tmp_path: Path, is_known: bool) -> None:
    contents = [os.urandom(100_000) for _ in range(2)]
    ids = [hashlib.sha256(content).digest() for content in contents]
    with closing(ChunkStore(tmp_path)) as chunks:
        chunks.put(list(zip(ids, contents, strict=True)))
        if is_known:
            exchange_rows(tmp_path, ids)
            with pytest.raises((ChunkMissing, OSError)):
                chunks.get(ids[0])
    if not is_known:
        exchange_rows(tmp_path, ids)
        with closing(ChunkStore(tmp_path)) as chunks, pytest.raises((ChunkMissing, OSError)):
            chunks.get(ids[0])


def test_index_of_chunks_that_is_damaged_is_rebuilt(tmp_path: Path) -> None:
    contents = [version(number) for number in range(2)]
    with closing(BlobStore(tmp_path)) as store:
        names = [put_file(store, content) for content in contents]
        freeze(store, *names)
    (tmp_path / "chunks" / "index.sqlite").write_bytes(b"no database" * 1000)
    with closing(BlobStore(tmp_path)) as store:
        assert [read(store, name) for name in names] == contents
        store.cold.chunks.packs.index.mark()
        assert not store.are_indexes_usable()
        with pytest.raises(FilestoreError):
            read(store, names[0])
        assert store.heal()
        assert [read(store, name) for name in names] == contents


class FailingDisk:
    """A disk of which the call of a kind fails, from the given number on."""

    def __init__(self) -> None:
        self.kind, self.left, self.number = "", 0, errno.ENOSPC

    def call(self, kind: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if kind == self.kind:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.number, os.strerror(self.number))
        return real(*arguments)

    def disk(self) -> Disk:
        return Disk(
            pwrite=lambda *arguments: self.call("pwrite", os.pwrite, *arguments),
            fsync=lambda *arguments: self.call("fsync", os.fsync, *arguments),
            fdatasync=lambda *arguments: self.call("fdatasync", os.fdatasync, *arguments),
        )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "fails"])
@pytest.mark.parametrize("kind", ["pwrite", "fsync", "fdatasync"])
def test_disk_that_fails_at_any_step_leaves_a_whole_replica(tmp_path: Path, kind: str, number: int) -> None:
    content, failing = version(0), FailingDisk()
    failing.number = number
    with closing(BlobStore(tmp_path, disk=failing.disk())) as store:
        name = put_file(store, content)
        for left in range(12):
            failing.kind, failing.left = kind, left
            with suppress(FilestoreError, OSError, BlobMissing):
                freeze(store, name)
            failing.kind = ""
            assert read(store, name) == content, left
            failing.kind, failing.left = kind, left
            with suppress(FilestoreError, OSError, BlobMissing):
                thaw(store, name)
            failing.kind = ""
            assert read(store, name) == content, left
            collect_all(store)
            assert read(store, name) == content, left
        assert os.listdir(store.cold.manifests.drafts) == []


def test_file_stays_if_it_or_its_manifest_was_replaced(store: BlobStore) -> None:
    name = put_file(store, version(0))
    file, _ = store.identity(name)
    assert not store.replace_by_cold(name, file=file, manifest=(1, 1))
    freeze(store, name)
    manifest, _ = store.cold.identity(name)
    before = store.cold.open(name)  # as the writer keeps it open: its inode is not used again
    put_file(store, version(0))
    file, _ = store.identity(name)
    with before, store.cold.writer(FinishedBlob(name, len(version(0)))) as writer:
        for chunk_id, piece in ChunkCutter().cut(version(0), is_last=True):
            writer.add([(chunk_id, len(piece))])
            writer.put([(chunk_id, piece)])
        for _ in writer.prove():
            pass
        assert writer.place() is not None
        assert not store.replace_by_cold(name, file=file, manifest=manifest)
        placed, _ = store.cold.identity(name)
        assert not store.replace_by_cold(name, file=(1, 1), manifest=placed)  # the content arrived again
    assert store.has_file(name)


def test_manifest_with_another_bit_is_damage(store: BlobStore, tmp_path: Path) -> None:
    name = put_file(store, version(0))
    freeze(store, name)
    path = tmp_path / "cold" / name[:2] / name
    raw = path.read_bytes()
    path.chmod(0o600)
    for at in (10, 60, 100, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(BlobDamaged):
            store.open(name)
    path.write_bytes(raw[:-50])
    with pytest.raises(BlobDamaged):
        store.open(name)


def test_chunk_that_was_affirmed_since_it_was_listed_stays(store: BlobStore) -> None:
    content = version(0)[:100_000]
    chunk_id = hashlib.sha256(content).digest()
    store.cold.chunks.put([(chunk_id, content)])
    (row,) = store.cold.chunks.rows(bytes(32), b"\xff" * 33)
    assert store.cold.chunks.affirm([chunk_id]) == {chunk_id}
    assert store.cold.chunks.remove([row]) == []
    (row,) = store.cold.chunks.rows(bytes(32), b"\xff" * 33)
    assert store.cold.chunks.remove([row]) == [row]


def test_blob_that_is_placed_while_chunks_are_listed_keeps_them(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = version(0)
    name = hashlib.sha256(content).hexdigest()
    writer = store.cold.writer(FinishedBlob(name, len(content)))
    for chunk_id, piece in ChunkCutter().cut(content, is_last=True):
        writer.add([(chunk_id, len(piece))])
        writer.put([(chunk_id, piece)])
    for _ in writer.prove():
        pass
    rows = store.cold.chunks.rows

    def places_then_lists(start: bytes, stop: bytes) -> Any:
        yield from rows(start, stop)
        assert writer.place() is not None
        writer.close()

    monkeypatch.setattr(store.cold.chunks, "rows", places_then_lists)
    collect_all(store)
    assert read(store, name) == content


@pytest.mark.parametrize("what", ["link", "directory", "empty", "forbidden"])
def test_what_is_no_manifest_in_its_place_is_damage_and_goes(
    store: BlobStore, tmp_path: Path, what: str
) -> None:
    name = put_file(store, version(0))
    freeze(store, name)
    path = tmp_path / "cold" / name[:2] / name
    path.unlink()
    match what:
        case "link":
            path.symlink_to("/etc/hostname")
        case "directory":
            path.mkdir()
            (path / "inner").write_bytes(b"x")
        case "empty":
            path.write_bytes(b"")
        case _:
            path.write_bytes(b"x" * 100)
    with pytest.raises(BlobDamaged) as damage:
        store.open(name)
    assert not store.has(name)
    assert Quarantine(store).take(name, damage.value)
    assert not store.has_name(name)
    assert list(store.iterate()) == []

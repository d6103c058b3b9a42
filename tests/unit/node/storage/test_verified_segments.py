"""Segments found sound are read once: in that file, in that state, and for an hour."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from node.storage.blobs import BlobStore
from node.storage.segments import SEGMENT_BYTES, BlobDamaged, OpenBlob
from node.storage.verified_segments import SETTLED_NS, TRUSTED_S, FileIdentity, TrustedSegments

CONTENT = bytes(range(256)) * (SEGMENT_BYTES // 256) + b"tail"
SHA256 = sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    opened = BlobStore(tmp_path / "data")
    put(opened)
    yield opened
    opened.close()


def put(store: BlobStore) -> None:
    with store.receive(SHA256, len(CONTENT)) as writer:
        writer.write(CONTENT)
        writer.finish()


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "data" / "blobs" / SHA256[:2] / SHA256[2:4] / SHA256


def settle(blob: OpenBlob) -> FileIdentity:
    """The file's identity, once a change would show in it."""
    identity = FileIdentity.of(blob.fd)
    while not identity.is_settled(time.time_ns()):
        os.sched_yield()
    return identity


def damage(path: Path) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"X")


@pytest.mark.parametrize("open_meanwhile", [True, False])
def test_file_that_was_written_to_is_read_again_though_it_was_trusted(
    store: BlobStore, tmp_path: Path, open_meanwhile: bool
) -> None:
    blob = store.open(SHA256)
    identity = settle(blob)
    blob.verify_range(0, len(CONTENT))
    assert store.trusted.contains(SHA256, 0, identity)
    assert store.trusted.contains(SHA256, 1, identity)
    damage(path_of(tmp_path))
    if not open_meanwhile:
        blob.close()
        blob = store.open(SHA256)
    with blob, pytest.raises(BlobDamaged) as caught:
        blob.verify_range(0, 10)
    assert caught.value.segment == 0


def test_file_put_in_its_place_is_read_though_the_old_one_was_trusted(
    store: BlobStore, tmp_path: Path
) -> None:
    with store.open(SHA256) as blob:
        settle(blob)
        blob.verify_range(0, 10)
    path = path_of(tmp_path)
    changed = b"X" + path.read_bytes()[1:]
    path.unlink()
    path.write_bytes(changed)
    with store.open(SHA256) as blob, pytest.raises(BlobDamaged):
        blob.verify_range(0, 10)


def test_file_that_changed_a_moment_ago_is_not_trusted_yet(store: BlobStore, tmp_path: Path) -> None:
    with store.open(SHA256) as blob:
        os.utime(path_of(tmp_path))
        identity = FileIdentity.of(blob.fd)
        assert not identity.is_settled(identity.changed_at_ns + SETTLED_NS)
        assert identity.is_settled(identity.changed_at_ns + SETTLED_NS + 1)


def test_segment_is_trusted_for_an_hour() -> None:
    now_s = [1000.0]
    trusted, identity = TrustedSegments(clock=lambda: now_s[0]), FileIdentity(1, 2, 3, 4, 5)
    trusted.add(SHA256, 0, identity)
    now_s[0] += TRUSTED_S - 1
    assert trusted.contains(SHA256, 0, identity)
    now_s[0] += 1
    assert not trusted.contains(SHA256, 0, identity)


@pytest.mark.parametrize(
    "changed",
    [
        FileIdentity(0, 2, 3, 4, 5),
        FileIdentity(1, 0, 3, 4, 5),
        FileIdentity(1, 2, 0, 4, 5),
        FileIdentity(1, 2, 3, 0, 5),
        FileIdentity(1, 2, 3, 4, 0),
    ],
)
def test_changed_identity_forgets_the_trust(changed: FileIdentity) -> None:
    trusted, identity = TrustedSegments(), FileIdentity(1, 2, 3, 4, 5)
    trusted.add(SHA256, 0, identity)
    trusted.add(SHA256, 1, identity)
    assert not trusted.contains(SHA256, 0, changed)
    assert not trusted.contains(SHA256, 1, identity)
    assert trusted._count == 0


def test_blob_that_came_again_or_went_is_not_trusted(store: BlobStore) -> None:
    identity = FileIdentity(1, 2, 3, 4, 5)
    for leave in (put, lambda opened: opened.delete(SHA256)):
        store.trusted.add(SHA256, 0, identity)
        leave(store)
        assert not store.trusted.contains(SHA256, 0, identity)


def test_trusted_segments_are_bounded() -> None:
    trusted, identity = TrustedSegments(segments_max=10), FileIdentity(1, 2, 3, 4, 5)
    for number in range(100):
        trusted.add(f"{number // 4:064x}", number % 4, identity)
    kept = [n for n in range(100) if trusted.contains(f"{n // 4:064x}", n % 4, identity)]
    assert kept == list(range(90, 100))


def test_trusted_segments_serve_many_threads() -> None:
    trusted = TrustedSegments(segments_max=50)

    def work(number: int) -> None:
        identity = FileIdentity(1, 2, 3, 4, number // 500)
        trusted.add(f"{number % 4:064x}", number % 60, identity)
        trusted.contains(f"{number % 3:064x}", number % 60, identity)
        if number % 50 == 0:
            trusted.forget(f"{number % 4:064x}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(2000)))
    assert 0 <= trusted._count <= 50
    assert trusted._count == sum(len(blob.found_at_s) for blob in trusted._blobs.values())

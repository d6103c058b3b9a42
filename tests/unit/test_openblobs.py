"""Blobs that are kept open: handed out while they are what they were, and closed when they are not."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.blobs import BlobStore
from node.openblobs import OpenBlobs
from node.quarantine import Quarantine

CONTENT = os.urandom(10_000)
NAME = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    opened = BlobStore(tmp_path)
    put(opened, CONTENT)
    yield opened
    opened.close()


def put(store: BlobStore, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    with store.receive(name, len(content)) as writer:
        writer.write(content)
        writer.finish()
    return name


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "blobs" / NAME[:2] / NAME[2:4] / NAME


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_blob_that_was_opened_to_be_kept_is_taken_without_the_store(store: BlobStore) -> None:
    assert store.opened.take(NAME) is None
    store.open_kept(NAME).close()
    with store.opened.take(NAME) or pytest.fail("not kept") as blob:
        assert os.pread(blob.fd, 20_000, 0) == CONTENT
        blob.verify_range(0, len(CONTENT))


def test_taken_blob_is_readable_after_the_kept_one_was_forgotten(store: BlobStore) -> None:
    with store.open_kept(NAME) as blob:
        store.opened.forget(NAME)
        assert os.pread(blob.fd, 20_000, 0) == CONTENT


@pytest.mark.parametrize("act", ["delete", "quarantine"])
def test_blob_that_goes_is_closed_at_once(store: BlobStore, act: str) -> None:
    before = descriptors()
    store.open_kept(NAME).close()
    assert descriptors() == before + 1
    assert Quarantine(store).take(NAME) if act == "quarantine" else store.delete(NAME)
    assert descriptors() == before
    assert store.opened.take(NAME) is None


def test_blob_that_is_replaced_is_closed_at_once(store: BlobStore) -> None:
    store.open_kept(NAME).close()
    put(store, CONTENT)
    assert len(store.opened) == 0


@pytest.mark.parametrize("act", ["unlinked", "renamed", "written", "linked"])
def test_file_that_others_changed_is_not_handed_out(store: BlobStore, tmp_path: Path, act: str) -> None:
    store.open_kept(NAME).close()
    path = path_of(tmp_path)
    if act == "unlinked":
        path.unlink()
    elif act == "renamed":
        path.rename(tmp_path / "elsewhere")
    elif act == "linked":
        (tmp_path / "elsewhere").hardlink_to(path)
    else:
        path.chmod(0o600)
        path.write_bytes(bytes(10_000))
    assert store.opened.take(NAME) is None
    assert len(store.opened) == 0


def test_file_that_went_between_opening_and_keeping_is_not_kept(store: BlobStore) -> None:
    forgotten = store.opened.forgotten
    with store.open(NAME) as blob:
        Quarantine(store).take(NAME)
        store.opened.keep(blob, forgotten=forgotten)
    assert len(store.opened) == 0


def test_file_without_a_name_is_not_kept(store: BlobStore, tmp_path: Path) -> None:
    with store.open(NAME) as blob:
        path_of(tmp_path).unlink()
        store.opened.keep(blob, forgotten=store.opened.forgotten)
    assert len(store.opened) == 0


def test_blob_used_longest_ago_is_closed_first(tmp_path: Path) -> None:
    store, kept = BlobStore(tmp_path), OpenBlobs(blobs_max=2)
    names = [put(store, content) for content in (b"a", b"b", b"c")]
    before = descriptors()
    for name in names[:2]:
        with store.open(name) as blob:
            kept.keep(blob, forgotten=kept.forgotten)
    (kept.take(names[0]) or pytest.fail("not kept")).close()
    with store.open(names[2]) as blob:
        kept.keep(blob, forgotten=kept.forgotten)
    assert descriptors() == before + 2
    assert kept.take(names[1]) is None
    kept.close()
    assert descriptors() == before
    store.close()

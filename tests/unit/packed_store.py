"""Blobs that are put into a store, packed or not, and read again."""

import hashlib
import os
from pathlib import Path

from node.storage.blobs import BlobStore

CONTENT = os.urandom(5_000)
NAME = hashlib.sha256(CONTENT).hexdigest()


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(store: BlobStore, content: bytes, *, packed: bool = True) -> str:
    name, before = name_of(content), store.packed.takes_new
    store.packed.takes_new = lambda: packed
    with store.receive(name, len(content)) as writer:
        writer.write(content)
        writer.finish()
    store.packed.takes_new = before
    return name


def rewrite_all(store: BlobStore) -> int:
    packs = store.packed.store
    packs.seal()
    return sum(packs.rewrite(pack) for pack in packs.index.packs())


def read(store: BlobStore, name: str) -> bytes:
    with store.open(name) as blob:
        return os.pread(blob.fd, blob.size_bytes + 1, 0)


def path_of(directory: Path, name: str) -> Path:
    return directory / "blobs" / name[:2] / name[2:4] / name

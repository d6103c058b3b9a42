"""Blobs that are put into a store, packed or not, and read again."""

import hashlib
import os
from pathlib import Path

from node.packs.rows import PackFacts
from node.packs.store import PackStore
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


def rewrite(packs: PackStore, pack: PackFacts) -> int:
    """Copy what counts of a sealed pack, and remove it: bytes given back, 0 where it has to stay."""
    written_bytes, at = 0, 0
    while step := packs.copy_some(pack.number, at):
        at, copied_bytes = step
        written_bytes += copied_bytes
    dropped_bytes = packs.drop_if_empty(pack.number)
    return dropped_bytes - written_bytes if dropped_bytes else 0


def compare(packs: PackStore) -> None:
    """Compare the index with itself and with every pack, as the scrub does. Raises IndexDamaged."""
    packs.index.require_sound()
    for pack in packs.index.packs():
        packs.check_pack(pack)


def rewrite_all(store: BlobStore) -> int:
    packs = store.packed.store
    packs.seal()
    return sum(rewrite(packs, pack) for pack in packs.index.packs())


def read(store: BlobStore, name: str) -> bytes:
    with store.open(name) as blob:
        return os.pread(blob.fd, blob.size_bytes + 1, 0)


def path_of(directory: Path, name: str) -> Path:
    return directory / "blobs" / name[:2] / name[2:4] / name

"""Contents with much in common, in a store that turns them cold and hot again, without a node around it."""

import asyncio
import hashlib
import random
from pathlib import Path
from typing import Final

from node.cold.collection import CollectedChunks, collect
from node.custody import freezing
from node.diskio.durable import Disk
from node.diskio.executor import DiskWorkers
from node.storage.blobs import BlobStore

SIZE_BYTES: Final = 3_000_000
BLOCK_BYTES: Final = 4096


def version(number: int, *, of: int = 0, size_bytes: int = SIZE_BYTES) -> bytes:
    """A version of a disk: half of it text, half of it random; every version changes a few blocks."""
    rand = random.Random(of)
    text = b"".join(
        b"interface Gi0/%d is up %x\n" % (line % 48, rand.getrandbits(32)) for line in range(4000)
    )
    content = bytearray((text * (size_bytes // (2 * len(text)) + 1))[: size_bytes // 2])
    content += rand.randbytes(size_bytes - len(content))
    for each in range(number):
        change = random.Random(1000 * of + each)
        for _ in range(max(1, size_bytes // BLOCK_BYTES // 100)):
            at = change.randrange(size_bytes // BLOCK_BYTES) * BLOCK_BYTES
            content[at : at + BLOCK_BYTES] = change.randbytes(BLOCK_BYTES)
    return bytes(content)


def put_file(store: BlobStore, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    with store.receive(name, len(content)) as writer:
        writer.write(content)
        writer.finish()
    return name


async def no_pace(_size_bytes: int) -> None:
    """Go on at once."""


def freeze(store: BlobStore, *names: str) -> list[freezing.Frozen]:
    """Turn these cold, as custody does."""

    async def work(workers: DiskWorkers) -> list[freezing.Frozen]:
        return [await freezing.freeze(workers, store, name, pace=no_pace) for name in names]

    workers = DiskWorkers()
    try:
        return asyncio.run(work(workers))
    finally:
        workers.close()


def thaw(store: BlobStore, *names: str) -> None:
    async def work(workers: DiskWorkers) -> None:
        for name in names:
            await freezing.thaw(workers, store, name, pace=no_pace)

    workers = DiskWorkers()
    try:
        asyncio.run(work(workers))
    finally:
        workers.close()


def collect_all(store: BlobStore) -> CollectedChunks:
    return collect(store.cold.chunks, store.cold.manifests)


def opened(path: Path, disk: Disk | None = None) -> BlobStore:
    return BlobStore(path, disk=disk)


def read(store: BlobStore, name: str) -> bytes:
    """All of a blob, as a reader of it gets it: verified some bytes before they are read."""
    found = bytearray()
    with store.open(name) as blob:
        while (at := len(found)) < blob.size_bytes:
            until = blob.verified_stop(at, blob.size_bytes)
            blob.verify_range(at, until)
            while len(found) < until:
                found += blob.pread(until - len(found), len(found))
    return bytes(found)


def is_cold(store: BlobStore, name: str) -> bool:
    return store.cold.has_name(name) and not store.has_file(name)


def stored_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path / "chunks").glob("*.pack"))

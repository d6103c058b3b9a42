"""The chunks of a node: each once, in packs (`node/packs/store.py`), compressed where that saves room.

A chunk is named by the SHA-256 of its content. When `put` returns, its chunks are durable, and every process
of the node finds them. All calls block, and raise OSError. For any thread.

A chunk that is here may be deleted at any time, unless a manifest or a draft (`node/cold/manifests.py`) names
it: name it there first, then `affirm` it or `put` it.

Tested by tests/unit/node/cold/test_cold_store.py.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import zstandard

from node.cold.manifest import CHUNK_BYTES_MAX
from node.diskio.durable import Disk, Octets
from node.packs.record import digest_of
from node.packs.rows import PackedBlob
from node.packs.store import PackStore, RecordDamaged

DIRECTORY: Final = "chunks"
LEVEL: Final = 3  # of zstd: level 9 saves 2 % more of disk images, and takes five times as long
TRUSTED_S: Final = 3600.0  # for this time the SHA-256 of a sound chunk is not computed again
TRUSTED_MAX: Final = 65_536  # chunks, in about 10 MB of memory
_STORED: Final = b"\0"  # before content as it is
_ZSTD: Final = b"\1"  # before a frame of zstd
_PAGE_IDS: Final = 4096


class ChunkMissing(Exception):
    """This disk does not have the chunk; the text is its id."""

    def __init__(self, chunk_id: bytes) -> None:
        super().__init__(chunk_id.hex())
        self.id = chunk_id


class ChunkDamaged(ChunkMissing):
    """The record of the chunk is not what was written."""


class ChunkStore:
    """The chunks of one data directory. One per process and directory.

    The packs are opened when they are needed first: most nodes have none.
    """

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._directory, self._disk = directory / DIRECTORY, disk or Disk()
        self._opening = threading.Lock()
        self._packs: PackStore | None = None
        self._trusted = TrustedChunks()
        self._local = threading.local()

    @property
    def packs(self) -> PackStore:
        """The packs, opened now if they were not."""
        with self._opening:
            if self._packs is None:
                self._packs = PackStore(
                    self._directory,
                    disk=self._disk,
                    payload_bytes_max=CHUNK_BYTES_MAX + 1,
                    unpack=self.unpack,
                    notes_arrivals=False,
                )
            return self._packs

    @property
    def opened(self) -> PackStore | None:
        """The packs, if they were opened."""
        return self._packs

    def exists(self) -> bool:
        """Return whether there are packs of chunks on the disk."""
        return self._packs is not None or self._directory.exists()

    def close(self) -> None:
        """Close the packs."""
        if self._packs is not None:
            self._packs.close()

    def affirm(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return which of these chunks are here.

        A collection that has already listed one of them does not delete it. A later one reads the drafts.
        """
        return self.packs.index.affirm_all(set(ids), time.time_ns())

    def has(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return which of these chunks are here now, without keeping them."""
        index = self.packs.index
        return {chunk_id for chunk_id in ids if index.find(chunk_id) is not None}

    def put(self, chunks: Sequence[tuple[bytes, Octets]]) -> int:
        """Store chunks under one sync, each in place of what was there; return the bytes of their records.

        The caller vouches for the ids, as `get` compares. All are durable on return, or none counts.
        """
        packed = [(chunk_id, self._pack(content)) for chunk_id, content in chunks]
        self.packs.put(packed)
        for chunk_id, payload in packed:
            self._trusted.add(chunk_id, digest_of(payload))
        return sum(len(payload) for _, payload in packed)

    def get(self, chunk_id: bytes, *, is_afresh: bool = False, trusts: bool = True) -> bytes:
        """Return the content of a chunk. Its SHA-256 was compared now, or within TRUSTED_S by this process.

        `is_afresh`: the record is read from the medium. Without `trusts` the SHA-256 is compared now. Raises
        ChunkMissing, ChunkDamaged.
        """
        if not trusts:
            self._trusted.forget(chunk_id)
        if is_afresh:
            for found in self.packs.index.copies(chunk_id):
                with suppress(OSError):  # the reading below says so
                    self.packs.drop_pages(found)
        try:
            loaded = self.packs.load(chunk_id)
        except RecordDamaged as error:
            raise ChunkDamaged(chunk_id) from error
        if loaded is None:
            raise ChunkMissing(chunk_id)
        return loaded[1]

    def remove(self, rows: Sequence[PackedBlob]) -> list[PackedBlob]:
        """Delete those that were not affirmed or stored again since they were read; return these.

        Only `node/cold/collection.py` may know that no manifest names them.
        """
        return self.packs.index.take_out(rows)

    def note_purged(self, ids: Iterable[bytes]) -> None:
        """Have the packs of these chunks rewritten soon after a collection has deleted one of them."""
        self.packs.index.note_purged(ids)

    def awaits_purge(self) -> bool:
        """Return whether a pack was noted by `note_purged`, and is there still."""
        return bool(self.packs.index.purged_packs())

    def rows(self, start: bytes, stop: bytes) -> Iterator[PackedBlob]:
        """Yield the rows of the chunks whose id is from `start` to `stop` (excluded), ascending by id."""
        after = start
        while page := self.packs.index.rows_from(after, stop, _PAGE_IDS):
            yield from page
            after = page[-1].sha256 + b"\0"

    def totals(self) -> tuple[int, int]:
        """Return how many chunks there are, and the bytes of their records."""
        return self.packs.index.totals()

    def _pack(self, content: Octets) -> bytes:
        """Return the record of a chunk: compressed, unless that is not smaller."""
        assert 0 < len(content) <= CHUNK_BYTES_MAX
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = self._local.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
        compressed = compressor.compress(content)
        if len(compressed) < len(content):
            return _ZSTD + bytes(compressed)
        return _STORED + bytes(content)

    def unpack(self, found: PackedBlob, payload: bytes) -> bytes | None:
        """Return the content of a record; None if it does not have the SHA-256 of its row."""
        if payload[:1] == _STORED:
            content = payload[1:]
        elif payload[:1] == _ZSTD:
            decompressor = getattr(self._local, "decompressor", None)
            if decompressor is None:
                decompressor = self._local.decompressor = zstandard.ZstdDecompressor()
            try:
                content = decompressor.decompress(
                    memoryview(payload)[1:], max_output_size=CHUNK_BYTES_MAX, allow_extra_data=False
                )
            except zstandard.ZstdError:
                return None
        else:
            return None
        if not self._trusted.contains(found.sha256, found.digest):
            if hashlib.sha256(content).digest() != found.sha256:
                return None
            self._trusted.add(found.sha256, found.digest)
        return content


class TrustedChunks:
    """Chunks that were found sound lately, each with the XXH3 of its record.

    A record with that XXH3 is the one that was compared, also if a wrong row of the index leads to it.
    Bounded; forgets the chunk that was added longest ago.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def contains(self, chunk_id: bytes, digest: bytes) -> bool:
        """Return whether the record was found sound within TRUSTED_S."""
        found, at_s = self._found.get(chunk_id, (b"", 0.0))
        return found == digest and self._clock() - at_s < TRUSTED_S

    def add(self, chunk_id: bytes, digest: bytes) -> None:
        """Record that a record is sound now."""
        with self._lock:
            self._found.pop(chunk_id, None)
            self._found[chunk_id] = (digest, self._clock())
            if len(self._found) > TRUSTED_MAX:
                self._found.popitem(last=False)

    def forget(self, chunk_id: bytes) -> None:
        """Compare the SHA-256 at the next reading."""
        with self._lock:
            self._found.pop(chunk_id, None)

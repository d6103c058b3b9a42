"""The format of a manifest: the chunks of a blob, in their order. No I/O here.

A manifest has these parts, one behind the other:

1. The header: magic, version, sha256 and size of the blob, number of chunks.
2. The sha256 and the end of each chunk.
3. The XXH3 of each segment of the blob, as in a sidecar (`node/storage/segments.py`).
4. The CRC-32 of all parts before it.

A draft is the beginning of a manifest: the place of the header, and chunks that its writer counts on.
Integers are little-endian.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from node.diskio.durable import with_crc, without_crc

VERSION: Final = 1
ID_BYTES: Final = 32
CHUNK_BYTES_MIN: Final = 64 << 10
CHUNK_BYTES_MAX: Final = 960 << 10  # with what is around it, a record of a pack
MANIFEST_BYTES_MAX: Final = 64 << 20  # of a blob of 400 GB
_MAGIC: Final = b"FSTCOLD\0"
_HEADER: Final = struct.Struct("<8sI32sQI")
_CHUNK: Final = struct.Struct(f"<{ID_BYTES}sQ")
_STOP: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _HEADER.size
CHUNK_ENTRY_BYTES: Final = _CHUNK.size


class ManifestInvalid(Exception):
    """The bytes are not the manifest of that blob; the text says why."""


@dataclass(frozen=True, slots=True)
class ContentChunk:
    """A chunk of a blob: bytes `start` to `stop` (excluded), whose SHA-256 is `id`."""

    id: bytes
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the content."""
        return self.stop - self.start


class _Stops(Sequence[int]):
    """The end of each chunk, read from the encoded entries."""

    def __init__(self, entries: bytes) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries) // CHUNK_ENTRY_BYTES

    def __getitem__(self, index: int) -> int:  # type: ignore[override]  # no slices are needed
        (stop,) = _STOP.unpack_from(self._entries, index * CHUNK_ENTRY_BYTES + ID_BYTES)
        return int(stop)


@dataclass(frozen=True, slots=True)
class ColdManifest:
    """The chunks of a blob, encoded, and the checksums of its segments: n x 8 bytes.

    There are up to ten million chunks, so they stay encoded.
    """

    sha256: str
    size_bytes: int
    entries: bytes
    digests: bytes

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.entries) // CHUNK_ENTRY_BYTES

    def chunk(self, index: int) -> ContentChunk:
        """Return a chunk by its number."""
        start = _Stops(self.entries)[index - 1] if index else 0
        chunk_id, stop = _CHUNK.unpack_from(self.entries, index * CHUNK_ENTRY_BYTES)
        return ContentChunk(chunk_id, start, stop)

    def at(self, offset: int) -> ContentChunk:
        """Return the chunk with the byte at `offset`, which the blob has."""
        assert 0 <= offset < self.size_bytes
        return self.chunk(bisect_right(_Stops(self.entries), offset))

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[ContentChunk]:
        """Yield the chunks that have bytes from `start` to `stop` (excluded), in their order."""
        end = self.size_bytes if stop is None else stop
        if start >= end:
            return
        index = bisect_right(_Stops(self.entries), start)
        while index < len(self) and (chunk := self.chunk(index)).start < end:
            yield chunk
            index += 1

    def ids(self) -> Iterator[bytes]:
        """Yield the ids of all chunks, in their order."""
        return (chunk_id for chunk_id, _ in _CHUNK.iter_unpack(self.entries))

    def find(self, chunk_id: bytes) -> ContentChunk | None:
        """Return the first chunk with this id, or None."""
        at = self.entries.find(chunk_id)
        while at >= 0 and at % CHUNK_ENTRY_BYTES:
            at = self.entries.find(chunk_id, at + 1)
        return self.chunk(at // CHUNK_ENTRY_BYTES) if at >= 0 else None


def encode_chunks(chunks: Sequence[ContentChunk]) -> bytes:
    """Encode chunks as in a manifest."""
    return b"".join(_CHUNK.pack(chunk.id, chunk.stop) for chunk in chunks)


def encode_manifest(manifest: ColdManifest) -> bytes:
    """Encode a manifest. The entries begin at HEADER_BYTES, as in a draft."""
    header = _HEADER.pack(_MAGIC, VERSION, bytes.fromhex(manifest.sha256), manifest.size_bytes, len(manifest))
    return with_crc(header + manifest.entries + manifest.digests, of=manifest.sha256)


def decode_manifest(raw: bytes, sha256: str) -> ColdManifest:
    """Return the manifest of a blob. Raises ManifestInvalid.

    Whether there is a checksum for each segment is left to the caller.
    """
    body = without_crc(raw, of=sha256)
    if body is None or len(body) < HEADER_BYTES:
        raise ManifestInvalid("does not match its own checksum")
    magic, version, digest, size_bytes, count = _HEADER.unpack_from(body)
    if (magic, digest) != (_MAGIC, bytes.fromhex(sha256)):
        raise ManifestInvalid("is the manifest of another blob")
    if version != VERSION:
        raise ManifestInvalid(f"has the format version {version}, which is not known to this release")
    digests_at = HEADER_BYTES + count * CHUNK_ENTRY_BYTES
    entries, digests = body[HEADER_BYTES:digests_at], body[digests_at:]
    manifest = ColdManifest(sha256, size_bytes, entries, digests)
    if len(manifest) != count or not _is_in_order(manifest):
        raise ManifestInvalid("contradicts itself")
    return manifest


def chunks_max(size_bytes: int) -> int:
    """Return how many chunks content of this size has at most, as `node/cold/cutting.py` cuts it."""
    return size_bytes // CHUNK_BYTES_MIN + 1


def decode_list(raw: bytes, sha256: str, size_bytes: int) -> ColdManifest:
    """Return what another node lists as the chunks of a blob, without checksums. Raises ManifestInvalid.

    Nothing is known of the ids. Their number and the sizes are those that content of this size can have.
    """
    manifest = ColdManifest(sha256, size_bytes, raw, b"")
    if len(raw) % CHUNK_ENTRY_BYTES or len(manifest) > chunks_max(size_bytes) or not _is_in_order(manifest):
        raise ManifestInvalid("is no list of chunks of this size")
    return manifest


def decode_size(header: bytes) -> int:
    """Return the size of the blob from the first HEADER_BYTES of a manifest, unverified; 0 if it has none."""
    if len(header) != HEADER_BYTES or header[: len(_MAGIC)] != _MAGIC:
        return 0
    *_, size_bytes, _ = _HEADER.unpack(header)
    return int(size_bytes)


def ids_in(raw: bytes) -> Iterator[bytes]:
    """Yield the ids in the first bytes of a draft, or of a whole manifest, and maybe some that are none."""
    entries = memoryview(raw)[HEADER_BYTES:]
    whole = entries[: len(entries) // CHUNK_ENTRY_BYTES * CHUNK_ENTRY_BYTES]
    return (chunk_id for chunk_id, _ in _CHUNK.iter_unpack(whole))


def _is_in_order(manifest: ColdManifest) -> bool:
    """Return whether each chunk ends behind the one before it, and the last with the blob."""
    at = 0
    for _, stop in _CHUNK.iter_unpack(manifest.entries):
        if not 0 < stop - at <= CHUNK_BYTES_MAX:
            return False
        at = stop
    return at == manifest.size_bytes

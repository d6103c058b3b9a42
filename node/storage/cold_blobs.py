"""The cold blobs of a store (docs/cold.md), as `BlobStore` uses them: manifests, and readers of their chunks.

A file or a packed blob of the same name goes before a cold one. All calls block, except those that say
otherwise. They raise OSError, unless they say FilestoreError. For any thread.

Tested by tests/unit/node/cold/test_cold_store.py.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from node.cold.chunks import ChunkDamaged, ChunkMissing, ChunkStore
from node.cold.manifest import (
    HEADER_BYTES,
    ColdManifest,
    ContentChunk,
    ManifestInvalid,
    decode_manifest,
    decode_size,
)
from node.cold.manifests import Draft, ManifestFiles, read_descriptor
from node.diskio.durable import Disk, Octets, write_all
from node.diskio.fs import closing_descriptor, storage_errors
from node.storage.blob_files import DAMAGE, BlobFiles
from node.storage.segments import (
    DIGEST_BYTES,
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    OpenBlob,
    SegmentHasher,
    SegmentSums,
    WholeRead,
    segment_count,
    segment_digest,
)
from node.storage.verified_segments import FileIdentity, TrustedSegments

# Decoded before they are sent; as much is sent meanwhile. A reader that takes them fast gets more at once,
# since each handing over to a thread costs it 0.2 ms; a slow one would only hold memory.
READY_BYTES: Final = 512 << 10
READY_BYTES_MAX: Final = 2 << 20
FAST_BYTES_PER_S: Final = 100_000_000
DAMAGED_CHUNKS: Final = "chunks-damaged"  # a directory of empty files, named by ids
NOTES_MAX: Final = 10_000  # the scrub finds further ones


class ProofFailed(Exception):
    """The chunks of a draft are not the blob that they were to be."""


class OpenColdBlob(OpenBlob):
    """A cold blob. Its bytes are verified when they are decoded, a few chunks ahead of the reader."""

    def __init__(
        self,
        descriptor: int,
        manifest: ColdManifest,
        chunks: ChunkStore,
        trusted: TrustedSegments,
        spool: Callable[[], int],
    ) -> None:
        """Read by the manifest that is open at `descriptor`. `spool` makes an unnamed file for content."""
        sums = SegmentSums(manifest.size_bytes, manifest.digests)
        super().__init__(fd=-1, sha256=manifest.sha256, sums=sums, trusted=trusted)
        self.manifest = manifest
        self._descriptor, self._chunks, self._spool = descriptor, chunks, spool
        self._ready: dict[int, bytes] = {}  # chunks by their start
        self._ready_from = 0  # the start of the last call of `verify_range`
        self._ready_at_s = time.monotonic()  # when that was
        self._ready_bytes_max = READY_BYTES

    @property
    def ready_bytes(self) -> int:
        """Return how many bytes are decoded and kept."""
        return sum(map(len, self._ready.values()))

    def state(self) -> object:
        """Return a state that differs after any change of the manifest; None if it was removed."""
        facts = os.fstat(self._descriptor)
        return (facts.st_ctime_ns, facts.st_nlink, facts.st_size) if facts.st_nlink else None

    def file_identity(self) -> FileIdentity:
        """Return the state of the manifest."""
        return FileIdentity.of(self._descriptor)

    def identity(self) -> tuple[int, int]:
        """Return the device and the inode of the manifest."""
        facts = os.fstat(self._descriptor)
        return facts.st_dev, facts.st_ino

    def is_cached(self, start: int, stop: int) -> bool:  # noqa: ARG002 - a piece may be shorter
        """Return whether the byte at `start` was decoded already. Does not block."""
        return bool(self._ready_at(start))

    def pread(self, size_bytes: int, start: int) -> bytes:
        """Return verified bytes from `start`, up to the end of a chunk at most. Raises BlobDamaged."""
        found = self._ready_at(start)
        if not found and start < self.size_bytes:
            chunk = self.manifest.at(start)
            found = memoryview(self._content(chunk))[start - chunk.start :]
        return bytes(found[:size_bytes])

    def read_cached(self, start: int, size_bytes: int) -> bytes:  # noqa: ARG002
        """Return nothing: a kept blob has no bytes in memory."""
        return b""

    def read_now(self, start: int, buffer: memoryview) -> int:
        """Fill the buffer from `start` on with decoded bytes; return how many. Does not block."""
        found = self._ready_at(start)[: len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def verified_stop(self, start: int, stop: int) -> int:
        """Return the end of the chunks that are decoded at once."""
        if start >= stop:
            return stop
        return min(self.manifest.at(min(start + self._ready_bytes_max, self.size_bytes) - 1).stop, stop)

    def verify_range(self, start: int, stop: int) -> None:
        """Decode these bytes, and keep those that were decoded before them until the next call.

        Raises BlobDamaged, FilestoreError.
        """
        assert 0 <= start <= stop <= self.size_bytes
        before, self._ready_from = self._ready_from, start
        passed_s, self._ready_at_s = time.monotonic() - self._ready_at_s, time.monotonic()
        is_fast = stop - start > passed_s * FAST_BYTES_PER_S
        self._ready_bytes_max = min(2 * self._ready_bytes_max, READY_BYTES_MAX) if is_fast else READY_BYTES
        kept = {at: content for at, content in self._ready.items() if before < at + len(content)}
        for chunk in self.manifest.chunks(start, stop):
            if chunk.start not in kept:
                kept[chunk.start] = self._content(chunk)
        self._ready = kept

    def is_trusted(self, start: int, stop: int, *, identity: FileIdentity | None = None) -> bool:
        """Return whether these bytes are decoded. Does not block."""
        del identity
        while start < stop:
            found = self._ready_at(start)
            if not found:
                return False
            start += len(found)
        return True

    def verify_segment(self, index: int, whole: WholeRead | None = None) -> bool:
        """Decode a segment and compare it. Raises BlobDamaged for a damaged chunk; FilestoreError."""
        content = self._span(*self.segment_range(index))
        if whole is not None:
            whole.digest.update(content)
        return segment_digest(content) == self.sums.digest(index)

    def verify_on_medium(self, index: int, whole: WholeRead) -> bool:
        """Decode and compare a segment, whose chunks are read past the page cache."""
        content = self._span(*self.segment_range(index), is_afresh=True)
        whole.digest.update(content)
        return segment_digest(content) == self.sums.digest(index)

    def read_segment(self, index: int) -> bytes | None:
        """Return a segment; None if there is none, or a chunk of it is damaged. Raises FilestoreError."""
        if not 0 <= index < segment_count(self.size_bytes):
            return None
        with suppress(BlobDamaged, BlobMissing):
            return self._span(*self.segment_range(index))
        return None

    def whole_descriptor(self) -> int:
        """Return a descriptor of an unnamed file with all of the content. Raises BlobDamaged, OSError."""
        spooled, at = self._spool(), 0
        try:
            for content in self.pieces():
                write_all(Disk(), spooled, content, at)
                at += len(content)
        except BaseException:
            os.close(spooled)
            raise
        return spooled

    def pieces(self) -> Iterator[bytes]:
        """Yield the content chunk by chunk, verified. Raises BlobDamaged, BlobMissing, FilestoreError."""
        return map(self._content, self.manifest.chunks())

    def salvage(self) -> Iterator[bytes]:
        """Yield the content chunk by chunk, with zeros in place of damaged ones. Raises FilestoreError."""
        for chunk in self.manifest.chunks():
            try:
                yield self._content(chunk)
            except BlobDamaged:
                yield bytes(chunk.size_bytes)

    def duplicate(self) -> "OpenColdBlob":
        """Return a copy with its own descriptor. Raises OSError."""
        copy = os.dup(self._descriptor)
        return OpenColdBlob(copy, self.manifest, self._chunks, self._trusted, self._spool)

    def close(self) -> None:
        """Close the manifest. May be called twice."""
        self._ready = {}
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _ready_at(self, start: int) -> memoryview:
        """Return the decoded bytes from `start` to the end of their chunk; none if they are not decoded."""
        for at, content in self._ready.items():
            if at <= start < at + len(content):
                return memoryview(content)[start - at :]
        return memoryview(b"")

    def _span(self, start: int, stop: int, *, is_afresh: bool = False) -> bytes:
        pieces = []
        for chunk in self.manifest.chunks(start, stop):
            content = memoryview(self._content(chunk, is_afresh=is_afresh))
            pieces.append(content[max(start - chunk.start, 0) : stop - chunk.start])
        return b"".join(pieces)

    def _content(self, chunk: ContentChunk, *, is_afresh: bool = False) -> bytes:
        """Return a chunk. Raises BlobDamaged; BlobMissing if the manifest was removed; FilestoreError."""
        try:
            with storage_errors():
                content = self._chunks.get(chunk.id, is_afresh=is_afresh, trusts=not is_afresh)
        except ChunkMissing as error:
            if not os.fstat(self._descriptor).st_nlink:
                raise BlobMissing(self.sha256) from error
            fault = "is damaged" if isinstance(error, ChunkDamaged) else "is missing"
            raise self._chunk_error(chunk, fault) from error
        if len(content) != chunk.size_bytes:
            raise self._chunk_error(chunk, "has another size than the manifest says")
        return content

    def _chunk_error(self, chunk: ContentChunk, fault: str) -> BlobDamaged:
        why = f"the chunk {chunk.id.hex()} {fault}"
        return BlobDamaged(self.sha256, why, file=self.identity(), chunk=chunk.id)


class ColdBlobs:
    """The cold blobs of one store."""

    def __init__(self, directory: Path, files: BlobFiles) -> None:
        """Use the directory of the store. Raises OSError."""
        self._files = files
        self.chunks = ChunkStore(directory, disk=files.disk)
        self.manifests = ManifestFiles(files.areas, files.disk, files.placing)
        self._damaged = files.areas.keep_open(DAMAGED_CHUNKS)

    def close(self) -> None:
        """Close the packs of chunks."""
        self.chunks.close()

    def open(self, sha256: str) -> OpenColdBlob:
        """Open a cold blob; the caller closes it. Raises BlobMissing, BlobDamaged, OSError."""
        try:
            descriptor = self.manifests.open(sha256)
        except FileNotFoundError:
            raise BlobMissing(sha256) from None
        except OSError as error:
            raise _unreadable(sha256, error) from error
        try:
            manifest = decode_manifest(read_descriptor(descriptor), sha256)
            if len(manifest.digests) != segment_count(manifest.size_bytes) * DIGEST_BYTES:
                raise ManifestInvalid("contradicts itself")
            return OpenColdBlob(descriptor, manifest, self.chunks, self._files.trusted, self.spool)
        except BaseException as error:
            facts = os.fstat(descriptor)
            os.close(descriptor)
            if isinstance(error, ManifestInvalid):
                why = f"its manifest {error}"
                raise BlobDamaged(sha256, why, file=(facts.st_dev, facts.st_ino)) from None
            if isinstance(error, OSError):
                raise _unreadable(sha256, error) from error
            raise

    def content_bytes(self, sha256: str) -> int:
        """Return the size of a cold blob by the first bytes of its manifest; 0 if it has none."""
        try:
            with closing_descriptor(self.manifests.open(sha256)) as descriptor:
                return decode_size(os.pread(descriptor, HEADER_BYTES, 0))
        except FileNotFoundError:
            return 0

    def has_name(self, sha256: str) -> bool:
        """Return whether there is a manifest, sound or not."""
        try:
            self.manifests.stat(sha256)
        except FileNotFoundError:
            return False
        return True

    def affirm(self, sha256: str) -> bool:
        """Keep the blob for a while, as a caller reports that it is here; return False if it is not."""
        with self._files.placing:
            return self.manifests.touch(sha256, time.time_ns())

    def affirmed_at_ns(self, sha256: str) -> int:
        """Return when it was last affirmed, since the epoch. Raises FileNotFoundError."""
        return self.manifests.stat(sha256).st_mtime_ns

    def identity(self, sha256: str) -> tuple[tuple[int, int], int]:
        """Return device and inode of the manifest, and when it was affirmed. Raises FileNotFoundError."""
        facts = self.manifests.stat(sha256)
        return (facts.st_dev, facts.st_ino), facts.st_mtime_ns

    def remove(self, sha256: str, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Remove a blob, as `ManifestFiles.remove` does; its chunks go with the next collection."""
        return self.manifests.remove(sha256, unless=unless)

    def note_purged(self, sha256: str) -> None:
        """Have the packs with chunks of this blob rewritten soon after it goes. Raises FilestoreError."""
        try:
            with self.open(sha256) as blob:
                self.chunks.note_purged(set(blob.manifest.ids()))
        except (BlobMissing, BlobDamaged):
            return  # it is hot, or its chunks are unknown

    def writer(self, blob: FinishedBlob) -> "ColdWriter":
        """Begin a manifest of a blob of known name and size; leave it with `with`. Raises OSError."""
        draft = Draft(self.manifests, self.chunks, self._files.disk)
        return ColdWriter(self, draft, blob)

    def note_damaged(self, chunk_id: bytes) -> None:
        """Leave a note that a chunk is damaged or missing, for custody (`node/custody/chunk_repair.py`).

        Does nothing on a disk that accepts no note: the next reader finds the damage again.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            if len(os.listdir(self._damaged)) < NOTES_MAX:
                os.close(os.open(chunk_id.hex(), flags, 0o600, dir_fd=self._damaged))

    def damaged_chunks(self, limit: int) -> list[bytes]:
        """Return the chunks with a note, the first by their id."""
        names = sorted(name for name in os.listdir(self._damaged) if len(name) == 64)
        return [bytes.fromhex(name) for name in names[:limit]]

    def forget_damaged(self, chunk_id: bytes) -> None:
        """Remove the note about a chunk."""
        with suppress(FileNotFoundError):
            os.unlink(chunk_id.hex(), dir_fd=self._damaged)

    def users_of(self, ids: set[bytes]) -> Iterator[tuple[str, Sequence[ContentChunk]]]:
        """Yield the blobs in service with one of these chunks, each with the first place of each of them."""
        for sha256 in self.manifests.names():
            with suppress(BlobMissing, BlobDamaged), self.open(sha256) as blob:
                found = [place for each in sorted(ids) if (place := blob.manifest.find(each)) is not None]
                if found:
                    yield sha256, found

    def spool(self) -> int:
        """Return a descriptor of an unnamed file on this disk; the caller closes it."""
        return os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=self.manifests.drafts)


def _unreadable(sha256: str, error: OSError) -> Exception:
    """Return what a manifest is that cannot be opened or read: damaged, unless others could not be either."""
    if error.errno in DAMAGE:
        return BlobDamaged(sha256, f"its manifest cannot be read: {os.strerror(error.errno or 0)}")
    return error


class ColdWriter:
    """A cold blob under way: `add` names its next chunks, `put` stores those that are not here.

    `finish` reads all of them back. Not for two threads at once.
    """

    def __init__(self, cold: ColdBlobs, draft: Draft, blob: FinishedBlob) -> None:
        self._cold, self._draft, self._blob = cold, draft, blob
        self._digests = b""  # of its segments, once it is proved

    @property
    def offset(self) -> int:
        """Return how many bytes of the content have chunks."""
        return self._draft.size_bytes

    def add(self, chunks: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Add the next chunks, ids with sizes; return those that are to be `put`. Raises OSError."""
        return {chunk_id for chunk_id, _ in chunks} - self._draft.add(chunks)

    def put(self, chunks: Sequence[tuple[bytes, Octets]]) -> int:
        """Store chunks that were added; durable on return. The caller has computed their SHA-256.

        Return the bytes of their records. Raises OSError.
        """
        return self._cold.chunks.put(chunks)

    def prove(self, *, again: Callable[[ContentChunk], bytes] | None = None) -> Iterator[int]:
        """Read every chunk from the medium, and compare the whole with its name; yield the bytes read so far.

        The SHA-256 of chunks that were just stored is not computed again, as the whole proves them. A
        chunk that cannot be read is stored again with the content that `again` returns. The last item comes
        after the comparison. Raises ProofFailed; ChunkMissing, ChunkDamaged without `again`; OSError.
        """
        manifest, hasher = self._draft.manifest(self._blob.sha256), SegmentHasher()
        for chunk in manifest.chunks():
            hasher.update(self._read_back(chunk, again))
            if chunk.stop < manifest.size_bytes:
                yield chunk.stop
        if FinishedBlob(hasher.sha256(), hasher.size_bytes) != self._blob:
            raise ProofFailed(self._blob.sha256)
        self._digests = hasher.sums().digests
        yield manifest.size_bytes

    def place(self, *, unless: Callable[[], bool] = lambda: False) -> tuple[int, int] | None:
        """Put the proved manifest into service, durable on return; return its device and inode.

        None if `unless` returns True, which is called while no blob is placed or removed. Raises OSError.
        """
        manifest = self._draft.manifest(self._blob.sha256, self._digests)
        return self._draft.place(manifest, unless=unless)

    def _read_back(self, chunk: ContentChunk, again: Callable[[ContentChunk], bytes] | None) -> bytes:
        chunks = self._cold.chunks
        try:
            content = chunks.get(chunk.id, is_afresh=True)
        except ChunkMissing:
            if again is None:
                raise
            chunks.put([(chunk.id, again(chunk))])
            content = chunks.get(chunk.id, is_afresh=True)
        if len(content) != chunk.size_bytes:
            raise ProofFailed(self._blob.sha256)
        return content

    def close(self) -> None:
        """Give it up, unless it was placed. May be called twice."""
        self._draft.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

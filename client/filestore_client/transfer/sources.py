"""The sources of uploads: a file with random access, or bytes that can only be read in order."""

import asyncio
import hashlib
import io
import os
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, BinaryIO, Protocol, TypeGuard

from filestore_client.base.errors import FileChanged, FilestoreError, InvalidRequest

READ_BYTES = 1 << 20
FILE_PIECE_BYTES = 64 << 20  # as often as a node syncs without a request: smaller pieces only add round trips
STREAM_PIECE_BYTES = 8 << 20  # this much is held in memory
REST_BYTES_MAX = 1 << 20  # of a piece, which is not sent alone if more may follow
END_BYTES = 8 << 20  # size of the last piece of a file; a file that is not larger is sent in one request


Contents = bytes | bytearray | memoryview | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]


class Source(Protocol):
    """Bytes to upload. `failure`: why they could not be read; aiohttp hides what a body raises."""

    failure: Exception | None

    @property
    def size_bytes(self) -> int | None:
        """None as long as it is unknown."""

    async def whole(self, bytes_max: int) -> bytes | None:
        """All of it, None if that is more. To be asked before anything else."""

    async def prefix_sha256(self, offset: int) -> str:
        """The sha256 of the bytes before the offset. To be asked before anything behind them is read.

        Raises InvalidRequest when there are not as many.
        """

    async def prepare(self, offset: int) -> int:
        """How many bytes can be read from this offset, at most a piece; 0 at the end."""

    async def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at this offset, which must be in the prepared piece."""

    async def sha256(self) -> str:
        """Return the SHA-256 of everything, once all of it was read."""


class FileSource:
    """A seekable file as it is now: `facts`. Raises FileChanged, before its end, if it was written to.

    `span`: only these bytes of it, the first and the one after the last.
    """

    def __init__(self, file: BinaryIO, *, span: tuple[int, int] | None = None) -> None:
        self._file = file
        self.facts = os.fstat(file.fileno())
        self.failure: Exception | None = None
        self._start, stop = span or (0, self.facts.st_size)
        self._size = stop - self._start
        self.size_bytes: int | None = self._size
        self._end, self._is_read = b"", False
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0
        # After a cut-off request, its read continues in its thread, concurrently with those of the next one.
        self._reading = threading.Lock()

    async def whole(self, bytes_max: int) -> bytes | None:
        """See Source."""
        if self._size > bytes_max:
            return None
        return await self.read(0, await self.prepare(0))

    async def prefix_sha256(self, offset: int) -> str:
        """See Source."""
        if offset > self._size:
            raise InvalidRequest(f"The server has {offset} bytes, but the file has {self._size}.")
        await self._hash_to(offset)
        return self._hash.hexdigest()

    async def prepare(self, offset: int) -> int:
        """See Source. What lies before the offset, sent by an earlier run, is hashed first."""
        await self.prefix_sha256(offset)
        left_bytes = self._size - offset
        if left_bytes > END_BYTES + REST_BYTES_MAX:
            return min(FILE_PIECE_BYTES, left_bytes - END_BYTES)
        if not self._is_read:  # what happens to the file after that is none of this upload's business
            self._end = await asyncio.to_thread(self._read_end, offset, left_bytes)
            self._is_read = True
        return left_bytes

    async def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        if (at := offset - (self._size - len(self._end))) >= 0:
            return self._end[at : at + length]
        try:
            return await asyncio.to_thread(self._read, offset, length)
        except (OSError, FilestoreError) as error:
            self.failure = error
            raise

    async def sha256(self) -> str:
        """See Source."""
        await self._hash_to(self._size)
        return self._hash.hexdigest()

    async def checked_sha256(self) -> str:
        """Return the SHA-256 of a file that was not changed until then. Raises FileChanged."""
        found = await self.sha256()
        await asyncio.to_thread(self._require_unchanged)
        return found

    def _read(self, offset: int, length: int) -> bytes:
        with self._reading:
            part = os.pread(self._file.fileno(), length, self._start + offset)
            if len(part) != length:
                raise FileChanged(
                    f"The file became shorter than {self.facts.st_size} bytes while it was read."
                )
            end = offset + len(part)
            if offset <= self._hashed_bytes < end:
                self._hash.update(memoryview(part)[self._hashed_bytes - offset :])
                self._hashed_bytes = end
            return part

    def _read_end(self, offset: int, length: int) -> bytes:
        part = self._read(offset, length)
        self._require_unchanged()
        return part

    def _require_unchanged(self) -> None:
        facts = os.fstat(self._file.fileno())
        if (facts.st_size, facts.st_mtime_ns) != (self.facts.st_size, self.facts.st_mtime_ns):
            raise FileChanged("The file was changed while it was read. Nothing was stored.")
        if os.pread(self._file.fileno(), 1, facts.st_size):  # such as those of /proc, whose size is 0
            raise FileChanged(f"The file has more than the {facts.st_size} bytes that the system reports.")

    async def _hash_to(self, offset: int) -> None:
        while self._hashed_bytes < offset:
            await asyncio.to_thread(
                self._read, self._hashed_bytes, min(READ_BYTES, offset - self._hashed_bytes)
            )


class BytesSource:
    """Bytes in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.failure: Exception | None = None
        self.size_bytes: int | None = len(content)

    async def whole(self, bytes_max: int) -> bytes | None:
        """See Source."""
        return self._content if len(self._content) <= bytes_max else None

    async def prefix_sha256(self, offset: int) -> str:
        """See Source."""
        await self.prepare(offset)
        prefix = memoryview(self._content)[:offset]
        return await asyncio.to_thread(lambda: hashlib.sha256(prefix).hexdigest())

    async def prepare(self, offset: int) -> int:
        """See Source."""
        if offset > len(self._content):
            raise InvalidRequest(f"The server has {offset} bytes, but the content has {len(self._content)}.")
        return min(FILE_PIECE_BYTES, len(self._content) - offset)

    async def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        return self._content[offset : offset + length]

    async def sha256(self) -> str:
        """See Source."""
        return await self.prefix_sha256(len(self._content))


class StreamSource:
    """Bytes that end some time. One piece is held, so that a lost connection costs nothing."""

    def __init__(self, more: Callable[[], Awaitable[bytes]]) -> None:
        """`more` gives the next bytes, b"" at the end."""
        self._more = more
        self.failure: Exception | None = None
        self.size_bytes: int | None = None
        self._hash = hashlib.sha256()
        self._hash_of_sent = self._hash.copy()  # of what lies before the held piece
        self._start = 0
        self._piece = b""
        self._ahead = b""  # read to see whether there is more

    async def whole(self, bytes_max: int) -> bytes | None:
        """See Source."""
        read = await self._read_on(bytes_max + 1)
        if len(read) > bytes_max:
            self._ahead = read
            return None
        self._piece, self.size_bytes = read, len(read)
        self._hash.update(read)
        return read

    async def prefix_sha256(self, offset: int) -> str:
        """See Source."""
        await self.prepare(offset)
        found = self._hash_of_sent.copy()
        found.update(memoryview(self._piece)[: offset - self._start])
        return found.hexdigest()

    async def prepare(self, offset: int) -> int:
        """See Source. A server that fell back behind the held piece cannot be served any more.

        What lies before the offset, sent by an earlier upload of the same content, is read and hashed first.
        """
        if offset < self._start:
            raise InvalidRequest(
                f"The server went back to offset {offset}, but a stream cannot be read again."
            )
        while self._start + len(self._piece) - offset < REST_BYTES_MAX and self.size_bytes is None:
            sent_bytes = min(offset - self._start, len(self._piece))
            if sent_bytes < len(self._piece):
                self._hash_of_sent.update(memoryview(self._piece)[:sent_bytes])
            else:
                self._hash_of_sent = self._hash.copy()
            self._start += sent_bytes
            more = await self._next_piece()
            self._hash.update(more)
            self._piece = self._piece[sent_bytes:] + more
            if len(more) < STREAM_PIECE_BYTES:
                self.size_bytes = self._start + len(self._piece)
        if offset > self._start + len(self._piece):
            raise InvalidRequest(f"The server has {offset} bytes, but the stream has {self.size_bytes}.")
        return self._start + len(self._piece) - offset

    async def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        at = offset - self._start
        return self._piece[at : at + length]

    async def sha256(self) -> str:
        """See Source."""
        return self._hash.hexdigest()

    async def _next_piece(self) -> bytes:
        """STREAM_PIECE_BYTES or more; less at the end only."""
        ahead, self._ahead = self._ahead, b""
        return ahead + await self._read_on(STREAM_PIECE_BYTES - len(ahead))

    async def _read_on(self, bytes_min: int) -> bytes:
        """Read at least this many bytes; fewer only at the end."""
        parts: list[bytes] = []
        size_bytes = 0
        while size_bytes < bytes_min and (part := await self._more()):
            parts.append(part)
            size_bytes += len(part)
        return b"".join(parts)


async def read_ahead(source: Source, offset: int, length: int) -> AsyncGenerator[bytes, None]:
    """Yield bytes of a prepared piece; the next part is read, and hashed, while the one before is used."""
    end = offset + length
    reading = asyncio.create_task(source.read(offset, min(READ_BYTES, length)))
    try:
        while offset < end:
            part = await reading
            offset += len(part)
            if offset < end:
                reading = asyncio.create_task(source.read(offset, min(READ_BYTES, end - offset)))
            yield part
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def source_of(content: Contents) -> Source:
    """The source of what a caller hands over. Raises InvalidRequest for a file that was opened as text."""
    if isinstance(content, AsyncIterable):
        return StreamSource(_from_async(content))
    if isinstance(content, (bytes, bytearray, memoryview)):
        return BytesSource(bytes(content))
    if isinstance(content, io.TextIOBase):
        raise InvalidRequest("The file is open as text; open it with mode 'rb'.")
    if _is_regular(content):
        return FileSource(content)
    if hasattr(content, "read"):
        return StreamSource(_from_file(content))
    return StreamSource(_from_iterable(content))


def _is_regular(content: Any) -> TypeGuard[BinaryIO]:
    """Return whether this is an open regular file, positioned at its beginning.

    A decompressing file object has the descriptor of the compressed file: only files of `open` can be read by
    their descriptor instead of by `read`.
    """
    if isinstance(content, io.BufferedRandom):
        content.flush()
    raw = content.raw if isinstance(content, (io.BufferedReader, io.BufferedRandom)) else content
    if not isinstance(raw, io.FileIO) or not raw.readable():
        return False
    return stat.S_ISREG(os.fstat(raw.fileno()).st_mode) and content.tell() == 0


def _from_file(content: Any) -> Callable[[], Awaitable[bytes]]:
    async def more() -> bytes:
        part: bytes | None = await asyncio.to_thread(content.read, READ_BYTES)
        if part is None:  # which is not its end
            raise InvalidRequest("The file is in non-blocking mode. Open it in blocking mode.")
        return part

    return more


def _from_async(content: AsyncIterable[bytes]) -> Callable[[], Awaitable[bytes]]:
    iterator = aiter(content)

    async def more() -> bytes:
        async for part in iterator:
            if part:
                return part
        return b""

    return more


def _from_iterable(content: Iterable[bytes]) -> Callable[[], Awaitable[bytes]]:
    iterator = iter(content)

    def following() -> bytes:
        return next((part for part in iterator if part), b"")

    return lambda: asyncio.to_thread(following)

"""Uploads by the Python client: tus 1.0.0 in bounded pieces.

They go on where the server says that they ended.

The source is a seekable file, or a pipe of unknown size (tus creation-defer-length), whose present piece
stays in memory so that it can be sent again. The bytes are hashed while they are sent; nothing is read
twice but what an earlier run has sent. The end of a file is read before it goes out, with the sha256 of the
whole: content that did not arrive as it was read here never becomes available.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ca.errors import Conflict, FilestoreError, Forbidden, Gone, InvalidRequest, NotFound, OffsetMismatch
from node.client.client import TRY_AGAIN, Client, RetryLimits
from node.http.digests import repr_digest

READ_BYTES = 1 << 20
FILE_PIECE_BYTES = (
    64 << 20
)  # as often as a node makes bytes durable by itself: less would only add round trips
PIPE_PIECE_BYTES = 8 << 20  # this much is held in memory
END_BYTES = 8 << 20  # of a file: so much too, and what is not larger goes in one request
COMPLETION_TIMEOUT_S = (
    1800.0  # the answer to the last piece comes when the replicas have copied the whole file
)

Progress = Callable[[int], None]


class SourceChanged(FilestoreError):
    """The file is another one than when its upload began: what was read is of no time."""

    code = "file_changed"
    status = 409
    title = "File Changed"


class UploadSource(Protocol):
    """Bytes to upload: a file that can be read anywhere, or a pipe that can only be read on.

    `failure`: why it could not be read. aiohttp hides what a body raises behind an error of the connection.
    """

    failure: Exception | None

    @property
    def size_bytes(self) -> int | None:
        """None as long as it is unknown."""

    async def prepare(self, offset: int) -> int:
        """How many bytes can be read from this offset, at most a piece; 0 at the end."""

    async def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at this offset, which lies in the prepared piece."""

    async def sha256(self) -> str:
        """Of everything, once all of it was read."""


class FileSource:
    """A seekable file as it is now: `facts`. Raises SourceChanged, before its end, if it was written to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.facts = os.fstat(file.fileno())
        self.failure: Exception | None = None
        self._size = self.facts.st_size
        self.size_bytes: int | None = self._size
        self._end, self._is_read = b"", False
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0

    async def prepare(self, offset: int) -> int:
        """See Source. What lies before the offset (sent by an earlier run) is hashed first."""
        if offset > self._size:
            raise InvalidRequest(f"The server holds {offset} bytes, the file has {self._size}.")
        await self._hash_to(offset)
        left_bytes = self._size - offset
        if left_bytes > END_BYTES:
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

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        part = self._file.read(length)
        if len(part) != length:
            raise SourceChanged(f"The file became shorter than {self._size} bytes while it was read.")
        end = offset + len(part)
        if offset <= self._hashed_bytes < end:
            self._hash.update(memoryview(part)[self._hashed_bytes - offset :])
            self._hashed_bytes = end
        return part

    def _read_end(self, offset: int, length: int) -> bytes:
        part = self._read(offset, length)
        facts = os.fstat(self._file.fileno())
        if (facts.st_size, facts.st_mtime_ns) != (self._size, self.facts.st_mtime_ns):
            raise SourceChanged("The file was written to while it was read; nothing of it is stored.")
        if os.pread(self._file.fileno(), 1, self._size):  # such as those of /proc, whose size is 0
            raise SourceChanged(f"The file has more than the {self._size} bytes that it says it has.")
        return part

    async def sha256(self) -> str:
        """See Source."""
        await self._hash_to(self._size)
        return self._hash.hexdigest()

    async def _hash_to(self, offset: int) -> None:
        while self._hashed_bytes < offset:
            await asyncio.to_thread(
                self._read, self._hashed_bytes, min(READ_BYTES, offset - self._hashed_bytes)
            )


class PipeSource:
    """A stream that ends some time. One piece is held, so that a lost connection costs nothing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.failure: Exception | None = None
        self.size_bytes: int | None = None
        self._hash = hashlib.sha256()
        self._start = 0
        self._piece = b""

    async def prepare(self, offset: int) -> int:
        """See Source. A server that fell back behind the held piece cannot be served any more."""
        end = self._start + len(self._piece)
        if not self._start <= offset <= end:
            raise InvalidRequest(f"The server fell back to offset {offset}; a pipe cannot be read again.")
        if offset == end and self.size_bytes is None:
            self._start = end
            self._piece = await asyncio.to_thread(self._next_piece)
        return self._start + len(self._piece) - offset

    def _next_piece(self) -> bytes:
        parts: list[bytes] = []
        wanted = PIPE_PIECE_BYTES
        while wanted:
            part = self._file.read(min(wanted, READ_BYTES))
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
        piece = b"".join(parts)
        self._hash.update(piece)
        if wanted:
            self.size_bytes = self._start + len(piece)
        return piece

    async def read(self, offset: int, length: int) -> bytes:
        """See Source."""
        at = offset - self._start
        return self._piece[at : at + length]

    async def sha256(self) -> str:
        """See Source."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class UploadState:
    """What HEAD tells: how far the upload is, and its size once that was declared."""

    offset: int
    size_bytes: int | None


async def upload(
    client: Client,
    file_uuid: str,
    source: UploadSource,
    *,
    offset: int = 0,
    progress: Progress = lambda _: None,
) -> None:
    """Send what the server lacks, from `offset` on (bytes); returns when the file is available.

    A server that tells that it has all bytes of a declared size has completed it before.

    Raises FilestoreError: the server's refusal, or Unavailable when nothing went forward until the deadline.
    """
    path = f"/api/v1/files/{file_uuid}/content"
    patience = client.patience()
    declare = source.size_bytes is None
    while True:
        length = await source.prepare(offset)
        progress(offset)
        try:
            offset = await _send_piece(client, path, source, offset, length, declare, progress)
            patience.progressed()
        except (*TRY_AGAIN, OffsetMismatch) as error:
            if source.failure is not None:
                raise source.failure from error
            offset, declare = await _catch_up(client, path, error, patience, offset)
            if declare or source.size_bytes is None or offset < source.size_bytes:
                continue
        if source.size_bytes is not None and offset >= source.size_bytes:
            progress(offset)
            return


async def _send_piece(
    client: Client,
    path: str,
    source: UploadSource,
    offset: int,
    length: int,
    declare: bool,
    progress: Progress,
) -> int:
    """One PATCH; answers the offset after it."""
    headers = {
        "Tus-Resumable": "1.0.0",
        "Upload-Offset": str(offset),
        "Content-Type": "application/offset+octet-stream",
        "Content-Length": str(length),
    }
    if declare and source.size_bytes is not None:
        headers["Upload-Length"] = str(source.size_bytes)
    if source.size_bytes is not None and offset + length == source.size_bytes:
        headers["Repr-Digest"] = repr_digest(await source.sha256())
    body = _parts(source, offset, length, progress) if length else b""
    async with client.exchange(
        "PATCH", path, headers=headers, data=body, answer_timeout_s=COMPLETION_TIMEOUT_S
    ) as response:
        return int(response.headers["Upload-Offset"])


async def _parts(source: UploadSource, offset: int, length: int, progress: Progress) -> AsyncIterator[bytes]:
    end = offset + length
    while offset < end:
        part = await source.read(offset, min(READ_BYTES, end - offset))
        yield part
        offset += len(part)
        progress(offset)


async def _catch_up(
    client: Client, path: str, reason: Exception, patience: RetryLimits, offset: int
) -> tuple[int, bool]:
    """After a failure: the offset that the server has, and whether it still waits for the size."""
    while True:
        if not isinstance(reason, OffsetMismatch):
            client.turn_away()
        await patience.pause(reason)
        try:
            state = await upload_state(client, path)
        except TRY_AGAIN as error:
            reason = error
            continue
        if state.offset > offset:
            patience.progressed()
        return state.offset, state.size_bytes is None


async def upload_state(client: Client, path: str) -> UploadState:
    """One HEAD on the upload (tus). Raises NotFound or Gone when it has ended or expired."""
    async with client.exchange("HEAD", path, headers={"Tus-Resumable": "1.0.0"}) as response:
        length = response.headers.get("Upload-Length")
        return UploadState(
            offset=int(response.headers["Upload-Offset"]),
            size_bytes=None if length is None else int(length),
        )


async def give_up(client: Client, file_uuid: str) -> None:
    """End an upload that is not complete, with its record (tus termination). Raises FilestoreError.

    The request that broke off may hold the upload for a moment yet.
    """
    path, patience = f"/api/v1/files/{file_uuid}/content", client.patience()
    while True:
        try:
            async with client.exchange("DELETE", path, headers={"Tus-Resumable": "1.0.0"}):
                return
        except TRY_AGAIN as error:
            await patience.pause(error)


async def find_unfinished(client: Client, file_uuid: str) -> UploadState | None:
    """Where an upload of an earlier run stands; None when it is not there any more, or of another user.

    Raises FilestoreError where that cannot be told, such as Unauthorized.
    """
    patience = client.patience()
    while True:
        try:
            return await upload_state(client, f"/api/v1/files/{file_uuid}/content")
        except TRY_AGAIN as error:
            client.turn_away()
            await patience.pause(error)
        except (NotFound, Gone, Conflict, Forbidden):
            return None

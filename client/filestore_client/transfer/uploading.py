"""Uploads: tus 1.0.0 in bounded pieces, which go on where the server says that they ended.

The source is a seekable file, or a stream of unknown size (tus creation-defer-length), whose present piece
stays in memory so that it can be sent again. The bytes are hashed while they are sent; nothing is read twice
but what an earlier run has sent, which is compared with what the server has before anything follows it. The
end of a file is read before it goes out, with the sha256 of the whole: content that did not arrive as it was
read here never becomes available.

Tested by tests/unit/filestore_client/test_sources.py.
"""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from filestore_client.base.errors import (
    Conflict,
    FilestoreError,
    Forbidden,
    Gone,
    NotFound,
    OffsetMismatch,
)
from filestore_client.base.paths import upload_path
from filestore_client.base.retry import TRY_AGAIN, RetryLimits
from filestore_client.base.transport import Transport
from filestore_client.transfer.delta import BASE_FIELD, DELTA_TYPE, Base, encode_piece
from filestore_client.transfer.sources import Source, read_ahead

PATCH_TYPE = "application/offset+octet-stream"
DELTA_FAILURES_MAX = 2  # in a row; then the bytes themselves are sent
COMPLETION_TIMEOUT_S = 1800.0  # the last piece is answered when the replicas have the whole file

SentBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class UploadState:
    """The response to HEAD: the offset of the upload, and its size once it was declared.

    `prefix_digest`: of the bytes before `offset`, as `repr_digest` writes it; until 0.3.0: "" from
    a server of 0.1.0.
    """

    offset: int
    size_bytes: int | None
    prefix_digest: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the server has all bytes: then the file is available."""
        return self.offset == self.size_bytes


async def upload(
    transport: Transport,
    file_uuid: str,
    source: Source,
    *,
    offset: int = 0,
    progress: SentBytes = lambda _: None,
    base: Base | None = None,
) -> None:
    """Send what the server lacks, from `offset` on (bytes); returns when the file is available.

    If a server has all bytes of a declared size, the upload was completed before. `base`: a file whose
    content need not be sent. If the server rejects that, all bytes are sent.

    Raises FilestoreError: the server's error, or Unavailable without progress until the deadline.
    """
    path = upload_path(file_uuid)
    limits = transport.limits()
    declare, failures = source.size_bytes is None, 0
    while True:
        length = await source.prepare(offset)
        progress(offset)
        url = transport.url
        try:
            offset = await _send_piece(transport, path, source, offset, length, declare, progress, base)
            limits.note_progress()
            failures = 0
        except (*TRY_AGAIN, FilestoreError) as error:
            if source.failure is not None:
                raise source.failure from error
            is_lasting = not isinstance(error, (*TRY_AGAIN, OffsetMismatch))
            if is_lasting and base is None:
                raise
            failures += 1
            if is_lasting or failures >= DELTA_FAILURES_MAX:
                base = None
            offset, declare = await _catch_up(transport, path, url, error, limits, offset)
            if declare or source.size_bytes is None or offset < source.size_bytes:
                continue
        if source.size_bytes is not None and offset >= source.size_bytes:
            progress(offset)
            return


async def _send_piece(
    transport: Transport,
    path: str,
    source: Source,
    offset: int,
    length: int,
    declare: bool,
    progress: SentBytes,
    base: Base | None,
) -> int:
    """One PATCH; answers the offset after it."""
    headers = {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset)}
    if base is None or not length:
        headers |= {"Content-Type": PATCH_TYPE, "Content-Length": str(length)}
        body = _parts(source, offset, length, progress) if length else b""
    else:
        headers |= {"Content-Type": DELTA_TYPE, BASE_FIELD: base.file_uuid}
        body = encode_piece(base, source, offset, length, progress)
    if declare and source.size_bytes is not None:
        headers["Upload-Length"] = str(source.size_bytes)
    if source.size_bytes is not None and offset + length == source.size_bytes:
        headers["Repr-Digest"] = repr_digest(await source.sha256())
    async with transport.exchange(
        "PATCH", path, headers=headers, data=body, answer_timeout_s=COMPLETION_TIMEOUT_S
    ) as response:
        return int(response.headers["Upload-Offset"])


async def _parts(source: Source, offset: int, length: int, progress: SentBytes) -> AsyncIterator[bytes]:
    async with aclosing(read_ahead(source, offset, length)) as parts:
        async for part in parts:
            yield part
            offset += len(part)
            progress(offset)


async def _catch_up(
    transport: Transport, path: str, url: str, reason: Exception, limits: RetryLimits, offset: int
) -> tuple[int, bool]:
    """After a failure at `url`: the offset that the server has, and whether it still waits for the size."""
    while True:
        if isinstance(reason, TRY_AGAIN):
            transport.turn_away(url)
        await limits.pause(reason)
        url = transport.url
        try:
            state = await upload_state(transport, path)
        except TRY_AGAIN as error:
            reason = error
            continue
        if state.offset > offset:
            limits.note_progress()
        return state.offset, state.size_bytes is None


async def upload_state(transport: Transport, path: str) -> UploadState:
    """One HEAD on the upload (tus). Raises NotFound or Gone when it has ended or expired."""
    async with transport.exchange("HEAD", path, headers={"Tus-Resumable": "1.0.0"}) as response:
        length = response.headers.get("Upload-Length")
        return UploadState(
            offset=int(response.headers["Upload-Offset"]),
            size_bytes=None if length is None else int(length),
            prefix_digest=response.headers.get("Upload-Prefix-Digest", ""),
        )


async def is_begun_with(source: Source, state: UploadState) -> bool:
    """Return whether the bytes that the server has are the first ones of this source.

    To be asked before the source is read. It is true for a server that does not tell, since the end of every
    upload carries the sha256 of the whole. Raises OSError, FilestoreError.
    """
    if not state.prefix_digest:
        return True
    return state.prefix_digest == repr_digest(await source.prefix_sha256(state.offset))


async def give_up(transport: Transport, file_uuid: str) -> None:
    """End an upload that is not complete, with its record (tus termination). Raises FilestoreError.

    The request that broke off may hold the upload for a moment yet.
    """
    path, limits = upload_path(file_uuid), transport.limits()
    while True:
        url = transport.url
        try:
            async with transport.exchange("DELETE", path, headers={"Tus-Resumable": "1.0.0"}):
                return
        except TRY_AGAIN as error:
            transport.turn_away(url)
            await limits.pause(error)


async def find_unfinished(transport: Transport, file_uuid: str) -> UploadState | None:
    """Return the state of an earlier run's upload; None if it does not exist, or belongs to another user.

    Raises FilestoreError if that is unknown, such as Unauthorized.
    """
    limits = transport.limits()
    while True:
        url = transport.url
        try:
            return await upload_state(transport, upload_path(file_uuid))
        except TRY_AGAIN as error:
            transport.turn_away(url)
            await limits.pause(error)
        except (NotFound, Gone, Conflict, Forbidden):
            return None


def repr_digest(sha256: str) -> str:
    """The header Repr-Digest (RFC 9530) for a content with this hash."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode('ascii')}:"

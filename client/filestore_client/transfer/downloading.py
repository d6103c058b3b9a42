"""Downloads: in order into a stream, with resumption, or into NAME.part, then checked and renamed.

The ETag of a file is the SHA-256 of its content, so the end of every download is a comparison.
`filestore_client.transfer.ranges` takes several streams.

Tested by tests/unit/filestore_client/test_ranges.py.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

import aiohttp

from filestore_client.base.errors import ChecksumMismatch, Conflict, FilestoreError, Internal, InvalidRequest
from filestore_client.base.paths import content_path, is_harmless
from filestore_client.base.records import Content
from filestore_client.base.retry import TRY_AGAIN
from filestore_client.base.transport import Transport
from filestore_client.transfer.partial_file import PartialFile
from filestore_client.transfer.ranges import CONNECTIONS, download_ranges

READ_BYTES = 1 << 20

Progress = Callable[[int, int | None], None]


class HashedStream:
    """A stream that the bytes of a download are appended to, in order, and hashed."""

    def __init__(self, file: BinaryIO, progress: Progress, total_bytes: int) -> None:
        self._file = file
        self._progress = progress
        self._total_bytes = total_bytes
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    async def write(self, part: bytes) -> None:
        """Append, in a thread: a slow reader must not stop the network."""
        await asyncio.to_thread(self._write, part)
        self._progress(self.size_bytes, self._total_bytes)

    def _write(self, part: bytes) -> None:
        self._file.write(part)
        self._hash.update(part)
        self.size_bytes += len(part)

    def check(self, content: Content) -> None:
        """Raises ChecksumMismatch unless this is the content, to the byte."""
        if (self.size_bytes, self._hash.hexdigest()) != (content.size_bytes, content.sha256):
            raise ChecksumMismatch(
                f"Expected {content.size_bytes} bytes with SHA-256 {content.sha256},"
                f" got {self.size_bytes} with {self._hash.hexdigest()}."
            )


async def describe(transport: Transport, file_uuid: str) -> Content:
    """Size, checksum and name of an available file. Raises NotFound, NotAvailable, Forbidden, Unavailable."""
    limits = transport.limits()
    while True:
        url = transport.url
        try:
            return await _head(transport, url, content_path(file_uuid))
        except TRY_AGAIN as error:
            transport.turn_away(url)
            await limits.pause(error)


async def download_to_stream(
    transport: Transport, file_uuid: str, content: Content, stream: BinaryIO, *, progress: Progress
) -> None:
    """Write the content to a stream, in order, over one connection.

    A wrong checksum is only known at the end: then ChecksumMismatch.
    """
    sink = HashedStream(stream, progress, content.size_bytes)
    await _download(transport, file_uuid, content, sink)
    stream.flush()
    sink.check(content)


async def _download(transport: Transport, file_uuid: str, content: Content, sink: HashedStream) -> None:
    """Append to the sink what it lacks of the content. The caller compares the checksum.

    Raises FilestoreError: the server's refusal, or Unavailable when nothing went forward until the deadline.
    """
    limits = transport.limits()
    while sink.size_bytes < content.size_bytes:
        before, url = sink.size_bytes, transport.url
        headers = {"If-Match": f'"{content.sha256}"'}
        if before:
            headers["Range"] = f"bytes={before}-"
        try:
            path = content_path(file_uuid)
            async with transport.exchange("GET", path, url=url, headers=headers) as response:
                if response.status != (206 if before else 200):
                    raise Internal(f"The server answered {response.status} to a request for a range.")
                async for part in response.content.iter_chunked(READ_BYTES):
                    await sink.write(part)
        except TRY_AGAIN as error:
            if sink.size_bytes > before:
                limits.note_progress()
            transport.turn_away(url)
            await limits.pause(error)


async def read_span(
    transport: Transport, file_uuid: str, content: Content, start: int, stop: int
) -> AsyncIterator[bytes]:
    """Bytes `start` to `stop` (excluded) of the content, in order, over one connection that may be replaced.

    Raises as `download` does.
    """
    limits = transport.limits()
    while start < stop:
        headers = {"If-Match": f'"{content.sha256}"', "Range": f"bytes={start}-{stop - 1}"}
        before, url = start, transport.url
        try:
            path = content_path(file_uuid)
            async with transport.exchange("GET", path, url=url, headers=headers) as response:
                if response.status != 206:
                    raise Internal(f"The server answered {response.status} to a request for a range.")
                async for part in response.content.iter_chunked(READ_BYTES):
                    start += len(part)
                    yield part
        except TRY_AGAIN as error:
            if start > before:
                limits.note_progress()
            transport.turn_away(url)
            await limits.pause(error)


async def _head(transport: Transport, url: str, path: str) -> Content:
    """Make one attempt. A rejected HEAD has no body with the reason, but GET has."""
    try:
        async with transport.exchange("HEAD", path, url=url) as response:
            return _content(response)
    except FilestoreError:
        async with transport.exchange("GET", path, url=url, headers={"Range": "bytes=0-0"}):
            raise


def _content(response: aiohttp.ClientResponse) -> Content:
    etag = response.headers.get("ETag", "")
    disposition = response.content_disposition
    return Content(
        size_bytes=int(response.headers.get("Content-Length", "0")),
        sha256=etag.strip('"'),
        filename=(disposition and disposition.filename) or "",
        content_type=response.headers.get("Content-Type", ""),
    )


async def download_to_file(
    transport: Transport,
    file_uuid: str,
    content: Content,
    target: Path | None,
    *,
    connections: int = CONNECTIONS,
    replace: bool = True,
    progress: Progress,
) -> Path:
    """Write the content to `target`; in a directory, by default this one, to a new file of its own name.

    Answers the path. Raises FilestoreError, OSError; after ChecksumMismatch nothing is left.
    """
    path = target or Path()
    is_named = not path.is_dir()
    if not is_named:
        path = path / _plain_name(content.filename)
    replace = replace and is_named
    if path.exists() and not replace and (path.is_file() or not is_named):
        raise Conflict(f"{path} exists; give it another name here, or replace it (--force).")
    if path.exists() and not path.is_file():
        raise InvalidRequest(f"{path} is not a regular file; write to an open one instead.")
    writing = PartialFile(path, content, progress, threads=connections, replaces=replace)
    async with writing as partial:
        hashing = asyncio.create_task(partial.sha256())
        try:
            await download_ranges(transport, file_uuid, content, partial, connections=connections)
            sha256 = await hashing
        finally:
            hashing.cancel()
            await asyncio.gather(hashing, return_exceptions=True)
        await partial.finish(sha256)
    return path


def _plain_name(filename: str) -> str:
    """The name that a server gave, as far as it is one.

    Raises InvalidRequest for a name that points elsewhere or is hidden: its uploader chose it.
    """
    if filename in {"", ".", ".."} or "/" in filename or not all(map(is_harmless, filename)):
        raise InvalidRequest(f"The file is named {filename!r}; give it another name here.")
    if filename.startswith("."):  # a shell, or another program, would read it
        raise InvalidRequest(f"The file is named {filename!r}, a hidden file; give it a name here.")
    return filename

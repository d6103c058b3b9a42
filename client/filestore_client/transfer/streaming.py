"""Downloads in order: one stream that goes on after a cut.

The bytes go to a sink that knows how many it already has; the ETag of a file is the SHA-256 of its content,
so the end of every download is a comparison. `filestore_client.transfer.ranges` takes several streams.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

from filestore_client.base.errors import FilestoreError, Internal
from filestore_client.base.paths import content_path
from filestore_client.base.records import Content
from filestore_client.base.retry import TRY_AGAIN
from filestore_client.base.transport import Transport

READ_BYTES = 1 << 20


class Sink(Protocol):
    """Where the bytes of a download go, in order."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""

    async def write(self, part: bytes) -> None:
        """Append."""


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


async def download(transport: Transport, file_uuid: str, content: Content, sink: Sink) -> None:
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
                limits.progressed()
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
                limits.progressed()
            transport.turn_away(url)
            await limits.pause(error)


async def _head(transport: Transport, url: str, path: str) -> Content:
    """One attempt. A refusal of HEAD has no body that would say why: that of GET has."""
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

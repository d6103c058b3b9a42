"""Downloads in order by the Python client: one stream that goes on after a cut, and a checksum at the end.

The bytes go to a sink that knows how many it already has; the ETag of a file is the SHA-256 of its
content, so the end of every download is a comparison. `node.client.ranges` takes several streams.
"""

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import aiohttp

from ca.errors import FilestoreError, Internal
from node.client.client import TRY_AGAIN, Client

READ_BYTES = 1 << 20


class Sink(Protocol):
    """Where the bytes of a download go, in order."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""

    async def write(self, part: bytes) -> None:
        """Append."""


@dataclass(frozen=True, slots=True)
class Content:
    """What HEAD tells of a file: its size, checksum (hex) and name."""

    size_bytes: int
    sha256: str
    filename: str


async def describe(client: Client, file_uuid: str) -> Content:
    """Size, checksum and name of an available file. Raises NotFound, NotAvailable, Forbidden, Unavailable."""
    patience = client.patience()
    while True:
        try:
            return await _head(client, content_path(file_uuid))
        except TRY_AGAIN as error:
            client.turn_away()
            await patience.pause(error)


async def download(client: Client, file_uuid: str, content: Content, sink: Sink) -> None:
    """Append to the sink what it lacks of the content. The caller compares the checksum.

    Raises FilestoreError: the server's refusal, or Unavailable when nothing went forward until the deadline.
    """
    patience = client.patience()
    while sink.size_bytes < content.size_bytes:
        before = sink.size_bytes
        headers = {"If-Match": f'"{content.sha256}"'}
        if before:
            headers["Range"] = f"bytes={before}-"
        try:
            async with client.exchange("GET", content_path(file_uuid), headers=headers) as response:
                if response.status != (206 if before else 200):
                    raise Internal(f"The server answered {response.status} to a request for a range.")
                async for part in response.content.iter_chunked(READ_BYTES):
                    await sink.write(part)
        except TRY_AGAIN as error:
            if sink.size_bytes > before:
                patience.progressed()
            client.turn_away()
            await patience.pause(error)


def content_path(file_uuid: str) -> str:
    """Where content is read."""
    return f"/api/v1/files/{quote(file_uuid, safe='')}"


async def _head(client: Client, path: str) -> Content:
    """One attempt. A refusal of HEAD has no body that would say why: that of GET has."""
    try:
        async with client.exchange("HEAD", path) as response:
            return _content(response)
    except FilestoreError:
        async with client.exchange("GET", path, headers={"Range": "bytes=0-0"}):
            raise


def _content(response: aiohttp.ClientResponse) -> Content:
    etag = response.headers.get("ETag", "")
    disposition = response.content_disposition
    return Content(
        size_bytes=int(response.headers.get("Content-Length", "0")),
        sha256=etag.strip('"'),
        filename=(disposition and disposition.filename) or "",
    )

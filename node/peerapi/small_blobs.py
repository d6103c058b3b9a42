"""POST /small-blobs: takes many small blobs in one request. Apart from `blobs`, where each has a request.

Other nodes send them for this one to keep.

What is sent is as `node/uploads/small_copies.py` encodes it. Who may ask is decided by
`node/peerapi/admission.py`.
"""

import asyncio
from contextlib import aclosing
from typing import Final

from aiohttp import web

from ca.errors import InvalidRequest, PayloadTooLarge
from node.packs.store import BLOB_BYTES_MAX
from node.uploads.services import NODE
from node.uploads.small_copies import PATH, REQUEST_BYTES_MAX, decode_small_blobs
from web.app import body_batches

_BODY_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX


def small_blob_routes() -> list[web.RouteDef]:
    """The one route."""
    return [web.post(PATH, _take)]


async def _take(request: web.Request) -> web.StreamResponse:
    """200 when all of them are durable here.

    Raises InvalidRequest, and nothing is kept, when one does not hash to its name; InsufficientStorage.
    """
    services = request.app[NODE]
    if request.content_length is None or request.content_length > _BODY_BYTES_MAX:
        raise PayloadTooLarge(f"Content-Length: is required, of at most {_BODY_BYTES_MAX}.")
    pieces = list[bytes]()
    async with aclosing(body_batches(request)) as batches:
        async for batch in batches:
            pieces += map(bytes, batch)
    try:
        blobs = decode_small_blobs(b"".join(pieces))
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    if any(len(content) > BLOB_BYTES_MAX for _, content in blobs):
        raise PayloadTooLarge(f"A small blob has at most {BLOB_BYTES_MAX} bytes.")
    await asyncio.gather(*(services.small_blobs.put(*blob) for blob in blobs))
    services.metrics.replica_bytes.labels("received").inc(sum(len(content) for _, content in blobs))
    return web.Response()

"""Passing a request on to the node that holds the upload, over its peer port, streamed both ways.

The credential goes along and is verified there again. A request is passed on once: the holder's name
travels with it, and a node that gets one which it does not hold refuses it, so that two nodes with
different views cannot play ball.
"""

import logging
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from ca.errors import FilestoreError, Unavailable
from coordinator.web import body_chunks, request_id
from node.peers import STALL_TIMEOUT_S, PeerClient, PeerFailed, pieces

PASSED_ON = "Filestore-Passed-On"  # how often this request was passed on; once is all there is
_COMPLETION_TIMEOUT_S = 600.0  # after the last byte: the holder may sync, copy and commit a large file
_NOT_PASSED = frozenset(
    {
        "connection", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "server", "te", "trailer", "transfer-encoding", "upgrade", PASSED_ON.lower(),
    }
)  # RFC 9110, section 7.6.1: these belong to one connection  # fmt: skip

_log = logging.getLogger(__name__)


async def pass_on(request: web.Request, peers: PeerClient, node_id: str) -> web.StreamResponse:
    """The holder's answer to this request. Raises Unavailable when it cannot be reached, ClientGone."""
    if PASSED_ON in request.headers:
        raise Unavailable(f"Node {node_id} holds this upload; the nodes do not agree on that yet.")
    kept = [(name, value) for name, value in request.headers.items() if name.lower() not in _NOT_PASSED]
    headers = CIMultiDict(kept)
    headers[PASSED_ON] = "1"
    headers["X-Request-Id"] = request_id(request)
    body = _Body(request)
    try:
        async with peers.request(
            node_id,
            request.method,
            request.rel_url.raw_path_qs,  # never the target as it came: that may be a whole URL
            headers=headers,
            body=body.chunks() if request.body_exists else None,
            answer_timeout_s=_COMPLETION_TIMEOUT_S if request.body_exists else STALL_TIMEOUT_S,
        ) as answer:
            return await _return(request, node_id, answer)
    except PeerFailed as failure:
        if body.error is not None:
            raise body.error from failure
        _log.warning("passing on failed", extra={"peer": node_id, "reason": failure.reason})
        raise Unavailable(
            f"Node {node_id}, which holds this upload, cannot be reached.", retry_after_s=2
        ) from failure


class _Body:
    """The client's body on its way to the holder.

    `error` is what ended it early: the HTTP client swallows that.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.error: Exception | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in body_chunks(self._request):
                yield chunk
        except (FilestoreError, ConnectionError) as error:
            self.error = error
            raise


async def _return(request: web.Request, node_id: str, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """The head of the answer, then its body as it comes. Raises PeerFailed before the head is out only."""
    headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED]
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    response.headers.extend(headers)
    await response.prepare(request)
    try:
        async for piece in pieces(node_id, answer):
            await response.write(piece)
    except PeerFailed as failure:
        raise Unavailable(
            str(failure)
        ) from failure  # too late for an answer: the shell breaks the connection
    await response.write_eof()
    return response

"""The HTTP shell that coordinators and nodes share: what holds for every request and answer.

Every error is JSON, even those found before routing; every answer carries a request id; headers, bodies and
idle connections have deadlines. Handlers decode, authorise, call and encode, and raise the classes of
`ca.errors`.

Tested by tests/unit/web/test_listener.py.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeVar

from aiohttp import hdrs, web

from ca import errors
from runtime.metrics import Metrics
from web.connection import Connections, announce_close
from web.cors import join_vary
from web.fastpath import DIRECT
from web.json_body import decode_json
from web.listener import PEER_UNSENT_BYTES, PLAIN_UNSENT_BYTES, Acceptor, Places, listening_socket
from web.memory_quota import SMALL_BYTES
from web.rate_limits import RequestTimeouts
from web.request_body import body_batches, body_chunks
from web.responses import (
    PREPARED,
    ClientGone,
    bare_response,
    error_response,
    headers_of_every_answer,
    json_response,
    request_id,
)
from web.web_access import WEB

__all__ = [
    "METRICS",
    "ClientGone",
    "Listener",
    "body_batches",
    "body_chunks",
    "decode_json",
    "error_response",
    "json_response",
    "new_application",
    "read_json",
    "request_id",
    "serve",
    "serve_on",
]

JSON_BYTES_MAX: Final = 1 << 20
LAST_ACTS_S: Final = 1.0  # for requests that were cut off: to report what they have made durable, for one
METRICS: Final = web.AppKey("metrics", Metrics)
_log = logging.getLogger("filestore.http")
T = TypeVar("T")


def new_application(
    routes: Iterable[web.AbstractRouteDef], *, component: str, metrics: Metrics | None = None
) -> web.Application:
    """An application with these routes, for one listener; `serve` puts the shell around it.

    `component` names the process in a new registry when `metrics` is not given.
    """
    app = web.Application()
    app[METRICS] = metrics or Metrics(component)
    for route in routes:
        if isinstance(route, web.RouteDef):
            options = {"expect_handler": _expect_later, **route.kwargs}
            route = web.RouteDef(route.method, route.path, route.handler, options)
        route.register(app.router)
    app.on_response_prepare.append(_finish_headers)
    return app


async def serve(
    app: web.Application,
    *,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None,
    peer: bool = False,
    shared: bool = False,
    patience: RequestTimeouts | None = None,
    places: Places | None = None,
    metrics: Metrics | None = None,
) -> "Listener":
    """Listen on `host` and serve the application there; port 0 takes a free one.

    `peer`: the requests come from members; they are logged at level debug, and their answers wait here and
    not in the kernel. `shared`: several processes listen on this port. `places` bounds the number of
    connections, by default for this listener alone. `metrics` count the refused ones, by default those of
    `app`. Raises OSError when the address cannot be had.
    """
    listening = await listening_socket(host, port, shared=shared)
    return await serve_on(
        listening,
        app,
        ssl_context=ssl_context,
        peer=peer,
        patience=patience,
        places=places,
        metrics=metrics,
    )


async def serve_on(
    listening: socket.socket,
    app: web.Application,
    *,
    ssl_context: ssl.SSLContext | None = None,
    peer: bool = False,
    patience: RequestTimeouts | None = None,
    places: Places | None = None,
    metrics: Metrics | None = None,
) -> "Listener":
    """Serve as `serve` does, on a socket that listens already."""
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, app[METRICS], patience or RequestTimeouts(), peer=peer)
    connections.direct = app.get(DIRECT)
    connections.web = app.get(WEB, connections.web)
    acceptor = Acceptor(
        listening,
        connections.new_connection,
        ssl_context=ssl_context,
        handshake_s=connections.patience.headers_s,
        shutdown_s=connections.patience.linger_s,
        places=places or Places(peers=peer),
        on_refused=(metrics or app[METRICS]).connection_refused,
        is_ours=connections.web.proxies.trusts,
        not_tls=lambda: bare_response(errors.InvalidRequest("This port speaks TLS: ask with https://.")),
        unsent_bytes=_unsent_bytes(peer=peer, tls=ssl_context is not None),
    )
    acceptor.start()
    return Listener(app, connections, acceptor)


def _unsent_bytes(*, peer: bool, tls: bool) -> int:
    """How many unsent bytes the kernel may keep for each connection of a port; 0 sets no bound.

    A bound would make encrypted answers to clients slower.
    """
    if peer:
        return PEER_UNSENT_BYTES
    return 0 if tls else PLAIN_UNSENT_BYTES


class Listener:
    """A listening socket with its connections. `port` is the one that was bound."""

    def __init__(self, app: web.Application, connections: Connections, acceptor: Acceptor) -> None:
        self._app = app
        self._connections = connections
        self._acceptor = acceptor
        self.port = acceptor.port

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop listening, let running requests end for `drain_s`, then cut them off."""
        await self._acceptor.close()
        await asyncio.sleep(0)  # requests that have arrived count as running
        self._connections.start_draining()
        await self._app.shutdown()
        try:
            async with asyncio.timeout(drain_s):
                await self._connections.drained.wait()
        except TimeoutError:
            _log.warning("cutting off requests", extra={"requests": self._connections.in_progress})
        await self._connections.cut_off_direct()
        await self._connections.shutdown(0.5)  # answers that are being written have this long
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ACTS_S):
                await self._connections.drained.wait()
        await self._app.cleanup()


def keeps_in_memory(request: web.Request, size_bytes: int) -> bool:
    """Return whether this much of a client's body fits in memory; it then counts until the request ends."""
    share = request.protocol.share  # type: ignore[attr-defined]  # it is a connection of ours
    return bool(share.takes_spare(size_bytes))


async def read_json(request: web.Request, body_type: type[T]) -> T:
    """The body as a `body_type` (a msgspec Struct that forbids unknown fields); see `decode_json`.

    Raises UnsupportedMediaType, PayloadTooLarge beyond 1 MiB, RequestTimeout, InvalidRequest and ClientGone;
    RateLimited where the memory for clients is used up.
    """
    if (
        request.body_exists
        and hdrs.CONTENT_TYPE in request.headers
        and request.content_type != "application/json"
    ):
        raise errors.UnsupportedMediaType(
            "Content-Type: this endpoint accepts only application/json"
            " (curl: -H 'Content-Type: application/json')."
        )
    too_large = errors.PayloadTooLarge(f"A JSON body may have at most {JSON_BYTES_MAX} bytes.")
    if (request.content_length or 0) > JSON_BYTES_MAX:
        raise too_large
    share = request.protocol.share  # type: ignore[attr-defined]  # it is a connection of ours
    body = bytearray()
    try:
        async with asyncio.timeout(request.protocol.patience.json_body_s):  # type: ignore[attr-defined]
            async for piece in body_chunks(request):
                if len(body) <= SMALL_BYTES < len(body) + len(piece):
                    share.take(JSON_BYTES_MAX)
                body += piece
                if len(body) > JSON_BYTES_MAX:
                    raise too_large
        return decode_json(bytes(body), body_type)
    except TimeoutError:
        raise errors.RequestTimeout("The body arrived too slowly.") from None
    finally:
        share.give_back()


async def _finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    request[PREPARED] = True
    announce_close(request, response)
    added = headers_of_every_answer(request)
    if hdrs.VARY in added and hdrs.VARY in response.headers:
        added[hdrs.VARY] = join_vary(response.headers[hdrs.VARY], added[hdrs.VARY])
    response.headers.update(added)


async def _expect_later(request: web.Request) -> None:
    """Replace aiohttp's handler, which sends `100 Continue` before ours runs; `body_chunks` sends it."""

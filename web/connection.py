"""The connections of a listener: limits on what comes before a request, and every error as an answer.

aiohttp's defaults that are unsafe here are switched off or covered in this file only.

Tested by tests/unit/web/test_connection_ends.py.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from ca import errors
from ca.errors import FilestoreError
from runtime.logs import REQUEST_ID, log_request, shown_path
from runtime.metrics import Metrics
from web.buffer_ring import BodyRing
from web.chunked import Framing
from web.fastpath import CLIENT_GONE, Boundary, DirectAnswer, DirectConnection, Responder
from web.internals.aiohttp_server import answer_in_http_11, close_behind, match_of
from web.memory_quota import BUFFERED
from web.rate_limits import RequestTimeouts
from web.request_body import waits_to_go_on
from web.responses import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    PREPARED,
    TARGET_BYTES_MAX,
    ClientGone,
    bare_response,
    error_of,
    error_response,
    from_malformed,
    request_id,
)
from web.web_access import WebAccess, client_address, note_forwarded

PEER_HEADERS_EXTRA: Final = 8  # what a member adds to a request that it passes on
# RFC 9112, section 3.2: a name or an address, which may be empty, and a port.
_HOST: Final = re.compile(r"(?:\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(?::[0-9]*)?")
_ALLOWED: Final = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
# Those that are refused by their path, and answered 405: all others are unknown (RFC 9110, section 9.1).
_METHODS: Final = frozenset({*_ALLOWED.split(", "), hdrs.METH_CONNECT, hdrs.METH_TRACE})
_STARTED_S: Final = web.RequestKey("started_s", float)
_log = logging.getLogger("filestore.http")


class Connections(web.Server):
    """All connections of a listener, and the one place where the errors of their requests become answers."""

    def __init__(self, plain: web.Server, metrics: Metrics, patience: RequestTimeouts, *, peer: bool) -> None:
        super().__init__(self._edge, request_factory=plain.request_factory)  # type: ignore[arg-type]
        self._route = plain.request_handler
        self.metrics = metrics
        self.patience = patience
        self.log_level = logging.DEBUG if peer else logging.INFO
        self._is_peer = peer
        self.web = WebAccess()  # how this process is reached by browsers, if it is
        self.headers_max = HEADERS_MAX + (PEER_HEADERS_EXTRA if peer else 0)
        self.direct: Responder | None = None  # who may answer past aiohttp
        self.sending: set[asyncio.Task[None]] = set()  # direct answers that take their time
        self.in_progress = 0
        self.draining = False
        self.drained = asyncio.Event()
        metrics.count_in_progress(lambda: self.in_progress)

    def new_connection(self, on_end: Callable[[], None]) -> asyncio.Protocol:
        """The protocol of a connection that has arrived; `on_end` is called when it is lost."""
        return _Connection(self, on_end)

    def start_draining(self) -> None:
        """Close the idle connections, and each other one after its answer; `drained` when no request runs."""
        self.draining = True
        self.direct = None
        for connection in self.connections:
            assert isinstance(connection, _Connection)
            is_idle = connection.is_waiting and connection.sending is None
            if is_idle and not connection.headers_begun:
                connection.force_close()
        if self.in_progress == 0:
            self.drained.set()

    async def cut_off_direct(self) -> None:
        """Break off the direct answers that still run, and wait until they have let go of what they send."""
        for sending in self.sending:
            sending.cancel()
        if self.sending:
            await asyncio.wait(self.sending)

    def began(self, sending: asyncio.Task[None]) -> None:
        """Count a direct answer that begins."""
        self.in_progress += 1
        self.sending.add(sending)

    def note_end(self, sending: asyncio.Task[None]) -> None:
        """Count a direct answer no more: it has ended."""
        self.sending.discard(sending)
        self._one_less()

    async def _edge(self, request: web.Request) -> web.StreamResponse:
        request[_STARTED_S] = asyncio.get_running_loop().time()
        self._note_forwarded(request)
        is_last = _must_be_last(request)
        if is_last:  # announced in the head of the response, by any code that sends it
            close_behind(request)
        self.in_progress += 1
        served = REQUEST_ID.set(request_id(request))
        try:
            if request.version.major != 1:  # the parser lets HTTP/0.9 and 2.0 through
                answer_in_http_11(request)
                raise errors.InvalidRequest("The request line must end with HTTP/1.1 or HTTP/1.0.")
            if _HOST.fullmatch(request.headers.get(hdrs.HOST, "")) is None:
                raise errors.InvalidRequest("Host: must be a host name, or host:port.")
            if request.method not in _METHODS:
                raise errors.NotImplementedHere(f"The method {request.method} is not supported.")
            _require_plain_framing(request)
            if request.body_exists and hdrs.CONTENT_ENCODING in request.headers:
                raise errors.UnsupportedMediaType("Content-Encoding: encoded bodies are not supported.")
            if request.method == hdrs.METH_OPTIONS and request.raw_path == "*":
                response: web.StreamResponse = web.Response(status=204, headers={hdrs.ALLOW: _ALLOWED})
            else:
                response = await self._route(request)
            _keep(request, response)
            if waits_to_go_on(request):  # and may take what it sends next for a request
                response.force_close()
        except web.HTTPRedirection:
            raise
        except Exception as problem:  # noqa: BLE001  # the edge: every error becomes an answer here
            response = self._answer(request, error_of(request, problem))
        finally:
            REQUEST_ID.reset(served)
            self._one_less()
        if self.draining or is_last or _has_spoilt_the_parser(request):
            response.force_close()
        return response

    def _note_forwarded(self, request: web.Request) -> None:
        """Determine the original client of a request that a proxy or a member forwarded.

        Memory for such a client counts as the client's own, as the connection carries requests of many.
        """
        known = self.web.original_client(request.remote or "", request.headers, is_member=self._is_peer)
        if known is not None:
            note_forwarded(request, known)
            if not self._is_peer:
                request.protocol.share = BUFFERED.share(known.client)  # type: ignore[attr-defined]

    def _one_less(self) -> None:
        self.in_progress -= 1
        if self.draining and self.in_progress == 0:
            self.drained.set()

    def _answer(self, request: web.Request, error: FilestoreError) -> web.StreamResponse:
        """An answer to this error, or a broken connection when another answer is on its way already."""
        if request.get(PREPARED):
            raise ClientGone("a response that has begun cannot be replaced")
        if isinstance(error, errors.MethodNotAllowed) and request.method == hdrs.METH_OPTIONS:
            response = web.Response(status=204, headers=error.headers)
        else:
            response = error_response(error, request)
        if not request.content.is_eof():
            response.force_close()
        return response


def _keep(request: web.Request, response: web.StreamResponse) -> None:
    """Count the body of this answer until the client has taken it.

    Raises RateLimited instead of the answer to a GET or HEAD. The answer to a change is never refused: the
    client must learn what was changed.
    """
    body = response.body if isinstance(response, web.Response) else None
    if isinstance(body, bytes):
        request.protocol.share.take(  # type: ignore[attr-defined]  # it is a connection of ours
            len(body), is_refusable=request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
        )


def _must_be_last(request: web.Request) -> bool:
    """Return whether this request must be the last on its connection, which closes after the response.

    The bytes after such a request were dropped or cannot be understood. After the head of an upgrade request,
    the parser drops the rest. After the head of a CONNECT, it reads the next request, even if the head
    declares a body.
    """
    is_swallowed = hdrs.UPGRADE in request.headers and not request.body_exists
    is_odd = request.version.major != 1 or request.method == hdrs.METH_CONNECT
    return is_swallowed or is_odd or _has_endless_body(request)


def _has_endless_body(request: web.Request) -> bool:
    """Whether the length of the body is 2^64 - 1.

    aiohttp 3.14.5 says that there is no body then, and its parser takes everything that follows for one.
    """
    return bool(request.content_length) and not request.body_exists


def _has_spoilt_the_parser(request: web.Request) -> bool:
    """Return whether a body may have left something in the parser that the next request would get.

    aiohttp 3.14.5 treats the last trailer of a chunked body as a header of the request that follows, a
    credential too, and loses the body of a request to upgrade.
    """
    connection = request.protocol
    is_new = isinstance(connection, _Connection) and connection.is_parser_new
    return not is_new and (hdrs.TRANSFER_ENCODING in request.headers or hdrs.UPGRADE in request.headers)


def announce_close(request: web.Request, response: web.StreamResponse) -> None:
    """Announce in the head of a response, which is about to be sent, that the connection closes after it.

    Otherwise the client keeps the connection for its next request. A chunked body without a byte so far will
    bypass the parser: code that answers before it reads such a body does so for peers.
    """
    connection = request.protocol
    assert isinstance(connection, _Connection)
    goes_past = connection.is_at_body and hdrs.UPGRADE not in request.headers
    is_last = connection.is_draining or (not goes_past and _has_spoilt_the_parser(request))
    if is_last and response.status != HTTPStatus.SWITCHING_PROTOCOLS:
        response.force_close()
        response.headers[hdrs.CONNECTION] = "close"


def _require_plain_framing(request: web.Request) -> None:
    """Refuse a body whose framing is not plain: a Content-Length, or `chunked` alone in HTTP/1.1.

    Raises NotImplementedHere for codings that are not supported (RFC 9112, section 6.1). Raises
    InvalidRequest if the codings do not define the end of the body, and for an invalid length (section 6.2).
    The parser itself accepts any list of codings that ends with `chunked`, even in HTTP/1.0, which has none.
    """
    if _has_endless_body(request):
        raise errors.InvalidRequest("Content-Length: the value is too large.")
    listed = ",".join(request.headers.getall(hdrs.TRANSFER_ENCODING, ()))
    codings = [coding.strip(" \t").lower() for coding in listed.split(",")]
    if not listed or (codings == ["chunked"] and request.version >= HttpVersion11):
        return
    if codings[-1] == "chunked" and codings.count("chunked") == 1 and request.version >= HttpVersion11:
        raise errors.NotImplementedHere("Transfer-Encoding: only `chunked` is supported.")
    raise errors.InvalidRequest("Transfer-Encoding: only `chunked` is supported, and only in HTTP/1.1.")


class _Connection(DirectConnection):
    """One connection: limits on what comes before a request, and JSON for what is wrong with it."""

    def __init__(self, connections: Connections, on_end: Callable[[], None]) -> None:
        self.patience = connections.patience
        self._on_end = on_end
        self._connections = connections
        self._headers_timer: asyncio.TimerHandle | None = None
        self._taking_timer: asyncio.TimerHandle | None = None  # while more was written than the client takes
        self.web = connections.web
        self.headers_begun = False
        self.has_ended = False  # the client sends nothing more, and waits for answers
        self.is_parser_new = False  # since the last request
        self._answered_count = 0
        self._last_body: StreamReader | None = None
        self.share = BUFFERED.share("")  # of what is kept for clients; of ours until it is made
        self._prepare_direct()
        super().__init__(
            connections,
            target_bytes_max=TARGET_BYTES_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
            headers_max=connections.headers_max,
            keep_alive_s=self.patience.keep_alive_s,
            linger_s=self.patience.linger_s,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection begins; the client has a deadline for its first request."""
        super().connection_made(transport)
        if isinstance(self.peername, tuple):
            self.share = BUFFERED.share(self.peername[0])
        self._headers_timer = self.loop.call_later(self.patience.headers_s, self._headers_too_slow)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the end of the connection. aiohttp informs the reader of the body."""
        self._on_end()
        self._stop_headers_timer()
        self._stop_taking_timer()
        if self.sending is not None:
            self.sending.cancel()
        self.cancel_before_it_begins()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came from the client: its headers have a deadline from the first of them to the last."""
        direct = self._connections.direct
        if data and (direct is not None or self.sending is not None) and self.defer(data):
            return
        if direct is not None and data and self.answer_directly(direct, data):
            self._stop_headers_timer()
            return
        if data and self._headers_timer is None and self.is_waiting:
            self._headers_timer = self.loop.call_later(self.patience.headers_s, self._headers_too_slow)
        self.headers_begun = self.headers_begun or (bool(data) and self._headers_timer is not None)
        requests, body_bytes = self.parse(data)
        self.boundary.fed(data, requests=requests, body_bytes=body_bytes)
        if requests:
            self._last_body = self.last_body
            self._stop_headers_timer()
            if self.is_malformed:
                self._break_bodies()

    def pause_writing(self) -> None:
        """The client takes less than is written: from now on it has a deadline for taking some."""
        super().pause_writing()
        if self.transport is not None:  # None while it is closed, which needs no wait
            self._watch_taking(self.transport)

    def resume_writing(self) -> None:
        """The client has taken enough of what was written."""
        super().resume_writing()
        self._stop_taking_timer()

    def eof_received(self) -> bool:  # type: ignore[override]  # the base class never keeps it open
        """The client sends no more (RFC 9293, section 3.6.1); its whole requests are still answered.

        Over TLS its goodbye ends both directions.
        """
        if self._deferred and self.sending is None:
            self._deliver()
        is_answered = self._answered_count == self.request_count
        is_whole = self._last_body is None or self._last_body.is_eof()
        self.has_ended = not is_answered and is_whole and self.ssl_context is None
        return self.has_ended

    def request_began(self) -> None:
        """The parser that read it is the one that stays, until its body goes past that."""
        self.is_parser_new = False

    def request_ended(self) -> None:
        """Close behind the last answer of a client that has ended."""
        self.share.give_back()
        self._answered_count += 1
        if self.has_ended and self._answered_count == self.request_count:
            self.close()

    @property
    def is_draining(self) -> bool:
        """Whether the listener is going to close this connection behind its answer."""
        return self._connections.draining

    @property
    def is_at_body(self) -> bool:
        """See `web.request_body.Lender`."""
        return self.boundary.is_at_body

    def lend(self, framing: Framing) -> BodyRing | None:
        """See `web.request_body.Lender`."""
        is_blocked = self.is_reading_paused or bool(self._deferred)
        if is_blocked or self.transport is None or self.transport.is_closing():
            return None
        self.transport.pause_reading()
        ring = BodyRing(self, framing)
        ring.begin(self.transport)
        return ring

    def take_back(self, *, whole: bool, rest: bytes) -> None:
        """See `web.request_body.Lender`.

        The old parser would consume as many bytes behind a body as it never saw of it. So after one that is
        not `whole` nothing more is parsed, and the connection ends with the response.
        """
        if self.transport is None:
            return
        if not whole:
            self.close()
        else:
            self.boundary, self.is_parser_new = Boundary(), True
            self.renew_parser()
        self.transport.pause_reading()  # the loop takes another way of reading up only when it begins to read
        self.transport.set_protocol(self)
        self.transport.resume_reading()
        if whole and rest:
            self.data_received(rest)

    def direct_began(self, sending: asyncio.Task[None]) -> None:
        """Count the direct answer, so that draining waits for it."""
        self._connections.began(sending)
        sending.add_done_callback(self._connections.note_end)

    def direct_ended(self, answer: DirectAnswer, *, status: int, size_bytes: int, duration_s: float) -> None:
        """Write one line to the log and count one answer, as for any other."""
        peer = self.peername
        self._connections.metrics.observe_request(
            method=hdrs.METH_GET, route=answer.route, status=status, duration_s=duration_s
        )
        log_request(
            self._connections.log_level,
            request_id=answer.request_id,
            remote=peer[0] if isinstance(peer, tuple) else "",
            method=hdrs.METH_GET,
            path=answer.path,
            status=status,
            size_bytes=size_bytes,
            duration_s=duration_s,
        )
        if self._connections.draining:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """The answer to bytes that are not HTTP. Raises ConnectionResetError where no answer can be sent."""
        if not isinstance(exc, HttpProcessingError):
            self._record(request, CLIENT_GONE, 0)
            raise ConnectionResetError("no answer can be sent") from exc
        answer_in_http_11(request)  # no version was understood
        response = error_response(from_malformed(exc), request)
        response.force_close()
        return response

    def log_access(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        time: float | None,  # noqa: ARG002
    ) -> None:
        """Write one line to the log and count each answer, whether it reached the client or not."""
        self._record(request, response.status, response.body_length)

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ARG002
        """Log the type of the exception only.

        The exceptions of the parser repeat what the client sent, credentials too.
        """
        _log.info("connection broken", extra={"cause": type(kw.get("exc_info")).__name__})

    def _record(self, request: web.BaseRequest, status: int, size_bytes: int) -> None:
        started_s = request.get(_STARTED_S)
        duration_s = 0.0 if started_s is None else self.loop.time() - started_s
        match = match_of(request)
        template = None
        if match is not None and match.route.resource is not None:  # the match is a dict, empty as a rule
            template = match.route.resource.canonical
        self._connections.metrics.observe_request(
            method=request.method, route=template or "(none)", status=status, duration_s=duration_s
        )
        log_request(
            self._connections.log_level,
            request_id=request_id(request),
            remote=client_address(request),
            method=request.method,
            path=shown_path(request.path, template),
            status=status,
            size_bytes=size_bytes,
            duration_s=duration_s,
        )

    def _headers_too_slow(self) -> None:
        self._headers_timer = None
        if self.transport is None or not self.is_waiting:
            return
        if self.headers_begun:
            self.transport.write(bare_response(errors.RequestTimeout("The headers arrived too slowly.")))
        self.force_close()

    def _watch_taking(self, transport: asyncio.Transport) -> None:
        """Watch with a timer whether the client takes anything; cut it off if it does not.

        A wait for room would not do: one that is cancelled spoils every later one on the connection.
        """
        left_bytes = transport.get_write_buffer_size()

        def look() -> None:
            if transport.get_write_buffer_size() < left_bytes:
                self._watch_taking(transport)
            else:
                transport.abort()

        self._taking_timer = self.loop.call_later(self.patience.answer_stall_s, look)

    def _stop_taking_timer(self) -> None:
        if self._taking_timer is not None:
            self._taking_timer.cancel()
            self._taking_timer = None

    def _stop_headers_timer(self) -> None:
        self.headers_begun = False
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _break_bodies(self) -> None:
        """Fail the readers of unfinished bodies: after bytes that are not HTTP none of these will be whole.

        aiohttp would let the readers wait.
        """
        for body in self.unfinished_bodies():
            body.set_exception(web.RequestPayloadError("malformed"))

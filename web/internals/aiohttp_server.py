"""aiohttp's connection of a server, its requests and responses: private names, under plain names.

The package says what each private name is for. This module has no rules of ours, only what aiohttp is and
does.

Tested by tests/unit/web/test_internals.py.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage

from web.internals.library_changed import library_changed

_HEAD_START: Final = b"HTTP/1."


class ServerConnection(web.RequestHandler):
    """One connection of a server. aiohttp's task on it waits for a request, has it answered, waits again."""

    def __init__(
        self,
        server: web.Server,
        *,
        target_bytes_max: int,
        header_bytes_max: int,
        headers_max: int,
        keep_alive_s: float,
        linger_s: float,
    ) -> None:
        """It decompresses nothing, and leaves logs to who overrides `log_access`. Inside the event loop."""
        self.loop = asyncio.get_running_loop()
        self.when_lost: set[Callable[[], object]] = set()  # called at the end of the connection
        super().__init__(
            server,
            loop=self.loop,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # `log_access` needs none
            max_line_size=target_bytes_max,
            max_field_size=header_bytes_max,
            max_headers=headers_max,
            keepalive_timeout=keep_alive_s,
            lingering_time=linger_s,
        )

    # Waits until the transport takes more. Raises ConnectionError.
    drain = web.RequestHandler._drain_helper
    # Bypasses the parser, which continues with its own bytes.
    pause_transport_reading = web.RequestHandler._pause_transport_reading
    resume_transport_reading = web.RequestHandler._resume_transport_reading

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the end of the connection. aiohttp informs the reader of the body."""
        super().connection_lost(exc)
        for tell in tuple(self.when_lost):
            tell()

    def request_began(self) -> None:
        """A request is going to be answered."""

    def request_ended(self) -> None:
        """The request was answered, or its connection was lost."""

    def close_idle(self) -> None:
        """No request came in time: closed when this returns, unless `restart_idle_timer` was called."""

    @property
    def is_waiting(self) -> bool:
        """Whether aiohttp's task waits for a request."""
        return self._waiter is not None

    @property
    def is_between_turns(self) -> bool:
        """Whether aiohttp's task is on its way to wait for a request: after an answer, or at the start."""
        return self._waiter is None and not self._request_in_progress and not self._messages

    def is_ready(self) -> bool:
        """Whether the next request would be answered at once: none runs or waits, and nothing closes."""
        waiter = self._waiter
        return (
            waiter is not None
            and not waiter.done()
            and not self._messages
            and not self._close
            and not self._force_close
        )

    @property
    def request_count(self) -> int:
        """How many requests came out of the parser."""
        return self._request_count

    def parse(self, data: bytes) -> tuple[int, int | None]:
        """Let aiohttp parse and serve these bytes; return how many requests they contained.

        The second value is the length of the last request's body, from its head: None if the head does not
        say, or asks to upgrade.
        """
        before = self._request_count
        super().data_received(data)
        count = self._request_count - before
        return count, self._body_bytes() if count else None

    def _body_bytes(self) -> int | None:
        message = self._messages[-1][0] if self._messages else None
        if self._upgraded or not isinstance(message, RawRequestMessage) or message.upgrade or message.chunked:
            return None
        return int(message.headers.get(hdrs.CONTENT_LENGTH, "0"))

    @property
    def last_body(self) -> StreamReader | None:
        """The body of the last request that waits for its turn."""
        return self._messages[-1][1] if self._messages else None

    @property
    def is_malformed(self) -> bool:
        """Whether what came last is no HTTP. It waits for its turn as a request does."""
        return getattr(self._messages[-1][0] if self._messages else None, "exc", None) is not None

    def unfinished_bodies(self) -> list[StreamReader]:
        """The bodies of all requests that run or wait, as far as they are not whole."""
        bodies = [payload for _, payload in self._messages]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        return [body for body in bodies if not body.is_eof()]

    @property
    def is_reading_paused(self) -> bool:
        """Whether the parser, or the reader of a body, has paused reading."""
        return self._reading_paused or self._buffer_paused

    def renew_parser(self) -> None:
        """Create a new parser, without the old one's content: the next byte is the first of a request."""
        self._parser = HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=self._max_msg_queue_size,
        )

    def count_request(self) -> None:
        """Count a request that was answered past aiohttp."""
        if self._manager is not None:
            self._manager.requests_count += 1

    def cancel_before_it_begins(self) -> None:
        """Cancel the task, which would still begin with what came in this very turn."""
        if self._task_handler is not None and not self._request_in_progress:
            self._task_handler.cancel()

    def start_idle_timer(self) -> None:
        """Begin the idle time as aiohttp does behind an answer: the next request has to come within it."""
        self.restart_idle_timer()
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )

    def restart_idle_timer(self) -> None:
        """Begin the idle time again, as long as it was in the beginning."""
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout

    def stop_idling(self) -> None:
        """End the idle time: no request has to come within it."""
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
            self._keepalive_handle = None

    def _process_keepalive(self) -> None:
        if self._loop.time() < self._next_keepalive_close_time:
            # The timer expired early. aiohttp checks the clock again, and if the time has come by then, it
            # would close the connection without the checks made here.
            self._keepalive_handle = self._loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )
            return
        self.close_idle()
        super()._process_keepalive()

    async def _handle_request(self, *request: Any) -> tuple[web.StreamResponse, bool]:
        self.request_began()
        try:
            return await super()._handle_request(*request)
        finally:
            self.request_ended()


class BodyResponse(web.StreamResponse):
    """An answer whose head waits for the first bytes of its body (aiohttp's own `Response` does the same)."""

    _send_headers_immediately = False


def close_behind(request: web.BaseRequest) -> None:
    """Close the connection after the response, and announce that in the response's head."""
    request._message = request._message._replace(should_close=True)


def answer_in_http_11(request: web.BaseRequest) -> None:
    """Answer in HTTP/1.1, even if the request had another version."""
    request._cache["version"] = HttpVersion11


def match_of(request: web.BaseRequest) -> web.UrlMappingMatchInfo | None:
    """Return the result of the router, or None before it ran. `match_info` asserts that it ran."""
    return getattr(request, "_match_info", None)


def take_head(writer: AbstractStreamWriter) -> bytes:
    """Take over the head of a response that waits for the body: the caller sends it instead of aiohttp.

    Raises LibraryChanged.
    """
    head: bytes = getattr(writer, "_headers_buf", b"")
    is_buffered = isinstance(head, bytes) and head.startswith(_HEAD_START)
    if not is_buffered or getattr(writer, "_headers_written", True):
        raise library_changed("aiohttp does not keep the head of an answer back: it would be sent twice")
    writer._headers_buf = None  # type: ignore[attr-defined]
    writer._headers_written = True  # type: ignore[attr-defined]
    sent_bytes = writer.output_size
    writer.send_headers()  # has nothing to send
    require_nothing_sent(writer, sent_bytes)
    writer.output_size += len(head)
    return head


def require_nothing_sent(writer: AbstractStreamWriter, output_bytes: int) -> None:
    """Raise LibraryChanged when aiohttp has sent anything since `output_size` was `output_bytes`."""
    if writer.output_size != output_bytes:
        raise library_changed("aiohttp sent the head of an answer again, which had been taken from it")

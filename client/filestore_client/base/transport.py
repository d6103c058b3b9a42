"""Requests to a cluster: they go to any node, and the next one is tried if a node is lost.

It trusts the cluster's root certificate and nothing else, whatever the environment says. A lost connection,
423, 429 and 503 are retried with growing pauses until there was no progress for `deadline_s`. A request that
must not be carried out twice is repeated only if the first one cannot have been carried out. After 401, the
request is sent again if the token came from a file that holds another one by then.

Tested by tests/cluster/test_client_failures.py.
"""

import asyncio
import copy
import hashlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate, parsedate_to_datetime
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from filestore_client.base.errors import (
    FilestoreError,
    Gone,
    Internal,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
    error_of,
)
from filestore_client.base.retry import (
    DEADLINE_S,
    TRY_AGAIN,
    RetryLimits,
    connection_trouble,
    trouble_of,
    was_not_sent,
)
from filestore_client.base.tls import root_context
from filestore_client.base.token import Token, TokenRenewed, token_of

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
CLOSING_S = 60.0  # the loops give the end of TLS 30 s
ABORT_TURNS = 5  # of the loop; a transport needs two or three to end
ANSWER_BYTES_MAX = 64 << 20  # a page of 1000 records is far smaller
# PATCH sets fields, and adds nothing.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})

T = TypeVar("T")


class Transport:
    """Connections to a cluster through one or several of its nodes (base URLs, the first is preferred).

    Use as `async with`. Raises the classes of `filestore_client.base.errors` that the server's codes name,
    InvalidRequest for a URL, a token or a root that cannot be one.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        root_pem: str,
        token: str | os.PathLike[str] | Token,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        if not urls:
            raise InvalidRequest("A client needs the URL of at least one node.")
        self._urls = [base_url(url) for url in urls]
        self._context = root_context(root_pem)
        self.cluster = hashlib.sha256(root_pem.strip().encode()).hexdigest()  # each has a root of its own
        self._token = token_of(token)
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None
        self._connector: _Connector | None = None
        self._of_parents: list[object] = []  # never closed here: that would cut off the parent
        self.time = ServerTime()
        self.without_bytes: set[str] = set()  # nodes that accept no bytes with a creation; shared by siblings

    def sibling(self) -> "Transport":
        """One of the same session with a preferred node of its own. It ends with this one."""
        assert self._session is not None, "the client is used inside `async with`"
        made = copy.copy(self)
        made._urls = list(self._urls)
        return made

    def only(self, url: str) -> "Transport":
        """One of the same session for one member alone. It ends with this one."""
        made = self.sibling()
        made._urls = [base_url(url)]
        return made

    async def __aenter__(self) -> Self:
        if self._session is not None and not self._session.closed:  # this process was forked since
            self._of_parents.append((self._session, self._connector))
        self._connector = _Connector(self._context)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=ANSWER_TIMEOUT_S
            ),
            headers={"User-Agent": "filestore"},
            auto_decompress=False,
            middlewares=(_sent_once,),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()
        assert self._connector is not None
        await self._connector.abort()

    @property
    def url(self) -> str:
        """The node that requests go to at the moment."""
        return self._urls[0]

    @property
    def urls(self) -> Sequence[str]:
        """Every node that is known, the present one first."""
        return tuple(self._urls)

    def limits(self) -> RetryLimits:
        """A new deadline, for one operation."""
        return RetryLimits(self._deadline_s, len(self._urls))

    def prefer(self, url: str) -> None:
        """Send what follows to this node first, for instance to the one that holds an upload.

        Raises InvalidRequest for a URL that cannot be one.
        """
        first = base_url(url)
        self._urls = [first, *(other for other in self._urls if other != first)]

    def turn_away(self, failed: str) -> None:
        """This node failed: the next one is asked from now on, unless another request has seen to that."""
        if self._urls[0] == failed:
            self._urls = [*self._urls[1:], failed]

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        url: str = "",
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One attempt at the present node, or at `url`. A status from 400 on is raised as its error.

        TokenRenewed is raised in place of Unauthorized if the file of the token holds another one by now.
        """
        assert self._session is not None, "the client is used inside `async with`"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=answer_timeout_s
        )
        token = self._token.text
        sent = {"Authorization": f"Bearer {token}", **(headers or {})}
        async with self._session.request(
            method, (url or self.url) + path, timeout=timeout, allow_redirects=False, headers=sent, **request
        ) as response:
            self.time.note_date(response.headers.get("Date", ""))
            if response.status >= 400:
                error = error_of(response.status, response.headers, await _body(response), path)
                if response.status == Unauthorized.status and self._token.is_renewed(token):
                    raise TokenRenewed(error.details)
                raise error
            yield response

    async def call(
        self,
        method: str,
        path: str,
        reply_type: type[T],
        *,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        repeats: bool | None = None,
    ) -> T:
        """A JSON request, tried at one node after another until the deadline; the answer as `reply_type`.

        `repeats`: whether carrying it out twice does no harm, which is so for every method but POST unless it
        is given. Raises Unavailable with `is_unknown` where a request that may not be repeated got no answer.
        """
        answer, _ = await self.answer(method, path, body=body, headers=headers, repeats=repeats)
        if not answer and method == "DELETE":
            raise Unavailable("The request succeeded, but its response was lost.", is_unknown=True)
        return self.decode(answer, reply_type, path)

    async def answer(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        repeats: bool | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Send a request, and return the raw body and headers of the response.

        Both are empty if a DELETE got no response, and its repetition found nothing to delete.
        """
        limits = self.limits()
        is_repeatable = method in _REPEATABLE if repeats is None else repeats
        unanswered: Exception | None = None
        while True:
            url = self.url
            try:
                async with self.exchange(method, path, url=url, json=body, headers=headers) as response:
                    return await _body(response), response.headers
            except PreconditionFailed as error:
                if unanswered is not None:  # perhaps by ourselves
                    raise _unknown(unanswered) from error
                raise
            except (NotFound, Gone):
                if method == "DELETE" and unanswered is not None:
                    return b"", {}  # by the request that got no answer
                raise
            except TRY_AGAIN as error:
                if not was_not_sent(error):
                    if not is_repeatable:
                        raise _unknown(error) from error
                    unanswered = error
                self.turn_away(url)
                await limits.pause(error)

    async def delete(self, path: str, *, headers: Mapping[str, str] | None = None) -> None:
        """DELETE until it is gone; that it is gone already is an error only if nothing was sent before."""
        await self.answer("DELETE", path, headers=headers)

    def decode(self, answer: bytes, reply_type: type[T], path: str) -> T:
        """The body of an answer. Raises Internal when this client does not understand it."""
        try:
            return msgspec.json.decode(answer, type=reply_type)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Internal(
                f"{self.url}{path}: the response is not understood by this client: {error}"
            ) from error


class ServerTime:
    """The time of the member that answered last, as this machine's clock may be wrong."""

    def __init__(self) -> None:
        self._ahead_s = 0.0  # of the monotonic clock
        self.note_date(formatdate())

    def note_date(self, date: str) -> None:
        """Note the `Date` of an answer; one that cannot be read changes nothing."""
        with suppress(ValueError):
            self._ahead_s = parsedate_to_datetime(date).timestamp() - time.monotonic()

    def now_s(self) -> float:
        """Return seconds since 1970; by this machine's clock until an answer has come."""
        return time.monotonic() + self._ahead_s


class AnswerLost(aiohttp.ClientConnectionError):
    """The connection broke under a request, which may have been carried out."""


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request once. aiohttp repeats GET, PUT and DELETE, and then a 404 could be of either attempt."""
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AnswerLost(connection_trouble(error)) from error


class _Connector(aiohttp.TCPConnector):
    """A pool that returns no connection whose timer expired while it was idle.

    aiohttp pools a connection at the end of a body. Reading the remaining buffered bytes of the body restarts
    the read timer, which then expires in the pool, and the next request would fail at once.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(ssl=context, socket_factory=lambda address: _Socket(*address[:3]))
        self._opened: dict[asyncio.Transport, float] = {}  # and when each was last taken

    async def connect(self, *request: Any, **options: Any) -> aiohttp.connector.Connection:
        """Called by aiohttp for each request."""
        while True:
            connection = await super().connect(*request, **options)
            self._remember(connection.transport)
            if connection.protocol is None or connection.protocol.exception() is None:
                return connection
            connection.close()

    async def abort(self) -> None:
        """Abort the remaining connections: after a cancelled request, one still sends its buffer."""
        for transport in self._opened:
            transport.abort()
        for _ in range(ABORT_TURNS):
            await asyncio.sleep(0)

    def _remember(self, transport: asyncio.Transport | None) -> None:
        """Remember a connection. Closing ones may take a while."""
        now_s = time.monotonic()
        if transport is not None:
            self._opened[transport] = now_s
        over = [each for each, at_s in self._opened.items() if each.is_closing() and now_s - at_s > CLOSING_S]
        for each in over:
            del self._opened[each]


class _Socket(socket.socket):
    """One that closes nothing when it is collected: uvloop has closed its descriptor by then.

    The number may be that of another connection, or of a file, of one family with uvloop's issues 645, 653
    and 738.
    """

    def __del__(self) -> None:
        self.detach()


def base_url(url: str) -> str:
    """The URL of a node without a slash at its end. Raises InvalidRequest.

    Without TLS only this machine is allowed: otherwise the token would be sent unencrypted.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.port != 0 and (
            (parts.scheme == "https" and bool(parts.hostname))
            or (parts.scheme == "http" and ip_address(parts.hostname or "").is_loopback)
        )
    except ValueError:
        is_one = False
    if not is_one or parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidRequest(f"{url!r} is not the URL of a node, such as https://HOST:PORT.")
    return url.rstrip("/")


def _unknown(error: Exception) -> FilestoreError:
    why = trouble_of(error).rstrip(".")
    details = f"It is not known whether the request succeeded: {why}. Check before you repeat it."
    return Unavailable(details, is_unknown=True)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    room_bytes = ANSWER_BYTES_MAX
    async for part in response.content.iter_any():
        room_bytes -= len(part)
        if room_bytes < 0:
            raise Internal(f"A response is larger than {ANSWER_BYTES_MAX} bytes.")
        parts.append(part)
    return b"".join(parts)

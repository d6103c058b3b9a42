"""The Python client of the HTTP API: any node will do, and the next one is tried when one is lost.

Asynchronous, over aiohttp; it trusts the cluster's root certificate and nothing else, whatever the
environment says. A lost connection, 423, 429 and 503 are tried again with growing pauses until nothing
has gone forward for `deadline_s`. Repeating is safe: a file that was created twice because an answer got
lost is a pending record that expires by itself. Content goes through `node.client.upload` and
`node.client.download`.
"""

import asyncio
import copy
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from ca.errors import (
    CATALOGUE,
    FilestoreError,
    Internal,
    InvalidRequest,
    OffsetMismatch,
    RangeNotSatisfiable,
    RateLimited,
    Unavailable,
    UploadLocked,
)
from ca.tls import client_context
from coordinator.rpc.connector import Connector
from coordinator.runtime.json_files import decode_foreign
from coordinator.runtime.wording import connection_trouble

DEADLINE_S = 30.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 2.0
ANSWER_BYTES_MAX = 64 << 20  # a page of 1000 records is far smaller
TRY_AGAIN = (Unavailable, UploadLocked, RateLimited, aiohttp.ClientError, TimeoutError)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]*")

T = TypeVar("T")


class UntrustedServer(FilestoreError):
    """The server's certificate was not issued by the cluster whose root this client was given."""

    code = "untrusted_server"
    status = 502
    title = "Untrusted Server"


class RetryLimits:
    """Pauses between attempts, and the moment to give up.

    That comes `deadline_s` after the last progress, or when none of `node_count` nodes is one to trust, which
    no waiting changes.
    """

    def __init__(self, deadline_s: float, node_count: int = 1) -> None:
        self._deadline_s = deadline_s
        self._node_count = node_count
        self.progressed()

    def progressed(self) -> None:
        """Something went forward: the deadline and the pauses begin anew."""
        self._give_up_at = time.monotonic() + self._deadline_s
        self._pause_s = PAUSE_S_MIN
        self._refusal: FilestoreError | None = None  # the last answer, while other nodes give none
        self._untrusted: set[tuple[str, int | None]] = set()

    async def pause(self, reason: Exception) -> None:
        """Wait before the next attempt.

        Raises the reason, as a FilestoreError, once the deadline has passed.
        """
        self.check(reason, after_s=self._pause_s)
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    def check(self, reason: Exception, *, after_s: float = 0.0) -> None:
        """Raises the reason, as a FilestoreError, if an attempt `after_s` from now is past the deadline."""
        is_over = time.monotonic() + after_s > self._give_up_at
        if isinstance(reason, aiohttp.ClientConnectorCertificateError):
            self._untrusted.add((reason.host, reason.port))
            why = connection_trouble(reason)
            if len(self._untrusted) >= self._node_count or (is_over and self._refusal is None):
                raise UntrustedServer(f"{why}.") from reason
        elif isinstance(reason, FilestoreError):
            self._refusal, why = reason, ""
        else:
            why = connection_trouble(reason)
        if is_over:
            if isinstance(reason, FilestoreError):
                raise reason
            if self._refusal is None:
                raise Unavailable(f"No node answered within {self._deadline_s:g} s: {why}") from reason
            raise Unavailable(f"{self._refusal.details} Not every node answers: {why}") from reason


class Client:
    """A connection to a cluster through one or several of its nodes (base URLs, the first is preferred).

    Use as `async with Client(...) as client`. Raises the classes of `ca.errors` that the server's codes name,
    InvalidRequest for a URL or a token that cannot be one.
    """

    def __init__(
        self, urls: Sequence[str], *, root_pem: str, token: str, deadline_s: float = DEADLINE_S
    ) -> None:
        assert urls, "a client needs at least one node"
        self._urls = [base_url(url) for url in urls]
        self._context: ssl.SSLContext = client_context(root_pem)
        require_token(token)
        self._token = token
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None

    def sibling(self) -> "Client":
        """A client of the same session with a preferred node of its own. It ends with this one."""
        assert self._session is not None, "the client is used inside `async with`"
        made = copy.copy(self)
        made._urls = list(self._urls)
        return made

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=Connector(context=self._context),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=ANSWER_TIMEOUT_S
            ),
            headers={"Authorization": f"Bearer {self._token}", "User-Agent": "filestore"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    @property
    def url(self) -> str:
        """The node that requests go to at the moment."""
        return self._urls[0]

    @property
    def urls(self) -> Sequence[str]:
        """Every node that is known, the present one first."""
        return tuple(self._urls)

    def patience(self) -> RetryLimits:
        """A new deadline, for one operation."""
        return RetryLimits(self._deadline_s, len(self._urls))

    def prefer(self, url: str) -> None:
        """Send what follows to this node first, for instance to the one that holds an upload.

        Raises InvalidRequest for a URL that cannot be one.
        """
        first = base_url(url)
        self._urls = [first, *(other for other in self._urls if other != first)]

    def turn_away(self) -> None:
        """The present node failed: the next one is asked from now on."""
        self._urls = [*self._urls[1:], self._urls[0]]

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        url: str = "",
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        **request: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One attempt at the present node, or at `url`. A status from 400 on is raised as its error."""
        assert self._session is not None, "the client is used inside `async with`"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=answer_timeout_s
        )
        async with self._session.request(
            method, (url or self.url) + path, timeout=timeout, allow_redirects=False, **request
        ) as response:
            if response.status >= 400:
                raise refusal(response.status, response.headers, await _body(response), path)
            yield response

    async def call(
        self, method: str, path: str, reply_type: type[T], *, body: Mapping[str, object] | None = None
    ) -> T:
        """A JSON request, tried at one node after another until the deadline; the answer as `reply_type`."""
        patience = self.patience()
        while True:
            try:
                async with self.exchange(method, path, json=body) as response:
                    answer = await _body(response)
                return decode_foreign(answer, reply_type)
            except TRY_AGAIN as error:
                self.turn_away()
                await patience.pause(error)
            except msgspec.MsgspecError as error:
                raise Internal(
                    f"{self.url}{path} answered what this client does not understand: {error}"
                ) from error

    async def create_project_file(self, fields: Mapping[str, object]) -> dict[str, str]:
        """Make the record; answers file_uuid, upload_url, expires_at and status."""
        return await self.call("POST", "/api/v1/project-files", dict[str, str], body=fields)

    async def project_file(self, file_uuid: str) -> dict[str, Any]:
        """The project file record, as the API gives it."""
        return await self.call("GET", f"/api/v1/project-files/{quote(file_uuid, safe='')}", dict[str, Any])

    async def project_files(self, *, project_id: str = "") -> AsyncIterator[dict[str, Any]]:
        """Every project file that the caller may see, oldest first, page by page."""
        query = f"?project_id={quote(project_id, safe='')}" if project_id else "?"
        cursor = ""
        while True:
            page = await self.call("GET", f"/api/v1/project-files{query}{cursor}", dict[str, Any])
            for record in page["project_files"]:
                yield record
            if not page.get("next_cursor"):
                return
            cursor = f"&cursor={quote(str(page['next_cursor']), safe='')}"

    async def delete_file(self, file_uuid: str) -> None:
        """Delete a file of any kind, or its upload. Raises what the API answers."""
        await self.call("DELETE", f"/api/v1/files/{quote(file_uuid, safe='')}", dict[str, str])

    async def status(self) -> dict[str, Any]:
        """The cluster as its coordinators see it (admin only)."""
        return await self.call("GET", "/api/v1/cluster/status", dict[str, Any])

    async def create_join_token(
        self, *, node_id: str = "", ttl_seconds: int | None = None, uses_max: int | None = None
    ) -> dict[str, Any]:
        """Mint a join token (admin only); `token` in the answer is shown once."""
        wanted = {"node_id": node_id or None, "ttl_seconds": ttl_seconds, "max_uses": uses_max}
        body = {name: value for name, value in wanted.items() if value is not None}
        return await self.call("POST", "/api/v1/cluster/join-tokens", dict[str, Any], body=body)

    async def mint_user_token(
        self,
        user_id: str,
        *,
        roles: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        ttl_seconds: int | None = None,
    ) -> dict[str, Any]:
        """Mint a token for a user, who is created if unknown (admin only).

        None leaves roles and groups alone.
        """
        wanted = {"roles": roles, "groups": groups, "ttl_seconds": ttl_seconds}
        body = {name: value for name, value in wanted.items() if value is not None}
        path = f"/api/v1/auth/users/{quote(user_id, safe='')}/token"
        return await self.call("POST", path, dict[str, Any], body=body)

    async def revoke_user(self, user_id: str) -> None:
        """End all tokens, permissions and public tokens of a user (admin only)."""
        await self.call("POST", "/api/v1/auth/revoke", str, body={"user_id": user_id})


def require_token(token: str) -> None:
    """Raises InvalidRequest for what no header can carry."""
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest("This is no token: it must be one line of letters, digits and -._~+/=.")


def base_url(url: str) -> str:
    """The URL of a node without a slash at its end. Raises InvalidRequest.

    Without TLS only on this machine: the token would go out in clear text to whoever is there.
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
        raise InvalidRequest(f"{url!r} is no URL of a node: https://HOST:PORT is wanted.")
    return url.rstrip("/")


def refusal(status: int, headers: Mapping[str, str], body: bytes, path: str) -> FilestoreError:
    """The error that an answer of 400 or more stands for.

    An answer to HEAD has no body: its status must do, and the path that was asked for.
    """
    try:
        answer = decode_foreign(body, dict[str, str])
    except msgspec.MsgspecError:
        answer = {}
    details = answer.get("details", f"{path}: the server answered {status}")
    kinds = [kind for kind in CATALOGUE if kind.code == answer.get("code")]
    kind = (kinds or [kind for kind in CATALOGUE if kind.status == status] or [Internal])[0]
    if kind is OffsetMismatch:
        return OffsetMismatch(details, offset=_number(headers.get("Upload-Offset")))
    if kind is RangeNotSatisfiable:
        size = headers.get("Content-Range", "").rpartition("/")[2]
        return RangeNotSatisfiable(details, size_bytes=_number(size))
    return kind(details)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    room_bytes = ANSWER_BYTES_MAX
    async for part in response.content.iter_any():
        room_bytes -= len(part)
        if room_bytes < 0:
            raise Internal(f"An answer is larger than {ANSWER_BYTES_MAX} bytes.")
        parts.append(part)
    return b"".join(parts)


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0

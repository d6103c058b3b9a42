"""Orders of the leading coordinator to the peer ports of nodes: mutual TLS, the name verified, deadlines.

An order says "fetch this blob" or "look at your list now", never "delete this". So a late or repeated order,
or one of a deposed leader, does no harm.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Annotated, Final, Literal, NamedTuple, Self

import aiohttp
import msgspec
from msgspec import Meta, Struct
from yarl import URL

from ca.identity import Identity, Role
from metadata.model.records import VM, NodeRecord, PlacedUpload
from metadata.rpc.connector import Connector
from metadata.rpc.websocket import peer_url
from runtime.bounds import Count, NodeIds, Text
from runtime.json_files import decode_foreign

CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 5.0  # for what a node answers at once
CONNECTIONS_MAX: Final = 16  # to one node: a hanging node uses none of the others' connections
ANSWER_BYTES_MAX: Final = 65_536
COUNTS_MAX: Final = 32

Custody = Literal["collect", "compare", "scrub", "freeze", "thaw"]
CopyStanding = Literal["here", "absent", "running", "busy"]


class OrderFailed(Exception):
    """A node could not be reached, or did not follow the order. `reason` is for logs and results.

    `has_answered`: with a rejection. `failed_sources`: nodes that did not send it the content; it is not at
    fault itself then.
    """

    def __init__(
        self, node_id: str, reason: str, *, has_answered: bool = False, failed_sources: Sequence[str] = ()
    ) -> None:
        super().__init__(f"node {node_id}: {reason}")
        self.node_id = node_id
        self.reason = reason
        self.has_answered = has_answered
        self.failed_sources = list(failed_sources)


class PullReport(Struct, frozen=True, kw_only=True):
    """The state of a pull, as reported by its node.

    `moved`: a number that changes with any progress of the pull, or of the work that it waits for.
    `failed_sources`: nodes that did not send the content.
    """

    is_here: bool = False
    moved: Count = 0
    failed_sources: NodeIds | None = None


class _Refusal(Struct, frozen=True, kw_only=True):
    """The fields that are read of an error response."""

    code: Text = ""
    failed_sources: NodeIds = []


class _Answer(NamedTuple):
    """Status (200 or 202), the `Content-Length`, and the body."""

    status: int
    size: str
    body: bytes


class PassState(Struct, frozen=True, kw_only=True):
    """The state of a node's pass over its own replicas.

    `stopped`: it would drop or quarantine more than the safety limits allow; `reason` says what to do then.
    """

    order_id: Text
    state: Literal["running", "completed", "stopped"]
    reason: Text = ""
    counts: Annotated[dict[str, Count], Meta(max_length=COUNTS_MAX)] = {}


class CopyReport(Struct, frozen=True, kw_only=True):
    """The state of a copy of an unfinished upload.

    `here`: durable and as acknowledged; `absent`: some bytes are missing; `busy`: the upload is being written
    there now. `moved`: a number that changes with any progress of copies there.
    """

    state: CopyStanding
    moved: Count = 0


class NodeOrders:
    """Use as an async context manager. `context` hands out the newest TLS context to dial with."""

    def __init__(self, cluster: str, context: Callable[[], ssl.SSLContext]) -> None:
        self._cluster = cluster
        self._context = context
        self._owned = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = await self._owned.enter_async_context(
            aiohttp.ClientSession(
                connector=Connector(limit=0, limit_per_host=CONNECTIONS_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._owned.aclose()

    async def pull(
        self, node: NodeRecord, sha256: str, size_bytes: int, sources: Sequence[str], *, timeout_s: float
    ) -> PullReport:
        """Order a node to fetch a blob; `here` when that is whole, verified and durable there.

        While it is in progress: ask again. Raises OrderFailed.
        """
        body = {"size_bytes": size_bytes, "sources": list(sources)}
        answer = await self._ask(node, "POST", f"/blobs/{sha256}/pull", body, timeout_s)
        try:
            state = decode_foreign(answer.body or b"{}", PullReport)
        except msgspec.MsgspecError as error:
            raise OrderFailed(node.node_id, "answered what is no state of a pull") from error
        return msgspec.structs.replace(state, is_here=answer.status == 200)

    async def holds(self, node: NodeRecord, sha256: str, size_bytes: int) -> bool:
        """Return whether a node that should hold a blob of this size does.

        Raises OrderFailed if it does not answer. The node opens the blob, and reads none of it. If it is
        missing, the node reports that to the log.
        """
        try:
            answer = await self._ask(node, "HEAD", f"/blobs/{sha256}?expected=1", None, ANSWER_TIMEOUT_S)
        except OrderFailed as failure:
            if failure.has_answered:
                return False
            raise
        return answer.size == str(size_bytes)

    async def copy_upload(
        self, node: NodeRecord, upload: PlacedUpload, sources: Sequence[str], *, timeout_s: float
    ) -> CopyReport:
        """Order a node to copy the acknowledged bytes of an upload from `sources`.

        Without sources it only checks. `running`: ask again. Raises OrderFailed.
        """
        body = {
            "epoch": upload.epoch,
            "offset_bytes": upload.offset_bytes,
            "prefix_sha256": upload.prefix_sha256,
            "with_md5": upload.kind == VM,
            "sources": list(sources),
        }
        answer = await self._ask(node, "POST", f"/custody/uploads/{upload.file_uuid}", body, timeout_s)
        try:
            return decode_foreign(answer.body, CopyReport)
        except msgspec.MsgspecError as error:
            raise OrderFailed(node.node_id, "answered what is no state of a copy") from error

    async def custody(
        self, node: NodeRecord, kind: Custody, order_id: str, *, yes_really: bool = False
    ) -> PassState:
        """Order a node to begin a pass over its replicas, or return the state of this order's pass.

        Raises OrderFailed.
        """
        body = {"order_id": order_id, "yes_really": yes_really}
        answer = await self._ask(node, "POST", f"/custody/{kind}", body, ANSWER_TIMEOUT_S)
        try:
            return decode_foreign(answer.body, PassState)
        except msgspec.MsgspecError as error:
            raise OrderFailed(node.node_id, "answered what is no state of a pass") from error

    async def _ask(self, node: NodeRecord, method: str, path: str, body: object, timeout_s: float) -> _Answer:
        """Return an answer that is no rejection. Raises OrderFailed."""
        assert self._session is not None
        try:
            async with (
                asyncio.timeout(CONNECT_TIMEOUT_S + timeout_s),
                self._session.request(
                    method,
                    URL(peer_url(node.address, node.peer_port, path), encoded=True),
                    data=None if body is None else msgspec.json.encode(body),
                    headers=None if body is None else {"Content-Type": "application/json"},
                    ssl=self._context(),
                    server_hostname=Identity(self._cluster, Role.NODE, node.node_id).dns_name,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                ) as answer,
            ):
                raw = await _body(node.node_id, answer)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise OrderFailed(node.node_id, type(error).__name__) from error
        if answer.status not in (200, 202):
            refusal = _refusal(raw)
            said = f"answered {answer.status} {refusal.code}".rstrip()
            raise OrderFailed(node.node_id, said, has_answered=True, failed_sources=refusal.failed_sources)
        return _Answer(answer.status, answer.headers.get("Content-Length", ""), raw)


async def _body(node_id: str, answer: aiohttp.ClientResponse) -> bytes:
    raw = b""
    async for piece in answer.content.iter_any():
        raw += piece
        if len(raw) > ANSWER_BYTES_MAX:
            raise OrderFailed(node_id, "answered too much")
    return raw


def _refusal(body: bytes) -> _Refusal:
    try:
        return decode_foreign(body, _Refusal)
    except msgspec.MsgspecError:
        return _Refusal()

"""The client of the coordinators: finds the leader, retries with the same sequence, never past its
deadline.

One connection to every coordinator is kept up. Changes go to the leader; reads to any coordinator, each of
which answers linearizably. A change is retried under its session and sequence, so it is applied once
however often it is sent; when the deadline passes, the caller is told Unavailable and does not know the
outcome, like after any lost connection.
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from ca.errors import CATALOGUE, FilestoreError, Internal, Unavailable
from ca.identity import Identity
from coordinator import wire
from coordinator.calls import (
    CALL_TIMEOUT_S,
    AnyCall,
    HeartbeatCall,
    HeartbeatReply,
    JoinCall,
    JoinReply,
    MintCall,
    MintReply,
    ProposeCall,
    ReadCall,
    RenewCall,
    StatusCall,
    StatusReply,
)
from coordinator.commands import SESSION_ENDED, AnyCommand, OpenSession
from coordinator.link import dialling
from coordinator.peerlink import LinkDown, PeerLink
from coordinator.queries import AnyQuery
from coordinator.records import Caller, CoordinatorRecord

RETRY_S_MIN = 0.02
RETRY_S_MAX = 0.25
TRY_TIMEOUT_S = 2.0  # one try; a coordinator that is silent for so long is left for another

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_ERRORS: dict[str, Callable[[str], FilestoreError]] = {
    error.code: error for error in CATALOGUE if error.code not in ("offset_mismatch", "range_not_satisfiable")
}


class _Session:
    """Duplicate suppression of one process: numbers for changes, and which of them are still under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._sequences = itertools.count(1)
        self._under_way: set[int] = set()

    def begin(self) -> int:
        sequence = next(self._sequences)
        self._under_way.add(sequence)
        return sequence

    def end(self, sequence: int) -> None:
        self._under_way.discard(sequence)

    def acknowledged_below(self) -> int:
        return min(self._under_way)


class MetadataClient:
    """Changes and reads of the replicated state. `run` keeps the connections up until it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        coordinators: Sequence[CoordinatorRecord],
        context: Callable[[], ssl.SSLContext],
    ) -> None:
        self._links = {c.coordinator_id: PeerLink(identity, c, context) for c in coordinators}
        self._order = itertools.cycle(sorted(self._links))
        self._leader = ""
        self._reader = next(self._order)
        self._session: _Session | None = None
        self._opening = asyncio.Lock()

    async def run(self) -> None:
        """Dial every coordinator, again and again."""
        async with dialling() as http, asyncio.TaskGroup() as group:
            for coordinator_id, link in self._links.items():
                group.create_task(link.run(http), name=f"link to coordinator {coordinator_id}")

    async def propose(
        self, command: AnyCommand, reply_type: type[_T], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> _T:
        """Apply a command, once.

        What it replies; raises what it is refused with, or Unavailable after `timeout_s`.
        """

        def call(session: int, sequence: int, acknowledged_below: int) -> AnyCall:
            return ProposeCall(session, sequence, acknowledged_below, command)

        return msgspec.msgpack.decode(await self._change(call, timeout_s), type=reply_type)

    async def read(self, query: AnyQuery, reply_type: type[_T], *, timeout_s: float = CALL_TIMEOUT_S) -> _T:
        """The linearizable answer to a query; raises what it is refused with, or Unavailable after
        `timeout_s`.
        """
        async with _deadline(timeout_s):
            return msgspec.msgpack.decode(await self._anywhere(ReadCall(query)), type=reply_type)

    async def join(self, call: JoinCall) -> JoinReply:
        """Let a node join. Repeating it with the same key is safe."""
        async with _deadline(2 * CALL_TIMEOUT_S):
            return msgspec.msgpack.decode(await self._at_leader(call), type=JoinReply)

    async def renew(self, csr: str) -> JoinReply:
        """A new certificate for the node that this client is."""
        async with _deadline(2 * CALL_TIMEOUT_S):
            return msgspec.msgpack.decode(await self._at_leader(RenewCall(csr)), type=JoinReply)

    async def mint(
        self,
        caller: Caller,
        user_id: str,
        roles: list[str] | None,
        groups: list[str] | None,
        ttl_seconds: int,
    ) -> MintReply:
        """A token for a user, who is created or updated. Admin only."""

        def call(session: int, sequence: int, acknowledged_below: int) -> AnyCall:
            return MintCall(
                caller, user_id, roles, groups, ttl_seconds, session, sequence, acknowledged_below
            )

        return msgspec.msgpack.decode(await self._change(call, CALL_TIMEOUT_S), type=MintReply)

    async def status(self, caller: Caller) -> dict[str, StatusReply | None]:
        """What each coordinator sees, None for one that does not answer.

        Raises only if the caller is refused.
        """
        answers = await asyncio.gather(
            *(self._one(link, StatusCall(caller)) for link in self._links.values()),
            return_exceptions=True,
        )
        found: dict[str, StatusReply | None] = {}
        for coordinator_id, answer in zip(self._links, answers, strict=True):
            if isinstance(answer, bytes):
                found[coordinator_id] = msgspec.msgpack.decode(answer, type=StatusReply)
            elif isinstance(answer, (LinkDown, TimeoutError, Unavailable)):
                found[coordinator_id] = None
            else:
                raise answer
        return found

    @property
    def coordinator_ids(self) -> tuple[str, ...]:
        """The coordinators that this client knows."""
        return tuple(self._links)

    async def heartbeat(self, coordinator_id: str, call: HeartbeatCall) -> HeartbeatReply | None:
        """Tell one coordinator that this member lives; None when it does not confirm it in time."""
        try:
            answer = await self._one(self._links[coordinator_id], call)
        except (LinkDown, TimeoutError, FilestoreError):
            return None
        reply = msgspec.msgpack.decode(answer, type=HeartbeatReply)
        self._leader = reply.leader or self._leader
        return reply

    async def _one(self, link: PeerLink, call: AnyCall) -> bytes:
        async with asyncio.timeout(TRY_TIMEOUT_S):
            answer = await link.call(call, TRY_TIMEOUT_S)
        if answer.status == wire.RETRY:
            raise Unavailable(answer.details)
        return _value(answer)

    async def _change(self, build: Callable[[int, int, int], AnyCall], timeout_s: float) -> bytes:
        """Send a change under a session, and once more under a new one if the old had ended before it was
        sent.
        """
        async with _deadline(timeout_s):
            for _ in range(2):
                session = await self._open_session()
                sequence = session.begin()
                try:
                    return await self._at_leader(
                        build(session.number, sequence, session.acknowledged_below())
                    )
                except _SessionEnded as ended:
                    self._session = None
                    if ended.tries > 1:
                        raise Unavailable("The outcome of this change is unknown.") from ended
                finally:
                    session.end(sequence)
            raise Unavailable("The coordinators end sessions too quickly.")

    async def _open_session(self) -> _Session:
        async with self._opening:
            if self._session is None:
                call = ProposeCall(0, 0, 0, OpenSession(nonce=""))
                self._session = _Session(msgspec.msgpack.decode(await self._at_leader(call), type=int))
            return self._session

    async def _at_leader(self, call: AnyCall) -> bytes:
        """Try the leader, and whoever may be it, until one answers. The caller holds the deadline."""
        pause_s = RETRY_S_MIN
        for tries in itertools.count(1):
            leader = self._leader or next(self._order)
            try:
                async with asyncio.timeout(TRY_TIMEOUT_S):
                    answer = await self._links[leader].call(call, TRY_TIMEOUT_S)
            except (LinkDown, TimeoutError):
                self._leader = ""
            else:
                if answer.status == wire.OK:
                    self._leader = leader
                if answer.status == SESSION_ENDED:
                    raise _SessionEnded(tries)
                if answer.status not in (wire.NOT_LEADER, wire.RETRY):
                    return _value(answer)
                named = answer.details if answer.status == wire.NOT_LEADER else ""
                self._leader = named if named in self._links else ""
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)
        raise AssertionError("unreachable")

    async def _anywhere(self, call: AnyCall) -> bytes:
        """Try one coordinator after the other until one answers. The caller holds the deadline."""
        pause_s = 0.0
        while True:
            try:
                async with asyncio.timeout(TRY_TIMEOUT_S):
                    answer = await self._links[self._reader].call(call, TRY_TIMEOUT_S)
                if answer.status != wire.RETRY:
                    return _value(answer)
            except (LinkDown, TimeoutError):
                pass
            self._reader = next(self._order)
            await asyncio.sleep(pause_s)
            pause_s = min(max(pause_s * 2, RETRY_S_MIN), RETRY_S_MAX)


class _SessionEnded(Exception):
    """The coordinators no longer know our session; `tries` counts how often the change was sent under it."""

    def __init__(self, tries: int) -> None:
        super().__init__("session ended")
        self.tries = tries


class _deadline:  # noqa: N801 (used like a function)
    """asyncio.timeout that ends in Unavailable."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout = asyncio.timeout(timeout_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        try:
            await self._timeout.__aexit__(*exc_info)
        except TimeoutError as error:
            raise Unavailable(
                "The coordinators did not answer: no quorum, or no connection to it."
            ) from error


def _value(answer: wire.AnswerFrame) -> bytes:
    if answer.status == wire.OK:
        return answer.value
    raise _error(answer.status, answer.details)


def _error(code: str, details: str) -> FilestoreError:
    return _ERRORS.get(code, Internal)(details)

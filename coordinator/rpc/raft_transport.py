"""Raft messages to the other coordinators: one WebSocket to each, dialled by address, verified by name.

A message that cannot be sent now is dropped: Raft repeats important ones. coordinator/rpc receives messages.
The list of the others follows the view of the cluster.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

import aiohttp

from ca.identity import Identity, Role
from coordinator.raft.messages import Message
from coordinator.rpc.raft_wire import frame_of
from metadata.model.records import CoordinatorRecord
from metadata.rpc import wire
from metadata.rpc.instances import HEADER, Displaced, Instance
from metadata.rpc.roster import Roster
from metadata.rpc.websocket import (
    DIAL_TIMEOUT_S,
    PING_S,
    Outbox,
    OutboxFull,
    connection_work,
    dialling,
    end,
    peer_url,
)
from runtime.background import Work

STRANGER_S = 5.0  # a coordinator that was just added is known sooner

_log = logging.getLogger(__name__)


class Transport:
    """Sends to every other coordinator; `run` keeps the connections open until it is cancelled.

    `on_removed` is called when most others say that this coordinator was removed from the cluster. `instance`
    says which directory and start of it this is; `run` raises Displaced if most others know another one.
    """

    def __init__(
        self,
        identity: Identity,
        coordinators: Iterable[CoordinatorRecord],
        context: Callable[[], ssl.SSLContext],
        on_removed: Callable[[], None] = lambda: None,
        *,
        instance: Instance | None = None,
    ) -> None:
        self._own_id = identity.id
        self._cluster = identity.cluster
        self._context = context
        self._on_removed = on_removed
        self._headers = {} if instance is None else {HEADER: str(instance)}
        self._is_open = asyncio.Event()
        # The members that, when they last answered, knew another instance of this one.
        self._contradicted_by: set[str] = set()
        self._removed_by: set[str] = set()
        self._roster = Roster(())
        self._outboxes: dict[str, Outbox] = {}  # of those that are connected
        self._senders: dict[str, asyncio.Task[None]] = {}  # of the same
        self.update(coordinators)

    def update(self, coordinators: Iterable[CoordinatorRecord]) -> None:
        """Set the list of coordinators; this one itself is left out."""
        others = [record for record in coordinators if record.coordinator_id != self._own_id]
        self._known = frozenset(record.coordinator_id for record in others)
        # When each was first sent a message; None after it was logged.
        self._strangers: dict[str, float | None] = {}
        self._roster.update(others)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to their targets; those for a member that is not connected are dropped."""
        for message in messages:
            if (outbox := self._outboxes.get(message.target)) is not None:
                with contextlib.suppress(OutboxFull, wire.FrameTooLarge):
                    outbox.put(frame_of(message))
            elif message.target not in self._known:
                self._answer_stranger(message.target)
        for target in {message.target: None for message in messages}:
            if (outbox := self._outboxes.get(target)) is not None:
                # All messages to one member together, and now: the driver may be about to use the disk.
                outbox.flush()

    def _answer_stranger(self, target: str) -> None:
        """Log once that the address of this member is unknown, if it does not become known soon."""
        since_s = self._strangers.setdefault(target, time.monotonic())
        if since_s is not None and time.monotonic() - since_s > STRANGER_S:
            self._strangers[target] = None
            _log.warning(
                "unknown coordinator %s sends messages: if this directory was created from an old "
                "bundle, create it again from a new one",
                target,
            )

    def open(self) -> None:
        """Dial from now on: this process has its port, so it is not a copy of a running one."""
        self._is_open.set()

    async def run(self) -> None:
        """Dial every other coordinator repeatedly, once this is open."""
        await self._is_open.wait()
        async with dialling() as session:
            await self._roster.run(lambda record: self._keep_up(session, record), "raft to")

    async def _keep_up(self, session: aiohttp.ClientSession, member: CoordinatorRecord) -> None:
        async def connect() -> None:
            await self._connection(session, member, work)

        work = connection_work("raft connection", connect, member.coordinator_id)
        await work.run()

    async def _connection(
        self, session: aiohttp.ClientSession, member: CoordinatorRecord, work: Work
    ) -> None:
        """Keep one connection until it ends."""
        try:
            async with await self._dial(session, member) as socket:
                work.note_success()
                self._contradicted_by.discard(member.coordinator_id)
                self._removed_by.discard(member.coordinator_id)
                await self._pump(socket, member.coordinator_id)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == HTTPStatus.GONE:
                self._removed(member.coordinator_id)
            elif error.status == HTTPStatus.CONFLICT:
                self._contradicted(member.coordinator_id)
            raise

    def _contradicted(self, by: str) -> None:
        """Note that another member knows this one by another directory or start.

        Raises Displaced if most do.
        """
        if by not in self._contradicted_by:
            self._contradicted_by.add(by)
            _log.error(
                "coordinator %s knows this one by another directory, or by a later start of it, and "
                "rejects its messages. If this one was neither created again nor restored from a copy, "
                "the instances.json of %s is wrong; this one stops only if most others say the same",
                by,
                by,
            )
        if self._are_most(self._contradicted_by):
            raise Displaced(self._contradicted_by & self._known)

    def _removed(self, by: str) -> None:
        """Note that another member says this one was removed.

        Its state may be damaged, that of most is not.
        """
        if by not in self._removed_by:
            self._removed_by.add(by)
            _log.warning(
                "coordinator %s reports that this one was removed from the cluster: it stops if most "
                "others do",
                by,
            )
            for sender in self._senders.values():
                sender.cancel()  # a new connection is checked again: an open one may be silent for long
        if self._are_most(self._removed_by):
            self._on_removed()

    def _are_most(self, coordinators: set[str]) -> bool:
        return 2 * len(coordinators & self._known) > len(self._known)

    async def _dial(
        self, session: aiohttp.ClientSession, member: CoordinatorRecord
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        name = Identity(self._cluster, Role.COORDINATOR, member.coordinator_id).dns_name
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            return await session.ws_connect(
                peer_url(member.address, member.peer_port, "/raft"),
                ssl=self._context(),
                server_hostname=name,
                heartbeat=PING_S,
                max_msg_size=wire.MESSAGE_BYTES_MAX,
                headers=self._headers,
            )

    async def _pump(self, socket: aiohttp.ClientWebSocketResponse[bool], coordinator_id: str) -> None:
        outbox = self._outboxes[coordinator_id] = Outbox()
        _log.info("connected to coordinator %s", coordinator_id)
        sender = asyncio.create_task(outbox.run(socket), name=f"raft sender to {coordinator_id}")
        self._senders[coordinator_id] = sender
        try:
            receiver = asyncio.create_task(_until_closed(socket), name=f"raft close of {coordinator_id}")
            try:
                await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(receiver)
        finally:
            del self._outboxes[coordinator_id], self._senders[coordinator_id]
            await end(sender)


async def _until_closed(socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
    # No message is expected from the other side; reading answers its pings and notices the end.
    async for _ in socket:
        pass

"""Raft messages to the other coordinators: one WebSocket to each, dialled by address, verified by name.

A message that cannot go out now is dropped: Raft repeats what matters. Messages come in through
coordinator/rpc.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence

import aiohttp

from ca.identity import Identity, Role
from coordinator import wire
from coordinator.link import PING_S, Outbox, OutboxFull, dialling, end
from coordinator.raft.messages import Message
from coordinator.records import CoordinatorRecord

DIAL_TIMEOUT_S = 2.0
REDIAL_S_MIN = 0.05
REDIAL_S_MAX = 1.0

_log = logging.getLogger(__name__)


class Transport:
    """Sends to every other member of the group; `run` keeps the connections up until it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        members: Sequence[CoordinatorRecord],
        context: Callable[[], ssl.SSLContext],
    ) -> None:
        self._cluster = identity.cluster
        self._context = context
        self._members = {m.coordinator_id: m for m in members if m.coordinator_id != identity.id}
        self._outboxes = {coordinator_id: Outbox() for coordinator_id in self._members}
        self._connected: set[str] = set()

    def send(self, messages: Sequence[Message]) -> None:
        """Queue messages for their targets; those for a member that is not connected are dropped."""
        for message in messages:
            if message.target in self._connected:
                with contextlib.suppress(OutboxFull, wire.FrameTooLarge):
                    self._outboxes[message.target].put(wire.RaftFrame(message))

    async def run(self) -> None:
        """Dial every member, again and again."""
        async with dialling() as session, asyncio.TaskGroup() as group:
            for member in self._members.values():
                group.create_task(self._keep_up(session, member), name=f"raft to {member.coordinator_id}")

    async def _keep_up(self, session: aiohttp.ClientSession, member: CoordinatorRecord) -> None:
        redial_s = REDIAL_S_MIN
        while True:
            try:
                async with await self._dial(session, member) as socket:
                    redial_s = REDIAL_S_MIN
                    await self._pump(socket, member.coordinator_id)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                _log.debug("coordinator %s is not reachable: %s", member.coordinator_id, error)
            await asyncio.sleep(redial_s)
            redial_s = min(redial_s * 2, REDIAL_S_MAX)

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
            )

    async def _pump(self, socket: aiohttp.ClientWebSocketResponse[bool], coordinator_id: str) -> None:
        outbox = self._outboxes[coordinator_id]
        outbox.clear()
        self._connected.add(coordinator_id)
        _log.info("connected to coordinator %s", coordinator_id)
        sender = asyncio.create_task(outbox.run(socket), name=f"raft sender to {coordinator_id}")
        try:
            receiver = asyncio.create_task(_until_closed(socket), name=f"raft close of {coordinator_id}")
            try:
                await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(receiver)
        finally:
            self._connected.discard(coordinator_id)
            await end(sender)


def peer_url(address: str, port: int, path: str) -> str:
    """The https URL of a peer port; IPv6 literals get their brackets."""
    host = f"[{address}]" if ":" in address else address
    return f"https://{host}:{port}{path}"


async def _until_closed(socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
    # Nothing is expected from the other side; reading answers its pings and notices the end.
    async for _ in socket:
        pass

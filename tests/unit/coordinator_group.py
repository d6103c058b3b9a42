"""Coordinators of one cluster in one process, with all that a real one has behind its peer port: ledger,
driver, service, TLS between them. And connections there with the certificate of any member, spoken by hand.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry

from ca.errors import Unavailable
from ca.identity import Identity, Role
from ca.keys import new_key, public_key_digest
from ca.tls import Credential
from coordinator.admin.setup import init_cluster, init_from_bundle
from coordinator.member.open_storage import open_ledger
from coordinator.raft.messages import Message
from coordinator.rpc.call_metrics import ServedCalls
from coordinator.rpc.node_client import NodeOrders
from coordinator.rpc.raft_transport import Transport
from coordinator.rpc.raft_wire import frame_of
from coordinator.server import _Member
from coordinator.storage.config import CoordinatorFiles
from deploy.processes import free_ports
from metadata.model.records import CertificateRecord, CoordinatorRecord
from metadata.protocol.calls import AnyCall
from metadata.protocol.commands import DrainNode, RecordCoordinators, RemoveNode
from metadata.rpc import wire
from metadata.rpc.client import MetadataClient
from metadata.rpc.instances import HEADER, Instance, KnownInstances
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.websocket import dialling, end, peer_url
from tests.unit.state import ADMIN, join, join_token
from web.app import new_application, serve

CLUSTER = "lab"
ANSWER_S = 10.0
OVER = aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR


class LossyTransport(Transport):
    """One that loses what a test says."""

    loses: Callable[[Message], bool] = staticmethod(lambda _: False)

    def send(self, messages: Sequence[Message]) -> None:
        super().send([message for message in messages if not self.loses(message)])


class Coordinator:
    """One of them; `run` is its life."""

    member: _Member
    transport: LossyTransport

    def __init__(self, data: Path, record: CoordinatorRecord) -> None:
        self.id = record.coordinator_id
        self.record = record
        self.files = CoordinatorFiles(data)
        self.identity = Identity(CLUSTER, Role.COORDINATOR, self.id)
        self.heard: list[Message] = []  # what came to its core, in order

    @property
    def contexts(self) -> MemberContexts:
        """As whoever has its certificate dials."""
        return MemberContexts(self.files.credential(), self.identity, takes_expired=True)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[_Member]:
        config, contexts = self.files.read_config(), self.contexts
        ledger = open_ledger(self.files, os.fdatasync)
        self.transport = LossyTransport(self.identity, config.members, contexts.client)
        metadata = MetadataClient(self.identity, config.members, contexts.client)
        orders, removed = NodeOrders(CLUSTER, contexts.client), asyncio.Event()
        member = self.member = _Member(
            self.files, config, ledger, self.transport, metadata, removed, orders, contexts
        )
        known = KnownInstances(self.files.instances, self.id)
        calls, step = ServedCalls(CollectorRegistry()), member.driver.step

        def receive(message: Message) -> None:
            self.heard.append(message)
            step(message)

        member.driver.step = receive  # type: ignore[method-assign]
        port = member.peer_port(member.service(self.identity), calls, known)
        self.transport.open()
        runs = (
            member.driver.run(),
            self.transport.run(),
            metadata.run(),
            member.fetcher.run(),
            member.digests.run(),
        )
        listener = await serve(
            new_application(port.routes(), component="peer"),
            host="127.0.0.1",
            port=self.record.peer_port,
            ssl_context=contexts.peer.listening,
            peer=True,
        )
        tasks = [asyncio.create_task(each) for each in runs]
        try:
            yield member
        finally:
            await port.close()
            await listener.close()
            for task in tasks:
                await end(task)
            ledger.close()

    async def leads(self) -> None:
        """Until it leads and has committed something in its term."""
        while True:
            with suppress(Unavailable):
                await self.member.driver.read_barrier()
                if self.member.driver.is_leader:
                    return
            await asyncio.sleep(0.01)

    async def has_heard(self, message: Message) -> None:
        """Until it has, whatever it made of it."""
        while message not in self.heard:
            await asyncio.sleep(0.01)

    async def let_in(self, *coordinators: CoordinatorRecord) -> None:
        """These are the group from now on."""
        driver = self.member.driver
        command = RecordCoordinators(coordinators=list(coordinators))
        await driver.change_members(driver.status().members, command)

    async def joined(self, node_id: str, directory: Path) -> MemberContexts:
        """A new node's, with its certificate."""
        identity, key = Identity(CLUSTER, Role.NODE, node_id), new_key()
        leaf = self.member.authority.sign_leaf(key.public_key(), identity, "127.0.0.1")
        certificate = CertificateRecord(
            serial=leaf.serial,
            pem=leaf.pem,
            public_key_sha256=public_key_digest(key.public_key()),
            not_before_ms=leaf.not_before_ms,
            not_after_ms=leaf.not_after_ms,
        )
        await self.member.driver.propose(join_token(f"t-{node_id}"))
        await self.member.driver.propose(join(f"t-{node_id}", node_id, certificate=certificate))
        credential = Credential(directory / f"{node_id}.pem", self.member.authority.root_pem)
        credential.write(key, leaf.pem)
        return MemberContexts(credential, identity)

    async def remove_node(self, node_id: str) -> None:
        """For good."""
        driver = self.member.driver
        await driver.propose(DrainNode(caller=ADMIN, node_id=node_id, draining=True))
        await driver.propose(RemoveNode(caller=ADMIN, node_id=node_id))

    def contexts_for(self, coordinator_id: str, directory: Path) -> MemberContexts:
        """Those of a coordinator that does not run here, as somebody who has its key has them."""
        identity, key = Identity(CLUSTER, Role.COORDINATOR, coordinator_id), new_key()
        leaf = self.member.authority.sign_leaf(key.public_key(), identity, "127.0.0.1")
        credential = Credential(directory / f"{coordinator_id}.pem", self.member.authority.root_pem)
        credential.write(key, leaf.pem)
        return MemberContexts(credential, identity)


def group_in(directory: Path, *names: str) -> list[Coordinator]:
    """Coordinators of a new cluster, each with a directory of its own; none runs yet."""
    ports = free_ports(2 * len(names))
    records = [
        CoordinatorRecord(
            coordinator_id=name,
            address="127.0.0.1",
            peer_port=ports[2 * number],
            api_port=ports[2 * number + 1],
        )
        for number, name in enumerate(names)
    ]
    init_cluster(
        directory / names[0], coordinator_id=names[0], cluster=CLUSTER, members=records, development=True
    )
    for name in names[1:]:
        init_from_bundle(directory / name, directory / names[0] / "cluster.bundle", name)
    return [Coordinator(directory / record.coordinator_id, record) for record in records]


class Spoken:
    """An open connection to a peer port, on which a test says what it likes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket

    async def ask(self, call: AnyCall) -> wire.AnswerFrame | None:
        """The answer to a call; None when the connection is closed instead."""
        await self.begin(call)
        return await self.answer()

    async def begin(self, call: AnyCall) -> None:
        """Send a call."""
        await self.send(wire.CallFrame(1, int(ANSWER_S * 1000), wire.encode_call(call)))

    async def answer(self) -> wire.AnswerFrame | None:
        """What comes next; None when the connection is closed."""
        message = await asyncio.wait_for(self._socket.receive(), ANSWER_S)
        if message.type in OVER:
            return None
        (frame,) = wire.decode(message.data)
        assert isinstance(frame, wire.AnswerFrame)
        return frame

    async def say(self, *messages: Message) -> None:
        """Send Raft messages."""
        await self.send(*map(frame_of, messages))

    async def send(self, *frames: wire.Frame) -> None:
        """Send frames, together."""
        await self.send_raw(wire.encode_parcel([wire.encode_frame(frame) for frame in frames]))

    async def send_raw(self, data: bytes) -> None:
        """Send what may be no frames."""
        with suppress(ConnectionError, aiohttp.ClientError):
            await self._socket.send_bytes(data)

    async def is_closed(self) -> bool:
        """Whether the other side closes it, soon."""
        return await self.answer() is None


@asynccontextmanager
async def speaking(
    to: CoordinatorRecord,
    path: str,
    contexts: MemberContexts,
    *,
    instance: Instance | None = None,
    http: aiohttp.ClientSession | None = None,
) -> AsyncIterator[Spoken]:
    """A connection that is open until the test is over, or the other side ends it."""
    name = Identity(CLUSTER, Role.COORDINATOR, to.coordinator_id).dns_name
    async with AsyncExitStack() as stack:
        if http is None:
            http = await stack.enter_async_context(dialling())
        connecting = http.ws_connect(
            peer_url(to.address, to.peer_port, path),
            ssl=contexts.client(),
            server_hostname=name,
            headers={} if instance is None else {HEADER: str(instance)},
        )
        yield Spoken(await stack.enter_async_context(connecting))

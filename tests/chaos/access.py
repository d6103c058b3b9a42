"""How the clients get in: one joins as a node and sends its heartbeats, since files are placed on nodes.

All clients show this node's certificate, and the admin's token with every operation.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ca.csr import new_csr
from ca.identity import Identity, Role
from ca.jointoken import secret_digest
from ca.keys import new_key
from ca.tls import Credential
from coordinator.machine.execution.rules import RULES
from coordinator.model.records import Caller, CoordinatorRecord, JoinTokenRecord, NodeRecord
from coordinator.protocol.calls import HeartbeatCall, JoinCall
from coordinator.protocol.commands import AnnounceNode, CreateJoinToken
from coordinator.rpc.client import MetadataClient
from coordinator.rpc.roster import Roster
from coordinator.rpc.tls_contexts import MemberContexts
from coordinator.runtime.config import CoordinatorFiles
from tests.chaos.members import CLUSTER_NAME

NODE_ID = "clients"
API_PORT, PEER_PORT = 8443, 8444  # nobody asks there
HEARTBEAT_S = 0.5
FREE_BYTES = 1 << 40
START_TIMEOUT_S = 30.0


@dataclass
class Access:
    """What a client needs to ask the coordinators."""

    identity: Identity
    records: list[CoordinatorRecord]
    contexts: MemberContexts

    def client(self, records: Sequence[CoordinatorRecord] = ()) -> MetadataClient:
        """A client of all coordinators, or only of these. The caller owns its `run`."""
        return MetadataClient(self.identity, records or self.records, self.contexts.client)

    async def send_heartbeats(self, metadata: MetadataClient, roster: Roster) -> None:
        """The node lives, for every coordinator of the roster, until cancelled."""

        async def beat(record: CoordinatorRecord) -> None:
            while True:
                await metadata.heartbeat(
                    record.coordinator_id, HeartbeatCall(FREE_BYTES, FREE_BYTES, 0, rules=RULES)
                )
                await asyncio.sleep(HEARTBEAT_S)

        await roster.run(beat, "heartbeat to")


async def join(
    coordinator_data: Path, records: list[CoordinatorRecord], caller: Caller, *, address: str, target: Path
) -> Access:
    """Let the clients' node join; the coordinators run. The first call is made as a coordinator."""
    files = CoordinatorFiles(coordinator_data)
    identity = Identity(CLUSTER_NAME, Role.COORDINATOR, records[0].coordinator_id)
    own = Access(identity, records, MemberContexts(files.credential(), identity))
    node = Identity(CLUSTER_NAME, Role.NODE, NODE_ID)
    key = new_key()
    secret = secrets.token_hex(32)
    token = CreateJoinToken(
        caller=caller,
        token_id="chaos",
        secret_sha256=secret_digest(secret),
        node_id=NODE_ID,
        uses_max=1,
        ttl_seconds=3600,
    )
    call = JoinCall("chaos", secret_digest(secret), NODE_ID, address, API_PORT, new_csr(key, node, address))
    async with running(own.client()) as metadata:
        await metadata.propose(token, JoinTokenRecord, timeout_s=START_TIMEOUT_S)
        joined = await metadata.join(call)
    credential = Credential(target, files.root.read_text("ascii"))
    credential.write(key, joined.node_cert)
    access = Access(node, records, MemberContexts(credential, node))
    announced = AnnounceNode(node_id=NODE_ID, peer_port=PEER_PORT, zone="", weight=1)
    async with running(access.client()) as metadata:
        await metadata.propose(announced, NodeRecord, timeout_s=START_TIMEOUT_S)
    return access


@contextlib.asynccontextmanager
async def running(metadata: MetadataClient) -> AsyncIterator[MetadataClient]:
    """A client with its connections, for a while."""
    task = asyncio.create_task(metadata.run(), name="connections of a client")
    try:
        yield metadata
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

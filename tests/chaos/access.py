"""How the clients get in: one joins as a node and sends its heartbeats, as each process of a node does.

It has no disk to tell of, so that nothing is placed on it. All clients of the coordinators show its
certificate, and the admin's token with every operation.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ca.certificates import root_digest
from ca.csr import new_csr
from ca.identity import Identity, Role
from ca.jointoken import JoinToken, new_join_token, secret_digest
from ca.keys import new_key
from ca.tls import Credential
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import Caller, CoordinatorRecord, JoinTokenRecord, NodeRecord
from metadata.model.rules import RULES
from metadata.protocol.calls import HeartbeatCall, JoinCall
from metadata.protocol.commands import AnnounceNode, CreateJoinToken
from metadata.rpc.client import MetadataClient
from metadata.rpc.roster import Roster
from metadata.rpc.tls_contexts import MemberContexts
from tests.chaos.members import CLUSTER_NAME

NODE_ID = "clients"
API_PORT, PEER_PORT = 8443, 8444  # nobody asks there
HEARTBEAT_S = 0.5
START_TIMEOUT_S = 30.0
TOKEN_TTL_S = 3600


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
                await metadata.heartbeat(record.coordinator_id, HeartbeatCall(0, 0, 0, rules=RULES))
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
    root_pem = files.root.read_text("ascii")
    async with running(own.client()) as metadata:
        token = await new_token(metadata, caller, root_pem, NODE_ID)
        digest, csr = secret_digest(token.secret), new_csr(key, node, address)
        joined = await metadata.join(JoinCall(token.token_id, digest, NODE_ID, address, API_PORT, csr))
    credential = Credential(target, root_pem)
    credential.write(key, joined.node_cert)
    access = Access(node, records, MemberContexts(credential, node))
    announced = AnnounceNode(node_id=NODE_ID, peer_port=PEER_PORT, zone="", weight=1)
    async with running(access.client()) as metadata:
        await metadata.propose(announced, NodeRecord, timeout_s=START_TIMEOUT_S)
    return access


async def new_token(metadata: MetadataClient, caller: Caller, root_pem: str, node_id: str) -> JoinToken:
    """A join token with which this node may join, once."""
    token = new_join_token(root_digest(root_pem))
    command = CreateJoinToken(
        caller=caller,
        token_id=token.token_id,
        secret_sha256=secret_digest(token.secret),
        node_id=node_id,
        uses_max=1,
        ttl_seconds=TOKEN_TTL_S,
    )
    await metadata.propose(command, JoinTokenRecord, timeout_s=START_TIMEOUT_S)
    return token


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

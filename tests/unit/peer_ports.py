"""Real peer ports of coordinators that answer as a test likes, and clients of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ca.certificates import Authority
from ca.identity import Identity, Role
from ca.keys import new_key
from ca.tls import Credential, Peer
from coordinator.rpc.server import Admission, CallHandler, PeerPort
from metadata.model.records import CoordinatorRecord
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from web.app import new_application, serve

CLUSTER = "lab"


def contexts_of(
    member_id: str,
    directory: Path,
    authority: Authority,
    *,
    role: Role = Role.COORDINATOR,
    made_days_ago: float = 0.0,
) -> MemberContexts:
    """Of a member with a new certificate, as a coordinator takes others."""
    credential = Credential(directory / f"{member_id}.pem", authority.root_pem)
    write_credential(credential, member_id, authority, role=role, made_days_ago=made_days_ago)
    return MemberContexts(
        credential, Identity(CLUSTER, role, member_id), takes_expired=role is Role.COORDINATOR
    )


def write_credential(
    credential: Credential, member_id: str, authority: Authority, *, role: Role, made_days_ago: float = 0.0
) -> None:
    """A certificate that was, or will be, made then."""
    key, made_at = new_key(), datetime.now(UTC) - timedelta(days=made_days_ago)
    leaf = authority.sign_leaf(key.public_key(), Identity(CLUSTER, role, member_id), "127.0.0.1", now=made_at)
    credential.write(key, leaf.pem)


@asynccontextmanager
async def serving(
    coordinator_id: str,
    handle: CallHandler,
    directory: Path,
    authority: Authority,
    *,
    check: Callable[[Peer], None] = lambda _: None,
    admit: Admission | None = None,
) -> AsyncIterator[CoordinatorRecord]:
    """A coordinator at its peer port: `handle` answers the calls, `check` raises for strangers, `admit` for
    coordinators that are not who they were.
    """
    contexts = contexts_of(coordinator_id, directory, authority)
    port = PeerPort(handle, lambda _: None, check, admit=admit)
    app = new_application(port.routes(), component="peer")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=contexts.peer.listening, peer=True)
    try:
        yield CoordinatorRecord(
            coordinator_id=coordinator_id, address="127.0.0.1", peer_port=listener.port, api_port=2
        )
    finally:
        await port.close()
        await listener.close()


@asynccontextmanager
async def connected(
    own_id: str,
    records: Iterable[CoordinatorRecord],
    directory: Path,
    authority: Authority,
    *,
    role: Role = Role.COORDINATOR,
    contexts: MemberContexts | None = None,
) -> AsyncIterator[MetadataClient]:
    """A client whose connections are kept up."""
    contexts = contexts or contexts_of(own_id, directory, authority, role=role)
    client = MetadataClient(Identity(CLUSTER, role, own_id), list(records), contexts.client)
    running = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        running.cancel()
        await asyncio.wait([running])

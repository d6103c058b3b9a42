"""What members may do to each other, and survive of each other: the peer ports of real processes."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import aiohttp
import pytest

from ca.errors import FilestoreError, Forbidden, Unauthorized
from ca.identity import Identity, Role
from ca.secretfiles import read_secret
from ca.tls import peer_client_context
from coordinator.admin.authority import SigningAuthority
from coordinator.raft.messages import Message, MessageKind
from coordinator.rpc.raft_wire import frame_of
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.state_store import Store
from deploy.dev_cluster import Member
from metadata.model.records import Caller, JoinTokenRecord, NodeRecord, UploadRecord, UserRecord
from metadata.model.rules import RULES
from metadata.protocol import commands, queries
from metadata.protocol.calls import AnyCall, HeartbeatCall, MintCall, ProposeCall
from metadata.rpc import wire
from metadata.rpc.client import MetadataClient, _SessionEnded
from metadata.rpc.websocket import dialling, peer_url
from node.base.config import NodeFiles
from runtime.clock import now_ms
from tests.cluster.harness import Cluster

POLL_S = 0.05
HANG_S = 14.0  # longer than two WebSocket pings, so that the others take the link down
SEQUENCES_TRIED = 60  # more than any session of a young cluster has come to


@contextlib.asynccontextmanager
async def as_node(cluster: Cluster, member: Member) -> AsyncIterator[MetadataClient]:
    """Calls with the certificate of a node."""
    files = NodeFiles(cluster.data(member))
    config, credential = files.read_config(), files.credential()
    context = peer_client_context(credential.path, credential.root_pem)
    identity = config.identity
    client = MetadataClient(identity, config.coordinators, lambda: context)
    running = asyncio.create_task(client.run())
    try:
        for coordinator_id in [record.coordinator_id for record in client.coordinators]:
            await until_heard(client, coordinator_id)
        yield client
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until_heard(client: MetadataClient, coordinator_id: str) -> None:
    async with asyncio.timeout(20):
        while await client.heartbeat(coordinator_id, HeartbeatCall(1 << 40, 1 << 41, 0, rules=RULES)) is None:
            await asyncio.sleep(POLL_S)


def forged(subject: str = "admin") -> list[Caller]:
    """A caller without a token, and with one that no key of the cluster signed."""
    return [Caller(subject, 1), Caller(subject, 1, "eyJ.eyJ.x")]


def caller_of(user_id: str, token: str) -> Caller:
    """Who has this token, of the generation that it says."""
    claims = token.split(".")[1]
    return Caller(user_id, json.loads(base64.urlsafe_b64decode(claims + "=="))["gen"], token)


def join_token(caller: Caller) -> commands.CreateJoinToken:
    return commands.CreateJoinToken(
        caller=caller, token_id="t", secret_sha256="x", node_id="", uses_max=1, ttl_seconds=60
    )


async def test_node_cannot_act_for_a_user_whose_token_it_has_not(cluster: Cluster) -> None:
    async with as_node(cluster, cluster.nodes[0]) as client:
        for caller in forged():
            with pytest.raises(Unauthorized):
                await client.mint(caller, "eve", ["admin"], None, 0)
            with pytest.raises(Unauthorized):
                await client.propose(join_token(caller), JoinTokenRecord)
            with pytest.raises(Unauthorized):
                await client.read(queries.GetUser(caller=caller), UserRecord)
            with pytest.raises(Unauthorized):
                await client.status(caller)


async def test_node_cannot_use_one_users_token_for_another(cluster: Cluster) -> None:
    answer = cluster.post("/auth/users/alice/token")
    cluster.remember(answer.json["token"])
    async with as_node(cluster, cluster.nodes[0]) as client:
        alice = await client.read(
            queries.GetUser(caller=caller_of("alice", answer.json["token"])), UserRecord
        )
        assert alice.user_id == "alice"
        with pytest.raises(Unauthorized):
            await client.propose(join_token(Caller("admin", 1, answer.json["token"])), JoinTokenRecord)


async def test_node_cannot_speak_for_another_node(cluster: Cluster) -> None:
    created = cluster.create()
    admin = Caller("admin", 1, cluster.admin_token)
    file_uuid, other = created["file_uuid"], cluster.nodes[1].id
    async with as_node(cluster, cluster.nodes[0]) as client:
        for command in (
            commands.AnnounceNode(node_id=other, peer_port=1, zone="", weight=1),
            commands.RecordProgress(caller=admin, file_uuid=file_uuid, node_id=other, offset_bytes=1),
            commands.CompleteUpload(
                caller=admin,
                file_uuid=file_uuid,
                blob_sha256="0" * 64,
                size_bytes=1,
                replicas=[other, cluster.nodes[2].id],
            ),
        ):
            with pytest.raises(Forbidden):
                await client.propose(command, NodeRecord)
    assert cluster.get(f"/project-files/{file_uuid}").json["status"] == "pending"


async def test_node_cannot_propose_what_only_coordinators_do(cluster: Cluster) -> None:
    admit = commands.AdmitUser(
        caller=Caller("admin", 1, cluster.admin_token), user_id="eve", roles=["admin"], groups=None
    )
    async with as_node(cluster, cluster.nodes[0]) as client:
        with pytest.raises(Forbidden):
            await client.propose(admit, UserRecord)


def sessions_of_members(cluster: Cluster) -> list[int]:
    """What no node knows: the numbers of the sessions that are open."""
    return [number for (number,) in cluster.logged("SELECT session FROM sessions ORDER BY session")]


async def answered(
    client: MetadataClient, sessions: Iterable[int], build: Callable[[int, int], AnyCall]
) -> list[bytes]:
    """What the leader answers to calls in sessions of others, at every place that a change may have there."""
    answers = []
    for session in sessions:
        for sequence in range(1, SEQUENCES_TRIED):
            ends_at_s = asyncio.get_running_loop().time() + 20
            try:
                answers.append(await client._at_leader(build(session, sequence), ends_at_s))
            except _SessionEnded:
                break
            except FilestoreError:
                continue
    return answers


async def test_node_gets_no_token_for_what_another_was_answered(cluster: Cluster) -> None:
    plain = cluster.user_token("plain-one")
    cluster.user_token("chief-one", roles=["admin"])
    caller = caller_of("plain-one", plain)
    async with as_node(cluster, cluster.nodes[0]) as client:
        assert not await answered(
            client,
            sessions_of_members(cluster)[-20:],
            lambda session, sequence: MintCall(caller, "chief-one", None, None, 0, session, sequence, 0),
        )


@pytest.mark.long
async def test_node_makes_no_change_of_another_count_as_done(own_cluster: Cluster) -> None:
    cluster, victim = own_cluster, own_cluster.nodes[1]
    plain, revoked = cluster.user_token("plain"), cluster.user_token("revoked")
    file_uuid = cluster.store(b"x", token=plain)
    link = cluster.post(f"/files/{file_uuid}/public-token", {}, token=plain).headers["location"]
    harmless = commands.RevokePublicToken(
        caller=caller_of("plain", plain), file_uuid=file_uuid, token_id=link.rsplit("/", 1)[1]
    )
    assert cluster.create(node=victim)  # so that it has a session
    log_index = cluster.get("/cluster/status").json["coordinators"][0]["last_index"]
    async with as_node(cluster, cluster.nodes[2]) as client:
        assert not await answered(
            client,
            range(1, log_index + 1),
            lambda session, sequence: ProposeCall(session, sequence, 0, harmless),
        )
    assert cluster.post("/auth/revoke", {"user_id": "revoked"}, node=victim).status == 200
    assert cluster.get("/auth/whoami", token=revoked).status == 401


async def test_change_beyond_a_bound_is_refused_and_every_coordinator_lives(cluster: Cluster) -> None:
    admin = Caller("admin", 1, cluster.admin_token)
    command = commands.CreateJoinToken(
        caller=admin, token_id="t", secret_sha256="x", node_id="", uses_max=2**63, ttl_seconds=60
    )
    async with as_node(cluster, cluster.nodes[0]) as client:
        with pytest.raises(FilestoreError, match="malformed"):
            await client.propose(command, JoinTokenRecord)
    assert all(s["role"] != "unreachable" for s in cluster.get("/cluster/status").json["coordinators"])


@contextlib.asynccontextmanager
async def dialled(
    cluster: Cluster, coordinator: Member, path: str
) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
    """A WebSocket to a coordinator with the certificate of a node."""
    credential = NodeFiles(cluster.data(cluster.nodes[0])).credential()
    name = Identity("development", Role.COORDINATOR, coordinator.id).dns_name
    async with (
        dialling() as session,
        session.ws_connect(
            peer_url("127.0.0.1", coordinator.peer_port, path),
            ssl=peer_client_context(credential.path, credential.root_pem),
            server_hostname=name,
        ) as socket,
    ):
        yield socket


async def test_certificate_of_a_node_does_not_open_raft(cluster: Cluster) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with dialled(cluster, cluster.coordinators[0], "/raft"):
            pass
    assert refusal.value.status == 401


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x91" * 100_000,
        os.urandom(1000),
        wire.encode_parcel([wire.encode_frame(frame_of(Message(MessageKind.VOTE, "c1", "c2", 9)))]),
    ],
)
async def test_what_is_no_call_ends_the_connection_and_nothing_else(cluster: Cluster, message: bytes) -> None:
    async with dialled(cluster, cluster.coordinators[0], "/rpc") as socket:
        await socket.send_bytes(message)
        assert (await socket.receive(timeout=10)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSING,
            aiohttp.WSMsgType.CLOSED,
        )
    async with as_node(cluster, cluster.nodes[0]) as client:
        reply = await client.heartbeat(cluster.coordinators[0].id, HeartbeatCall(1, 1, 0, rules=RULES))
        assert reply is not None


@pytest.mark.long
def test_coordinator_that_hangs_ends_nobody_else(mended: Cluster) -> None:
    hung = mended.coordinators[-1]
    os.kill(mended.pid(hung), signal.SIGSTOP)
    try:
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            mended.create()
    finally:
        os.kill(mended.pid(hung), signal.SIGCONT)
    mended.wait_healthy()  # which fails when a process has ended


def test_peer_that_leaves_before_it_is_answered_is_no_fault_of_the_coordinator(mended: Cluster) -> None:
    hanging, node = mended.coordinators[2], mended.nodes[0]
    files = NodeFiles(mended.data(node))
    context = peer_client_context(files.credential().path, files.credential().root_pem)
    name = f"{hanging.id}.coordinator.{files.read_config().identity.cluster}.internal"
    address = ("127.0.0.1", hanging.peer_port)
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    upgrade = f"GET /rpc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n"
    before = mended.logs()[hanging.id].count('"request failed"')
    leaving = [
        context.wrap_socket(socket.create_connection(address), server_hostname=name) for _ in range(40)
    ]
    os.kill(mended.pid(hanging), signal.SIGSTOP)
    for each in leaving:
        each.sendall(upgrade.encode("ascii"))
        each.close()
    os.kill(mended.pid(hanging), signal.SIGCONT)
    mended.wait_healthy()
    assert mended.logs()[hanging.id].count('"request failed"') == before


def test_coordinator_builds_a_lost_database_again_from_its_log(mended: Cluster) -> None:
    file_uuid = mended.store(b"kept")
    coordinator = mended.coordinators[0]
    mended.kill(coordinator)
    for path in mended.data(coordinator).glob("state.sqlite*"):
        path.unlink()
    mended.restart(coordinator)
    mended.wait_healthy()
    answer = mended.get(f"/project-files/{file_uuid}", node=coordinator)
    assert (answer.status, answer.json["status"]) == (200, "available")


def test_everybody_ends_on_sigterm_at_once(mended: Cluster) -> None:
    started_at = time.monotonic()
    mended.terminate(*mended.members)
    assert time.monotonic() - started_at < 8.0  # far below the time that requests may take to drain
    mended.restart(*mended.members)


def test_secrets_of_a_coordinator_are_for_its_user_alone(cluster: Cluster) -> None:
    files = CoordinatorFiles(cluster.data(cluster.coordinators[0]))
    secrets: list[Path] = [files.cluster_key, files.root_key, files.bundle, files.credential_path]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * len(secrets)
    assert files.data.stat().st_mode & 0o777 == 0o700


def expired_admin_token(cluster: Cluster) -> str:
    """Signed with the key of a coordinator, an hour ago, for a minute."""
    files = CoordinatorFiles(cluster.data(cluster.coordinators[0]))
    store = Store(files.state)
    try:
        authority = SigningAuthority(
            store, read_secret(files.cluster_key), "development", files.root.read_text()
        )
        return authority.sign_user_token(
            subject="admin",
            generation=1,
            roles=("admin",),
            groups=(),
            at_ms=now_ms() - 3_600_000,
            ttl_seconds=60,
            token_id="expired",
        )
    finally:
        store.close()


async def test_upload_may_outlast_the_token_that_it_began_with(cluster: Cluster) -> None:
    """A node that has an expired token may end what began under it, and nothing else."""
    created = cluster.create(size_bytes=1)
    holder = next(node for node in cluster.nodes if created["upload_url"].startswith(node.url))
    caller = Caller("admin", 1, expired_admin_token(cluster))
    cluster.remember(caller.token)
    progress = commands.RecordProgress(
        caller=caller, file_uuid=created["file_uuid"], node_id=holder.id, offset_bytes=0
    )
    async with as_node(cluster, holder) as client:
        with pytest.raises(Unauthorized):
            await client.read(queries.GetUser(caller=caller), UserRecord)
        assert (await client.propose(progress, UploadRecord)).status == "pending"

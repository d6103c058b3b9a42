"""A node whose certificate somebody else has: it is shut out while it lives, and joins anew. One that is gone
is removed at once.
"""

import asyncio
import hashlib
import shutil
import ssl
from pathlib import Path

import aiohttp
import pytest

from ca.identity import Identity, Role
from ca.tls import Credential
from deploy.dev_cluster import Member
from deploy.processes import LOOPBACK, is_ready, wait_until
from metadata.model.rules import RULES
from metadata.protocol.calls import HeartbeatCall
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.websocket import peer_url
from node.base.config import NodeConfig, NodeFiles
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster
from tests.cluster.test_stolen_nodes import seen

pytestmark = pytest.mark.long  # run by `make long`

SOON_S = 30.0
CONTENT = b"what a thief would read"


class Thief:
    """Whoever has a copy of the certificate of a node."""

    def __init__(self, cluster: Cluster, node: Member, directory: Path) -> None:
        files = NodeFiles(cluster.data(node))
        self.config: NodeConfig = files.read_config()
        shutil.copy(files.credential_path, directory / "stolen.pem")
        credential = Credential(directory / "stolen.pem", files.root.read_text())
        self.contexts = MemberContexts(credential, self.config.identity)

    def context(self) -> ssl.SSLContext:
        return self.contexts.client()

    async def reads(self, node: Member, sha256: str) -> int:
        """How a node answers who asks for a blob there."""
        name = Identity(self.config.cluster, Role.NODE, node.id).dns_name
        url = peer_url(LOOPBACK, node.peer_port, f"/blobs/{sha256}")
        async with (
            aiohttp.ClientSession() as http,
            http.get(url, ssl=self.context(), server_hostname=name) as answer,
        ):
            return answer.status

    async def beats(self, coordinator_id: str) -> bool:
        """Whether a coordinator takes a heartbeat."""
        client = MetadataClient(self.config.identity, self.config.coordinators, self.context)
        running = asyncio.create_task(client.run())
        try:
            for _ in range(50):
                if await client.heartbeat(coordinator_id, HeartbeatCall(1, 2, 0, rules=RULES)) is not None:
                    return True
                await asyncio.sleep(0.05)
            return False
        finally:
            running.cancel()
            await asyncio.wait([running])


def test_living_node_is_revoked_and_its_certificate_opens_nothing_any_more(
    mended: Cluster, tmp_path: Path
) -> None:
    cluster, (asked, other, node) = mended, mended.nodes
    cluster.store_everywhere(CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    thief, leader = Thief(cluster, node, tmp_path), cluster.leader()
    assert asyncio.run(thief.reads(other, sha256)) == 200
    assert asyncio.run(thief.beats(leader.id))
    with drill("stolen node"):
        revoked = cluster.filestore("node", "revoke", node.id)
        assert revoked.returncode == 0, revoked.stderr
        assert b"must be made on other nodes" in revoked.stderr
        wait_until(lambda: not is_ready(node.api_port, cluster.context), what="the end", timeout_s=SOON_S)
        wait_until(lambda: asyncio.run(thief.reads(other, sha256)) == 401, what="a refusal", timeout_s=SOON_S)
        assert not asyncio.run(thief.beats(leader.id))
        shown = seen(cluster, node, asked)
        assert (shown["state"], shown["revoked"]) == ("down", True)
        problems = cluster.get("/cluster/status", node=asked).json["problems"]
        assert any(f"{node.id} is revoked" in problem for problem in problems)
        join_anew(cluster, node)
        wait_until(lambda: seen(cluster, node, asked)["state"] == "healthy", what="it", timeout_s=2 * SOON_S)
    assert not seen(cluster, node, asked)["revoked"]
    assert asyncio.run(thief.reads(other, sha256)) == 401
    cluster.wait_healthy()


def join_anew(cluster: Cluster, node: Member) -> None:
    """As the runbook says: its directory keeps what it holds."""
    cluster.terminate(node)
    files = NodeFiles(cluster.data(node))
    files.config.unlink()
    token = cluster.filestore("token", "join", "--node-id", node.id)
    cluster.remember(token.stdout.decode().strip())
    joined = cluster.filestore(
        *("node", "join", "--id", node.id, "--data", str(files.data), "--token-file", "-"),
        *("--coordinator", cluster.coordinators[0].url, "--address", LOOPBACK),
        *("--api-port", str(node.api_port), "--peer-port", str(node.peer_port)),
        stdin=token.stdout,
    )
    assert joined.returncode == 0, joined.stderr
    cluster.restart(node)


def test_node_that_is_gone_is_removed_at_once_and_its_place_taken(mended: Cluster) -> None:
    cluster, (asked, _, node) = mended, mended.nodes
    cluster.store_everywhere(b"held by all three")
    said = ("node", "remove", "--force", "--is-gone", node.id)
    refused = cluster.filestore(*said)
    assert refused.returncode != 0
    assert b"was heard" in refused.stderr
    cluster.kill(node)
    refused = cluster.filestore("node", "remove", "--force", node.id)
    assert refused.returncode != 0
    assert b"--is-gone" in refused.stderr
    wait_until(lambda: cluster.filestore(*said).returncode == 0, what="its removal", timeout_s=SOON_S)
    assert all(each["id"] != node.id for each in cluster.get("/cluster/nodes", node=asked).json["nodes"])
    token = cluster.join_token(node_id="replacement")
    body = cluster.filestore(
        *("node", "join", "--id", "replacement", "--token-file", "-", "--address", LOOPBACK),
        *("--data", str(cluster.directory / "replacement"), "--coordinator", cluster.coordinators[0].url),
        *("--api-port", str(node.api_port), "--peer-port", str(node.peer_port)),
        stdin=token.encode(),
    )
    assert body.returncode == 0, body.stderr

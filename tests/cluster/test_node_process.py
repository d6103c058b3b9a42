"""What a node does by itself: ends what a crash left open, sweeps ended uploads, renews its certificate."""

import asyncio
import base64
import contextlib
import hashlib
import os
from pathlib import Path

import pytest

from ca.identity import Identity, Role
from ca.tls import peer_identity
from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeFiles
from node.membership.renewal import renew
from node.uploads.sweep import SWEEP_S
from tests.cluster.harness import Cluster

CHECKSUM = "Upload-Checksum"
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"}


def holder_of(cluster: Cluster, url: str) -> Member:
    return next(node for node in cluster.nodes if url.startswith(node.url))


def upload_directory(cluster: Cluster, url: str) -> Path:
    return cluster.data(holder_of(cluster, url)) / "uploads" / url.split("/")[-2]


@pytest.mark.long
@pytest.mark.parametrize(("offset", "sends"), [("0", True), ("4", False)])
def test_upload_finished_before_a_crash_is_complete_and_commits_on_the_next_request(
    mended: Cluster, offset: str, sends: bool
) -> None:
    """Where HEAD sends the client, or where it knows that its bytes came."""
    cluster, content = mended, os.urandom(4)
    url = cluster.create(size_bytes=4)["upload_url"]
    holder = holder_of(cluster, url)
    others = [node for node in cluster.nodes if node is not holder]
    cluster.kill(*others)
    assert cluster.request("PATCH", url, content=content, headers=TUS).status == 503
    cluster.kill(holder)
    cluster.restart(*cluster.nodes)
    cluster.wait_healthy()
    head = cluster.request("HEAD", url)
    assert (head.status, head.headers["upload-offset"]) == (200, "0")
    piece = content if sends else b""
    checksum = base64.b64encode(hashlib.sha256(piece).digest()).decode()
    headers = {**TUS, "Upload-Offset": offset}
    if not sends:
        wrong = base64.b64encode(bytes(32)).decode()
        answer = cluster.request("PATCH", url, content=piece, headers=headers | {CHECKSUM: f"sha256 {wrong}"})
        assert answer.status == 460
    answer = cluster.request("PATCH", url, content=piece, headers=headers | {CHECKSUM: f"sha256 {checksum}"})
    assert answer.status == 204
    file_uuid = url.split("/")[-2]
    assert cluster.get(f"/files/{file_uuid}", node=others[0]).body == content
    directory = upload_directory(cluster, url)
    wait_until(lambda: not directory.exists(), what="the sweep", timeout_s=2 * SWEEP_S)


@pytest.mark.long
def test_bytes_of_an_ended_upload_are_swept_and_those_of_a_live_one_stay(mended: Cluster) -> None:
    cluster = mended
    ended, live = (cluster.create(size_bytes=10)["upload_url"] for _ in range(2))
    for url in (ended, live):
        assert cluster.request("PATCH", url, content=b"abcd", headers=TUS).status == 204
    assert cluster.request("DELETE", f"/project-files/{ended.split('/')[-2]}").status == 200
    assert upload_directory(cluster, ended).exists()
    cluster.terminate(*cluster.nodes)
    cluster.restart(*cluster.nodes)  # the first sweep comes at start
    cluster.wait_healthy()
    wait_until(lambda: not upload_directory(cluster, ended).exists(), what="the sweep", timeout_s=20)
    assert cluster.request("HEAD", live).headers["upload-offset"] == "4"


def test_second_process_on_a_data_directory_is_refused_and_removes_nothing(mended: Cluster) -> None:
    cluster = mended
    directory = cluster.data(cluster.nodes[0])
    half_written = directory / "uploads" / "incoming-of-a-running-request"
    half_written.write_bytes(b"abcd")
    second = cluster.filestore("node", "run", "--data", str(directory))
    assert second.returncode != 0
    assert b"in use by another process" in second.stderr
    assert half_written.read_bytes() == b"abcd"
    half_written.unlink()


async def test_renewed_certificate_has_a_new_key_and_opens_the_peer_port(mended: Cluster) -> None:
    node = mended.nodes[0]
    files = NodeFiles(mended.data(node))
    config = files.read_config()
    identity = config.identity
    contexts = MemberContexts(files.credential(), identity)
    before = files.credential_path.read_text()
    metadata = MetadataClient(identity, config.coordinators, contexts.client)
    running = asyncio.create_task(metadata.run())
    try:
        await renew(metadata, contexts, identity, config.address)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    after = files.credential_path.read_text()
    assert files.credential_path.stat().st_mode & 0o777 == 0o600
    assert before.split("-----END")[0] != after.split("-----END")[0]
    other = NodeFiles(mended.data(mended.nodes[1])).read_config()
    _, writer = await asyncio.open_connection(
        other.address,
        other.peer_port,
        ssl=contexts.client(),
        server_hostname=Identity(config.cluster, Role.NODE, other.id).dns_name,
    )
    assert peer_identity(writer.transport).identity.id == other.id
    writer.close()
    await writer.wait_closed()

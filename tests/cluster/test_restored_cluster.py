"""A cluster that was restored after its nodes renewed their certificates: all heals by itself."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import stop_children, wait_until
from metadata.rpc.client import MetadataClient
from metadata.rpc.roster import read_known
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeFiles
from node.membership.renewal import renew
from tests.cluster.harness import Cluster, run_filestore
from tests.cluster.test_coordinators import Guest, answers, done
from tests.cluster.upload_steps import Steps

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
MIB = 1 << 20
SOON_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as started:
        yield started


async def renew_certificate(data: Path) -> None:
    """As the node does by itself when two thirds of its certificate's life are over."""
    files = NodeFiles(data)
    config = files.read_config()
    contexts = MemberContexts(files.credential(), config.identity)
    metadata = MetadataClient(config.identity, read_known(files.known, config.coordinators), contexts.client)
    running = asyncio.create_task(metadata.run())
    try:
        await renew(metadata, contexts, config.identity, config.address)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def taken(cluster: Cluster) -> tuple[str, ...]:
    """The options that name a snapshot and a bundle of now."""
    data = str(cluster.data(cluster.coordinators[0]))
    found: list[str] = []
    for what in ("snapshot", "bundle"):
        path = str(cluster.directory / f"kept.{what}")
        done(cluster, "coordinator", what, "--data", data, "--output", path)
        found += [f"--{what}", path]
    return tuple(found)


def restored(cluster: Cluster, kept: tuple[str, ...], guest: Guest) -> dict[str, str]:
    """Restore, run, and reconnect all nodes, as the runbook has it; the environment of commands."""
    where = ("--data", str(guest.data), "--id", guest.id, "--address", guest.address)
    done(cluster, "coordinator", "restore", *kept, *where)
    cluster._development.children[guest.id] = guest.start()
    cluster.remember((guest.data / "admin.token").read_text().strip())
    for node in cluster.nodes:
        cluster.terminate(node)
        data = str(cluster.data(node))
        done(cluster, "node", "reconnect", "--data", data, "--coordinator", guest.member.url)
        cluster.restart(node)
    return cluster.command_environment(
        FILESTORE_URL=guest.member.url, FILESTORE_TOKEN_FILE=str(guest.data / "admin.token")
    )


def certificates(guest: Guest) -> list[tuple[str, int]]:
    """(node, revoked) of each certificate that the restored state knows."""
    address = f"{(guest.data / 'state.sqlite').as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as db:
        return db.execute("SELECT node_id, revoked FROM certificates ORDER BY node_id, revoked").fetchall()


def healthy(cluster: Cluster, asked: Member) -> bool:
    answer = cluster.get("/cluster/status", node=asked)
    return answer.status == 200 and {each["state"] for each in answer.json["nodes"]} == {"healthy"}


def taken_over(steps: Steps, cluster: Cluster) -> None:
    """The holder dies after the snapshot, another node goes on, and the holder comes back."""
    cluster.kill(steps.holder)
    assert steps.patch_until_taken(8 * MIB, 12 * MIB, steps.others[0]).status == 204
    cluster.restart(steps.holder)
    cluster.wait_healthy()


def test_nodes_that_renewed_after_the_snapshot_come_back_with_all_they_hold(cluster: Cluster) -> None:
    content = os.urandom(300_000)
    file_uuid = cluster.store_everywhere(content)
    steps = Steps(cluster, os.urandom(20 * MIB))
    assert steps.patch(0, 8 * MIB).status == 204
    kept = taken(cluster)
    taken_over(steps, cluster)
    for node in cluster.nodes:
        asyncio.run(renew_certificate(cluster.data(node)))
    cluster.kill(*cluster.coordinators)
    guest = Guest(cluster, "r1")
    try:
        environment = restored(cluster, kept, guest)
        wait_until(lambda: healthy(cluster, guest.member), what="all nodes are back", timeout_s=SOON_S)
        for node in cluster.nodes:
            wait_until(partial(answers, cluster, node), what=f"{node.id} serves", timeout_s=SOON_S)
            assert cluster.get(f"/files/{file_uuid}", node=node).body == content
        assert certificates(guest) == [(node.id, revoked) for node in cluster.nodes for revoked in (0, 1)]
        told = run_filestore(["status"], environment)
        assert told.returncode == 0, told.stdout + told.stderr
        assert steps.offset_once_told(steps.holder) == 8 * MIB
        assert steps.patch_until_taken(8 * MIB, 20 * MIB, steps.holder).status == 204
        for node in cluster.nodes:
            assert steps.stored(node) == steps.content
        asyncio.run(renew_certificate(cluster.data(cluster.nodes[0])))  # proved with what was recorded again
        assert certificates(guest)[:3] == [(cluster.nodes[0].id, revoked) for revoked in (0, 0, 1)]
    finally:
        stop_children([cluster._development.children.pop(guest.id)])

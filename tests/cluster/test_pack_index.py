"""The index of a node's packs is damaged at work: the node ends by itself, and the next start mends it."""

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deploy.dev.cluster import Member
from deploy.dev.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.packed import packed_on
from tests.cluster.upload_steps import Steps

END_S = 90.0  # a worker that is not the first finds out by the sweep of each minute
SIZE_BYTES = 4096
TOLD = "The index of the packs is damaged. It is made anew from the packs when the node starts again."


def spoil(index: Path) -> None:
    """The table of blobs alone: what is read when the packs are opened is sound."""
    with closing(sqlite3.connect(index)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(page,)] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'blobs'").fetchall()
        [(page_bytes,)] = db.execute("PRAGMA page_size").fetchall()
    with index.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(page_bytes), (page - 1) * page_bytes)


def stored(cluster: Cluster, count: int = 3) -> dict[str, bytes]:
    """Small files, by their ids; each is packed on every node."""
    contents = dict[str, bytes]()
    for _ in range(count):
        steps = Steps(cluster, os.urandom(SIZE_BYTES))
        assert steps.patch(0, SIZE_BYTES).status == 204
        contents[steps.file_uuid] = steps.content
    return contents


def check(cluster: Cluster, contents: dict[str, bytes], node: Member) -> None:
    for file_uuid, content in contents.items():
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert (answer.status, answer.body) == (200, content)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_node_ends_to_have_its_index_made_anew(tmp_path: Path, workers: int) -> None:
    with Cluster(tmp_path / "cluster", node_options=("--workers", str(workers))) as cluster:
        contents, node = stored(cluster), cluster.nodes[1]
        names = {hashlib.sha256(content).hexdigest() for content in contents.values()}
        cluster.terminate(node)
        spoil(cluster.data(node) / "packs" / "index.sqlite")
        cluster.restart(node)
        wait_until(lambda: not cluster.runs(node), what="it ends by itself", timeout_s=END_S)
        assert TOLD in cluster.last_words(node)
        assert "Traceback" not in cluster.logs()[node.id]
        check(cluster, contents, cluster.nodes[0])
        cluster.restart(node)
        cluster.wait_healthy()
        assert packed_on(cluster, node) >= names
        check(cluster, contents, node)
        contents |= stored(cluster, 1)
        check(cluster, contents, node)
        assert not (cluster.data(node) / "packs" / "index.sqlite-damaged").exists()

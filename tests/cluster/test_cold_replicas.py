"""Real nodes keep replicas as chunks: what a user sees, and what is left after kills and damage."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.base.config import NodeFiles
from tests.cluster.command_output import objects, output
from tests.cluster.harness import Cluster
from tests.cluster.test_jobs import run_job
from tests.cluster.test_metrics import families, value
from tests.unit.cold_store import version

SOON_S = 60.0
SIZE_BYTES = 3_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes to a node: the first one writes chunks, both read them."""
    with Cluster(tmp_path_factory.mktemp("cold"), node_options=("--workers", "2")) as started:
        wait_until(
            lambda: started.get("/cluster/status").json["rules"] >= 6, what="the rules", timeout_s=SOON_S
        )
        output(started, "bucket", "create", "nights")
        (made,) = objects(started, "bucket", "set", "nights", "--storage", "cold")
        assert made["storage"] == "cold"
        yield started


def bucket_id(cluster: Cluster) -> str:
    (found,) = [each for each in objects(cluster, "bucket", "ls") if each["name"] == "nights"]
    return str(found["bucket_id"])


def manifest(cluster: Cluster, node: Member, content: bytes) -> Path:
    name = hashlib.sha256(content).hexdigest()
    return cluster.data(node) / "cold" / name[:2] / name


def blob_file(cluster: Cluster, node: Member, content: bytes) -> Path:
    name = hashlib.sha256(content).hexdigest()
    return cluster.data(node) / "blobs" / name[:2] / name[2:4] / name


def store_everywhere(cluster: Cluster, content: bytes) -> str:
    file_uuid = cluster.store(content, bucket_id=bucket_id(cluster))
    cluster.wait_everywhere(hashlib.sha256(content).hexdigest())
    return file_uuid


def read_everywhere(cluster: Cluster, file_uuid: str, content: bytes) -> None:
    for node in cluster.nodes:
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert (answer.status, answer.body) == (200, content)
        assert answer.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"Range": "bytes=1000000-1999999", "If-Range": answer.headers["etag"]}
        part = cluster.get(f"/files/{file_uuid}", node=node, headers=headers)
        assert (part.status, part.body) == (206, content[1_000_000:2_000_000])


@pytest.mark.long
def test_versions_turn_cold_are_read_and_become_hot_again(cluster: Cluster) -> None:
    contents = [version(number, of=1, size_bytes=SIZE_BYTES) for number in range(4)]
    files = [store_everywhere(cluster, content) for content in contents]
    run = run_job(cluster, "freeze")
    assert run["result"]["done"] == 12
    assert run["result"]["stored_bytes"] < 0.8 * run["result"]["bytes"]
    for node in cluster.nodes:
        for content in contents:
            assert manifest(cluster, node, content).exists()
            assert not blob_file(cluster, node, content).exists()
        assert json.loads(NodeFiles(cluster.data(node)).config.read_text())["thaw_before_downgrade"] is True
    for file_uuid, content in zip(files, contents, strict=True):
        read_everywhere(cluster, file_uuid, content)

    def line() -> str:
        return next((each for each in output(cluster, "status").splitlines() if "cold" in each), "")

    wait_until(lambda: "stored in" in line(), what="the sizes", timeout_s=SOON_S)
    assert "cold replicas" in output(cluster, "du")
    node = cluster.nodes[0]
    wait_until(
        lambda: value(families(cluster, node), "filestore_cold_replicas") == 4,
        what="the metric",
        timeout_s=SOON_S,
    )
    assert run_job(cluster, "compare")["result"]["missing"] == 0
    assert run_job(cluster, "scrub")["result"]["damaged"] == 0
    output(cluster, "bucket", "set", "nights", "--storage", "auto")
    assert run_job(cluster, "thaw")["result"]["done"] == 12
    for node in cluster.nodes:
        assert not list((cluster.data(node) / "cold").rglob("*/*"))
        assert "thaw_before_downgrade" not in NodeFiles(cluster.data(node)).config.read_text()
    for file_uuid, content in zip(files, contents, strict=True):
        read_everywhere(cluster, file_uuid, content)
    output(cluster, "bucket", "set", "nights", "--storage", "cold")


@pytest.mark.long
def test_damaged_chunk_is_not_served_and_comes_from_another_node(cluster: Cluster) -> None:
    content = version(0, of=2, size_bytes=SIZE_BYTES)
    file_uuid = store_everywhere(cluster, content)
    run_job(cluster, "freeze")
    node = cluster.nodes[1]
    for pack in (cluster.data(node) / "chunks").glob("*.pack"):
        with pack.open("r+b") as file:
            for at in range(200_000, pack.stat().st_size, 400_000):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
    run_job(cluster, "scrub")
    wait_until(
        lambda: value(families(cluster, node), "filestore_chunks_repaired_total") > 0,
        what="the repair",
        timeout_s=SOON_S,
    )
    wait_until(
        lambda: not any((cluster.data(node) / "chunks-damaged").iterdir()), what="all", timeout_s=SOON_S
    )
    read_everywhere(cluster, file_uuid, content)
    assert manifest(cluster, node, content).exists()


@pytest.mark.long
def test_killed_node_has_its_cold_replicas(cluster: Cluster) -> None:
    content = version(0, of=3, size_bytes=SIZE_BYTES)
    file_uuid = store_everywhere(cluster, content)
    run_job(cluster, "freeze")
    with cluster.down(*cluster.nodes):
        pass
    read_everywhere(cluster, file_uuid, content)

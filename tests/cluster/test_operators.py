"""What an operator does once a year, by one command each: another address, another disk, another token."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import FILESTORE, Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
SOON_S = 90.0


def done(cluster: Cluster, *arguments: str) -> str:
    answer = cluster.filestore(*arguments)
    assert answer.returncode == 0, answer.stderr.decode()
    return answer.stdout.decode()


@contextmanager
def node_at(data: Path) -> Iterator[None]:
    """A node that runs as its operator is told to let it run."""
    with (data / "output").open("wb") as output:
        process = subprocess.Popen([FILESTORE, "node", "run", "--data", str(data)], stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def states(cluster: Cluster) -> dict[str, str]:
    return {node["id"]: node["state"] for node in cluster.get("/cluster/status").json["nodes"]}


def is_ready(cluster: Cluster, node: Member) -> bool:
    """Asked itself: the status calls a node healthy for seconds after its end."""
    try:
        return cluster.get("/readyz", node=node, token=None).status == 200
    except OSError:
        return False


def test_admin_token_is_rotated_and_the_old_one_is_dead_everywhere(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        old, data, output = cluster.admin_token, cluster.data(cluster.coordinators[0]), tmp_path / "new.token"
        told = done(cluster, "token", "admin", "--data", str(data), "--revoke-old", "-o", str(output))
        assert told == f"{output}\n"
        new = cluster.remember(output.read_text().strip())
        cluster.remember(old)
        for node in cluster.nodes:
            assert cluster.get("/auth/whoami", node=node, token=old).status == 401
            assert cluster.get("/auth/whoami", node=node, token=new).status == 200


def test_stopped_node_is_taken_to_another_address_by_one_command(tmp_path: Path) -> None:
    """It is the same node, and serves what it had to whoever asks at the new address, or at another node."""
    with Cluster(tmp_path / "cluster") as cluster:
        content, node = os.urandom(300_000), cluster.nodes[2]
        file_uuid = cluster.store_everywhere(content)
        data = cluster.data(node)
        where = ("--data", str(data), "--address", "127.0.0.2")
        assert cluster.filestore("node", "set-address", *where).returncode == 5  # it runs
        cluster.terminate(node)
        refused = cluster.filestore("node", "set-address", "--data", str(data), "--address", "*.lab")
        assert refused.stderr.decode().startswith("filestore: invalid_request: --address: a wildcard")
        for _ in range(2):  # after an interruption
            assert f"{node.id} is at 127.0.0.2" in done(cluster, "node", "set-address", *where)
        with node_at(data):
            wait_until(lambda: states(cluster)[node.id] == "healthy", what="it is heard", timeout_s=SOON_S)
            url = f"https://127.0.0.2:{node.api_port}"
            found = cluster.get("/cluster/nodes").json["nodes"]
            assert [each["url"] for each in found if each["id"] == node.id] == [url]
            target = tmp_path / "copy"
            done(cluster, "get", file_uuid, "--url", url, "-o", str(target))
            assert target.read_bytes() == content


def test_node_moves_to_another_directory_and_then_to_another_address(tmp_path: Path) -> None:
    """It serves from there what it had; its old name can be removed, and nothing is given up by that."""
    with Cluster(tmp_path / "cluster", coordinator_options=("--down-after", "3")) as cluster:
        content, node = os.urandom(300_000), cluster.nodes[2]
        file_uuid = cluster.store_everywhere(content)
        cluster.terminate(node)
        moved, joined = tmp_path / "moved", tmp_path / "joined"
        done(cluster, "node", "move", "--data", str(cluster.data(node)), "--to", str(moved))
        with node_at(moved):
            wait_until(lambda: is_ready(cluster, node), what="it is back", timeout_s=SOON_S)
            wait_until(lambda: states(cluster)[node.id] == "healthy", what="it is heard", timeout_s=SOON_S)
            assert cluster.get(f"/files/{file_uuid}", node=node).body == content
        token = tmp_path / "join"
        done(cluster, "token", "join", "--node-id", "n9", "-o", str(token))
        cluster.remember(token.read_text().strip())
        where = ("--data", str(moved), "--to", str(joined), "--address", "127.0.0.2")
        url = cluster.coordinators[0].url
        done(
            cluster,
            *("node", "rejoin", "--id", "n9", *where, "--coordinator", url, "--token-file", str(token)),
        )
        with node_at(joined):
            wait_until(
                lambda: (states(cluster)[node.id], states(cluster).get("n9")) == ("down", "healthy"),
                what="its new name",
                timeout_s=SOON_S,
            )
            wait_until(
                lambda: cluster.filestore("node", "remove", node.id, "--force").returncode == 0,
                what="the end of its old name",
                timeout_s=SOON_S,
            )
            others = cluster.nodes[:2]
            wait_until(
                lambda: cluster.filestore("status").returncode == 0, what="three replicas", timeout_s=SOON_S
            )
            assert all(cluster.get(f"/files/{file_uuid}", node=each).body == content for each in others)
            assert "https://127.0.0.2:" in done(cluster, "status")

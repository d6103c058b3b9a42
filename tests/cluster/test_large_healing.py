"""A large file whose node dies for good: its replicas are made anew, and every node serves it."""

import hashlib
import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster, random_file

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # run by `make long`

FILE_BYTES = 1 << 30
DOWN_AFTER_S = 3
HEALED_S = 240.0  # with DOWN_AFTER_S of silence: 5 MB/s, on a machine that does other things as well
COUNTING = (
    "SELECT r.node_id FROM blob_replicas r JOIN nodes n ON n.node_id = r.node_id"
    " WHERE r.sha256 = ? AND r.doomed_at IS NULL AND n.state = 'healthy' ORDER BY r.node_id"
)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    """Four nodes, three replicas; a node that is silent for three seconds is down."""
    options = ("--down-after", str(DOWN_AFTER_S))
    with Cluster(tmp_path / "cluster", node_count=4, coordinator_options=options) as started:
        yield started


def counting(cluster: Cluster, sha256: str) -> list[str]:
    """The nodes whose replicas count, by word of the log."""
    return [node_id for (node_id,) in cluster.logged(COUNTING, sha256)]


def downloaded_sha256(cluster: Cluster, file_uuid: str, node: Member) -> str:
    """Of what a node serves, piece by piece."""
    connection = http.client.HTTPSConnection("127.0.0.1", node.api_port, timeout=60, context=cluster.context)
    with closing(connection):
        headers = {"Authorization": f"Bearer {cluster.admin_token}"}
        connection.request("GET", f"/api/v1/files/{file_uuid}", headers=headers)
        response, digest = connection.getresponse(), hashlib.sha256()
        assert response.status == 200
        while piece := response.read(1 << 20):
            digest.update(piece)
        return digest.hexdigest()


def test_file_of_a_gibibyte_has_three_replicas_again_after_a_node_died_for_good(
    four: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    sha256 = random_file(path, FILE_BYTES)
    put = four.filestore("put", str(path))
    path.unlink()
    assert put.returncode == 0, put.stderr
    file_uuid = put.stdout.decode().strip()
    wait_until(lambda: len(counting(four, sha256)) == 3, what="three replicas", timeout_s=HEALED_S)
    before = counting(four, sha256)
    dead = next(node for node in four.nodes if node.id == before[0])
    living = [node for node in four.nodes if node != dead]

    four.kill(dead)
    wait_until(
        lambda: counting(four, sha256) == [node.id for node in living],
        what="replicas on the three nodes that are left",
        timeout_s=DOWN_AFTER_S + HEALED_S,
    )

    for node in living:
        assert downloaded_sha256(four, file_uuid, node) == sha256, node.id
        blob = four.replica(node, sha256)
        assert blob.stat().st_size == FILE_BYTES, node.id

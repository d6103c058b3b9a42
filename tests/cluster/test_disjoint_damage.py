"""Replicas that are damaged at different places: what is sound in one of them can be read, and is put
together.
"""

import hashlib
import http.client
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.storage.segments import SEGMENT_BYTES
from tests.blobs_on_disk import change_byte
from tests.cluster.harness import Cluster
from tests.cluster.segment_damage import DamagedContent, lost_ranges, zero

FILES = 5
SEGMENTS_MAX = 4
HEALING_S = 90.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; a file is everywhere."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@dataclass
class Stored:
    """A file, and the model of what is left of it."""

    file_uuid: str
    sha256: str
    model: DamagedContent


def store(cluster: Cluster, content: bytes) -> Stored:
    file_uuid = cluster.store_everywhere(content)
    sha256 = hashlib.sha256(content).hexdigest()
    replicas = {node.id: cluster.replica(node, sha256) for node in cluster.nodes}
    return Stored(file_uuid, sha256, DamagedContent(content, replicas))


def damaged(cluster: Cluster) -> dict[str, list[tuple[int, int]]]:
    """Content that no node holds whole, by its sha256: the bytes that are lost, as the API says."""
    answer = cluster.get("/cluster/damaged")
    assert answer.status == 200, answer.body
    return {each["sha256"]: lost_ranges(each["lost_ranges"]) for each in answer.json["contents"]}


def is_everywhere(cluster: Cluster, stored: Stored) -> bool:
    return all(cluster.replica(node, stored.sha256).exists() for node in cluster.nodes)


@pytest.mark.long
def test_one_bad_segment_in_each_replica_loses_nothing(whole: Cluster) -> None:
    cluster, content = whole, os.urandom(5 * SEGMENT_BYTES + 17)
    stored = store(cluster, content)
    for number, path in enumerate(stored.model.replicas.values()):
        change_byte(path, number * SEGMENT_BYTES + 100)
    for node in cluster.nodes:
        answer = cluster.get(f"/files/{stored.file_uuid}", node=node)
        assert (answer.status, answer.body == content) == (200, True), node.id
    wait_until(lambda: is_everywhere(cluster, stored), what="whole replicas", timeout_s=HEALING_S)
    assert damaged(cluster) == {}
    for node in cluster.nodes:
        path = cluster.replica(node, stored.sha256)
        assert path.read_bytes() == content, node.id


def is_whole(cluster: Cluster, stored: Stored, node: Member) -> bool:
    """Whether all of it can be downloaded; what comes of the rest is right in any case."""
    content = stored.model.content
    try:
        answer = cluster.get(f"/files/{stored.file_uuid}", node=node)
    except http.client.IncompleteRead as broken_off:
        came = broken_off.partial
    else:
        came = answer.body if answer.status == 200 else b""
    assert content.startswith(came)
    return came == content


def check_ranges(cluster: Cluster, stored: Stored) -> None:
    """Exactly what is left can be read, through every node."""
    for (start, stop), can_be_had in stored.model.ranges():
        for node in cluster.nodes:
            headers = {"Range": f"bytes={start}-{stop - 1}"}
            answer = cluster.get(f"/files/{stored.file_uuid}", node=node, headers=headers)
            if can_be_had:
                assert answer.status == 206, (answer.body, start)
                assert answer.body == stored.model.content[start:stop], start
            else:
                assert (answer.status, answer.json["code"]) == (503, "unavailable"), start


def check_told(cluster: Cluster, files: list[Stored]) -> None:
    """Status, metrics, the repair job and the command say which bytes are gone, once all copies were read."""
    expected = {each.sha256: each.model.lost() for each in files if each.model.lost()}
    wait_until(lambda: damaged(cluster) == expected, what="the bytes that are lost", timeout_s=HEALING_S)
    replicas = cluster.get("/cluster/status").json["replicas"]
    lost_bytes = sum(stop - start for spans in expected.values() for start, stop in spans)
    assert (replicas["incomplete"], replicas["lost_bytes"]) == (len(expected), lost_bytes)
    assert (replicas["lost"], replicas["damaged"]) == (0, 0)
    leader = cluster.leader()
    metrics = cluster.get(f"https://127.0.0.1:{leader.api_port}/metrics").body.decode()
    [told_bytes] = re.findall(r"^filestore_lost_bytes (\S+)$", metrics, re.MULTILINE)
    assert float(told_bytes) == lost_bytes
    ran = cluster.filestore("job", "run", "repair", "--wait")
    told = json.loads(ran.stdout.decode().split("completed ", 1)[1])
    assert (told["incomplete"], told["lost_bytes"]) == (len(expected), lost_bytes)
    listed = cluster.filestore("damaged")
    assert listed.returncode == (10 if expected else 0)
    for each in files:
        assert (each.file_uuid in listed.stdout.decode()) == bool(each.model.lost())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 7))
def test_exactly_what_is_sound_somewhere_is_served(whole: Cluster, seed: int) -> None:
    cluster, dice = whole, random.Random(seed)
    files = []
    for _ in range(FILES):
        size_bytes = dice.randrange(1, SEGMENTS_MAX * SEGMENT_BYTES)
        files.append(store(cluster, dice.randbytes(size_bytes)))
    for stored in files:
        for node in stored.model.replicas:
            for _ in range(dice.randrange(1, stored.model.segments + 2)):
                stored.model.damage(dice, node, dice.randrange(stored.model.segments))
    for stored in files:
        assert is_whole(cluster, stored, dice.choice(cluster.nodes)) == (not stored.model.lost())
    check_told(cluster, files)
    for stored in files:
        check_ranges(cluster, stored)
    for stored in files:
        if not stored.model.lost():
            cluster.wait_everywhere(stored.sha256)
    for stored in files:
        assert cluster.request("DELETE", f"/files/{stored.file_uuid}").status == 200


@pytest.mark.long
def test_node_with_bytes_that_no_other_has_leaves_only_when_that_is_said(whole: Cluster) -> None:
    cluster, content = whole, os.urandom(3 * SEGMENT_BYTES)
    stored = store(cluster, content)
    keeper, *others = cluster.nodes
    paths = stored.model.replicas
    change_byte(paths[keeper.id], 0)  # this segment is wrong everywhere
    for node in others:
        zero(paths[node.id], 0, 2 * SEGMENT_BYTES)
    for node in cluster.nodes:
        cluster.get(f"/files/{stored.file_uuid}", node=node)
    expected = {stored.sha256: [(0, SEGMENT_BYTES)]}
    wait_until(lambda: damaged(cluster) == expected, what="what is lost", timeout_s=HEALING_S)
    refused = cluster.filestore("node", "drain", keeper.id)
    assert refused.returncode == 5
    assert "lab.gns3p" in refused.stderr.decode()
    assert "--force" in refused.stderr.decode()
    drained = cluster.filestore("node", "drain", keeper.id, "--force")
    assert drained.returncode == 0, drained.stderr

    def is_empty() -> bool:
        removed = cluster.request("DELETE", f"/cluster/nodes/{keeper.id}")
        assert removed.status == 409
        return "holds" not in removed.json["details"]

    wait_until(is_empty, what="nothing but damaged copies", timeout_s=HEALING_S)
    removed = cluster.request("DELETE", f"/cluster/nodes/{keeper.id}")
    assert "--give-up" in removed.json["details"]
    assert cluster.filestore("node", "undrain", keeper.id).returncode == 0
    headers = {"Range": f"bytes={SEGMENT_BYTES}-{2 * SEGMENT_BYTES - 1}"}
    answer = cluster.get(f"/files/{stored.file_uuid}", node=others[0], headers=headers)
    assert (answer.status, answer.body) == (206, content[SEGMENT_BYTES : 2 * SEGMENT_BYTES])
    # Without that node its bytes are gone, and the rest is still there.
    cluster.kill(keeper)
    shutil.rmtree(cluster.data(keeper) / "quarantine")
    cluster.restart(keeper)
    cluster.wait_healthy()
    gone = {stored.sha256: [(0, 2 * SEGMENT_BYTES)]}
    wait_until(lambda: damaged(cluster) == gone, what="the loss of a copy", timeout_s=HEALING_S)
    headers = {"Range": f"bytes={2 * SEGMENT_BYTES}-"}
    answer = cluster.get(f"/files/{stored.file_uuid}", headers=headers)
    assert (answer.status, answer.body) == (206, content[2 * SEGMENT_BYTES :])
    assert cluster.request("DELETE", f"/files/{stored.file_uuid}").status == 200

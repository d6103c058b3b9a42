"""Files that are put together from parts, while nodes die and disks give other bytes back."""

import hashlib
import os
import threading
from contextlib import suppress

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.content.concatenation import READ_BYTES
from node.uploads.chain import BEHIND_BYTES_MAX
from tests.blobs_on_disk import change_byte
from tests.cluster.harness import Answer, Cluster
from tests.cluster.part_steps import TUS, Parts, check_content
from tests.cluster.upload_steps import stopped

pytestmark = pytest.mark.long
MIB = 1 << 20
LARGE = 48 * MIB


def sent(cluster: Cluster, size_bytes: int, count: int = 3) -> Parts:
    """All bytes of all parts, which are held by two nodes at least."""
    while True:
        parts = Parts(cluster, [os.urandom(size_bytes) for _ in range(count)])
        if len({parts.holder(number).id for number in range(count)}) > 1:
            break
        for url in parts.urls:
            assert cluster.request("DELETE", url, headers=TUS).status == 204
    parts.send_all()
    return parts


def lying_bytes(cluster: Cluster, node: Member, file_uuid: str) -> int:
    """The size of an upload's file on a node's disk."""
    try:
        return (cluster.data(node) / "uploads" / file_uuid / "data").stat().st_size
    except FileNotFoundError:
        return 0


def test_parts_come_from_the_nodes_that_have_them(four: Cluster) -> None:
    parts = sent(four, 5 * MIB)
    answer = parts.finish()
    assert answer.status == 201, answer.body
    check_content(four, answer.json["file_uuid"], parts.content)
    wait_until(
        lambda: not any((four.data(node) / "uploads" / parts.uuids[0]).exists() for node in four.nodes),
        what="the bytes of the parts being swept",
        timeout_s=90,
    )


def test_part_whose_holder_was_killed_comes_from_another_node(four: Cluster) -> None:
    parts = sent(four, 2 * MIB)
    with four.down(parts.holder(0)):
        others = [node for node in four.nodes if node != parts.holder(0)]
        answer = parts.finish_once_taken(node=others[0])
        assert answer.status == 201, answer.body
        check_content(four, answer.json["file_uuid"], parts.content, others)


def test_part_that_a_disk_gives_back_as_other_bytes_comes_from_another_node(four: Cluster) -> None:
    parts = sent(four, 5 * MIB)
    holding = [node for node in four.nodes if lying_bytes(four, node, parts.uuids[1])]
    for node in holding[:2]:
        change_byte(four.data(node) / "uploads" / parts.uuids[1] / "data", MIB)
    answer = parts.finish_once_taken()
    assert answer.status == 201, answer.body
    record = four.get(f"/backups/{answer.json['file_uuid']}").json
    assert record["blob_sha256"] == hashlib.sha256(parts.content).hexdigest()
    check_content(four, answer.json["file_uuid"], parts.content)


@pytest.mark.timeout(400)
def test_bytes_of_a_part_that_nobody_compared_are_not_built_on(mended: Cluster) -> None:
    """The request that brought them ended at the last one: it waited for nodes that hang."""
    node, *others = mended.nodes
    parts = Parts(mended, [os.urandom(BEHIND_BYTES_MAX + 2 * READ_BYTES), os.urandom(5 * MIB)])
    parts.send_all()
    bucket_id = mended.post("/buckets", {"name": "uncompared"}).json["bucket_id"]
    wait_until(
        lambda: lying_bytes(mended, node, parts.uuids[0]) == len(parts.pieces[0]),
        what="the part on the node",
        timeout_s=60,
    )
    change_byte(mended.data(node) / "uploads" / parts.uuids[0] / "data", MIB)
    file: dict[str, str] = {}

    def is_brought() -> bool:
        """Once this node has taken the file over, if it is placed on another first."""
        assert parts.finish(node=node, bucket_id=bucket_id).status == 503
        [found] = mended.get(f"/buckets/{bucket_id}/files", node=node).json["files"]
        file.update(found)
        return lying_bytes(mended, node, file["file_uuid"]) == len(parts.pieces[0])

    with stopped(mended, others[0]), stopped(mended, others[1]):
        wait_until(is_brought, what="the part, and nothing behind it", timeout_s=180)
    mended.wait_healthy()
    answer = parts.finish_once_taken(node=node, bucket_id=bucket_id)
    assert (answer.status, answer.json["file_uuid"]) == (201, file["file_uuid"])
    record = mended.get(f"/backups/{file['file_uuid']}").json
    assert record["blob_sha256"] == hashlib.sha256(parts.content).hexdigest()
    check_content(mended, file["file_uuid"], parts.content)


def test_file_whose_holder_dies_in_the_middle_goes_on_elsewhere(four: Cluster) -> None:
    parts = sent(four, LARGE)
    bucket_id = four.post("/buckets", {"name": "middle"}).json["bucket_id"]
    answers: list[Answer] = []

    def ask(node: Member) -> None:
        with suppress(ConnectionError):  # the node that is asked may be the holder, which dies
            answers.append(parts.finish(node=node, bucket_id=bucket_id))

    def holder_of(file_uuid: str) -> Member | None:
        bytes_of = {lying_bytes(four, node, file_uuid): node for node in four.nodes}
        return bytes_of[max(bytes_of)] if max(bytes_of) >= 8 * MIB else None

    def begun() -> str:
        files = four.get(f"/buckets/{bucket_id}/files").json["files"]
        return str(files[0]["file_uuid"]) if files else ""

    asking = threading.Thread(target=ask, args=(four.nodes[0],))
    asking.start()
    wait_until(lambda: bool(begun()), what="a final upload", timeout_s=30)
    file_uuid = begun()
    wait_until(lambda: holder_of(file_uuid) is not None, what="bytes of it", timeout_s=30)
    holder = holder_of(file_uuid)
    assert holder is not None
    with four.down(holder):
        asking.join(60)
        others = [node for node in four.nodes if node != holder]
        answer = parts.finish_once_taken(node=others[0], bucket_id=bucket_id)
        assert answer.status == 201, answer.body
        assert answer.json["file_uuid"] == file_uuid
        check_content(four, file_uuid, parts.content, others)
    assert len(four.get(f"/buckets/{bucket_id}/files").json["files"]) == 1
    check_content(four, file_uuid, parts.content)


def test_parts_outlive_a_restart_of_everything(four: Cluster) -> None:
    parts = sent(four, 5 * MIB)
    assert parts.head(0).headers["upload-offset"] == str(5 * MIB)
    four.kill(*four.members)
    four.restart(*four.members)
    four.wait_healthy()
    answer = parts.finish_once_taken()
    assert answer.status == 201, answer.body
    check_content(four, answer.json["file_uuid"], parts.content)
    four.kill(*four.members)
    four.restart(*four.members)
    four.wait_healthy()
    assert parts.finish_once_taken().json["file_uuid"] == answer.json["file_uuid"]


def test_client_that_went_away_finds_the_file_that_it_asked_for(four: Cluster) -> None:
    parts = sent(four, LARGE)
    node = four.nodes[1]
    with pytest.raises(TimeoutError):
        parts.finish(node=node, timeout_s=0.05)
    answer = parts.finish_once_taken(node=four.nodes[2])
    assert answer.status == 201, answer.body
    check_content(four, answer.json["file_uuid"], parts.content)
    backups = four.get("/backups").json["backups"]
    assert [each["file_uuid"] for each in backups].count(answer.json["file_uuid"]) == 1


def test_part_that_lost_all_copies_is_sent_again_and_makes_the_file(four: Cluster) -> None:
    parts = sent(four, 2 * MIB)
    bucket_id = four.post("/buckets", {"name": "lost"}).json["bucket_id"]
    four.kill(*four.nodes)
    for node in four.nodes:
        data = four.data(node) / "uploads" / parts.uuids[0] / "data"
        if data.exists():
            os.truncate(data, MIB)
    four.restart(*four.nodes)
    four.wait_healthy()
    assert parts.finish(bucket_id=bucket_id).status == 503
    told = parts.head(0)
    while told.status != 200:
        told = parts.head(0)
    start = int(told.headers["upload-offset"])
    assert start < 2 * MIB
    assert parts.send(0, start=start) == 204
    answer = parts.finish_once_taken(bucket_id=bucket_id)
    assert answer.status == 201, answer.body
    check_content(four, answer.json["file_uuid"], parts.content)

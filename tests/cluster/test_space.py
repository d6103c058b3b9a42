"""Quotas bound the disks, and nothing stays on one that no record refers to."""

import hashlib
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.blobs_on_disk import age_all_on
from tests.cluster.harness import Answer, Cluster
from tests.cluster.upload_steps import Steps

MIB = 1 << 20
QUOTA = 10 * MIB
AGED_S = 2 * 86_400.0
SWEPT_S = 150.0  # a minute for the sweep, half of one for orphans, and as much again on a slow machine


def lying(cluster: Cluster, *areas: str) -> dict[str, int]:
    """The bytes of every file in these areas of every node, by its path."""
    found = {}
    for node in cluster.nodes:
        for area in areas:
            for path in sorted((cluster.data(node) / area).rglob("*")):
                if path.is_file():
                    found[f"{node.id}/{path.relative_to(cluster.data(node))}"] = path.stat().st_size
    return found


def let_time_pass(cluster: Cluster) -> None:
    """As if what lies there had come two days ago. What is that old already stays as it is: a change of its
    time is an arrival.
    """
    at_s = time.time() - AGED_S
    for node in cluster.nodes:
        age_all_on(cluster.data(node), at_s, newer_than_s=at_s + AGED_S / 2)
        for path in (cluster.data(node) / "unclaimed").rglob("*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime > at_s + AGED_S / 2:
                    os.utime(path, (at_s, at_s))


def left(cluster: Cluster) -> dict[str, int]:
    """Bytes of any content, in service or not."""
    return lying(cluster, "blobs", "uploads", "partials", "quarantine")


def blobs_of(cluster: Cluster, content: bytes) -> list[Member]:
    """The nodes that have this content in place."""
    sha256 = hashlib.sha256(content).hexdigest()
    return [node for node in cluster.nodes if cluster.replica(node, sha256).exists()]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, three replicas. Who counts the bytes of content names it, or comes first."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def bucket(three: Cluster) -> str:
    """With a quota."""
    return make_bucket(three, QUOTA)


def make_bucket(cluster: Cluster, quota_bytes: int) -> str:
    name = f"b{time.monotonic_ns()}"
    answer = cluster.post("/buckets", {"name": name, "quota_bytes": quota_bytes})
    assert answer.status == 201, answer.body
    return str(answer.json["bucket_id"])


def creation(cluster: Cluster, bucket_id: str, size_bytes: int | None) -> Answer:
    fields: dict[str, Any] = {"filename": "x", "project_id": "p", "bucket_id": bucket_id}
    if size_bytes is not None:
        fields["size_bytes"] = size_bytes
    return cluster.post("/project-files", fields)


def change_quota(cluster: Cluster, bucket_id: str, quota_bytes: int) -> None:
    answer = cluster.request("PATCH", f"/buckets/{bucket_id}", body={"quota_bytes": quota_bytes})
    assert answer.status == 200, answer.body


def put_chunked(cluster: Cluster, node: Member, path: str, pieces: list[bytes]) -> int:
    """The status of a PUT that does not tell its length."""
    connection = http.client.HTTPSConnection("127.0.0.1", node.api_port, timeout=60, context=cluster.context)
    headers = {"Authorization": f"Bearer {cluster.admin_token}", "Transfer-Encoding": "chunked"}
    with suppress(OSError):  # the answer came first
        connection.request("PUT", path, body=iter(pieces), headers=headers, encode_chunked=True)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_uploads_at_once_reserve_of_the_quota_before_their_bytes_move(three: Cluster, bucket: str) -> None:
    answers: list[int] = []

    def create() -> None:
        answers.append(creation(three, bucket, 8 * MIB).status)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201, *[413] * 5]
    assert three.get(f"/buckets/{bucket}").json["reserved_bytes"] == 8 * MIB


def test_refused_content_of_unknown_size_leaves_nothing(three: Cluster, bucket: str) -> None:
    content = os.urandom(2 * QUOTA)
    for number in range(3):  # its length is told: refused before a byte moves
        steps = Steps(three, content, bucket_id=bucket, size_bytes=None)
        put = three.request("PUT", steps.path, node=three.nodes[number], content=content)
        assert (put.status, sum(lying(three, "uploads", "blobs").values()) < MIB) == (413, True)
    pieces = [content[start : start + MIB] for start in range(0, len(content), MIB)]
    steps = Steps(three, content, bucket_id=bucket, size_bytes=None)
    assert put_chunked(three, steps.holder, steps.path, pieces) == 413
    assert blobs_of(three, content) == []
    wait_until(lambda: steps.lying_bytes(steps.holder) == 0, what="a holder without bytes", timeout_s=20)
    for node in steps.others:  # never more than was reserved
        assert steps.lying_bytes(node) <= QUOTA


def test_uploads_of_unknown_size_at_once_stay_within_the_quota(three: Cluster, bucket: str) -> None:
    before = lying(three, "uploads", "blobs")
    contents = [os.urandom(8 * MIB) for _ in range(3)]
    uploads = [Steps(three, content, bucket_id=bucket, size_bytes=None) for content in contents]
    statuses: list[int] = []

    def send(steps: Steps) -> None:
        pieces = [steps.content[start : start + MIB] for start in range(0, len(steps.content), MIB)]
        statuses.append(put_chunked(three, steps.holder, steps.path, pieces))

    threads = [threading.Thread(target=send, args=(steps,)) for steps in uploads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses.count(200) <= 1
    assert set(statuses) <= {200, 413}
    added = lying(three, "uploads", "blobs").items() - before.items()
    assert sum(size for path, size in added if not path.endswith(".sums")) <= 3 * QUOTA + MIB


def test_completion_that_the_quota_refuses_stays_an_upload(three: Cluster, bucket: str) -> None:
    steps = Steps(three, os.urandom(8 * MIB), bucket_id=bucket)
    change_quota(three, bucket, MIB)
    assert steps.patch(0, 8 * MIB).status == 413
    assert three.get(f"/buckets/{bucket}").json["reserved_bytes"] == 8 * MIB
    change_quota(three, bucket, QUOTA)
    assert steps.ask_for_completion().status == 200  # what was acknowledged was kept
    assert steps.stored(steps.others[0]) == steps.content
    assert three.get(f"/buckets/{bucket}").json["reserved_bytes"] == 0


@pytest.mark.long
@pytest.mark.timeout(500)
def test_nothing_stays_of_content_that_the_log_refused_or_files_have_released(
    three: Cluster, bucket: str
) -> None:
    loop(three, bucket)
    for file in three.get("/project-files").json["project_files"]:
        assert three.request("DELETE", f"/files/{file['file_uuid']}?now=1").status == 200
    refused = [*refused_by_the_quota(three), *deleted_meanwhile(three), without_permission(three)]
    twin = three.store(refused[0].content)  # another file has the same content, and keeps it
    three.kill(*three.nodes)  # whatever they were about to do about it
    three.restart(*three.nodes)
    three.wait_healthy()
    for steps in refused:
        assert three.request("DELETE", f"/files/{steps.file_uuid}?now=1").status in (200, 404)

    def settled() -> bool:
        let_time_pass(three)
        return not lying(three, "unclaimed", "uploads")

    wait_until(settled, what="every upload swept, every arrival settled", timeout_s=SWEPT_S)
    for node in three.nodes:
        assert three.get(f"/files/{twin}", node=node).body == refused[0].content
    assert three.request("DELETE", f"/files/{twin}?now=1").status == 200
    collect(three)
    wait_until(lambda: not left(three), what="disks without content", timeout_s=SWEPT_S)
    assert creation(three, bucket, 8 * MIB).status == 201


def refused_by_the_quota(cluster: Cluster) -> list[Steps]:
    """Small and large content that was put into place before the log had its last word."""
    bucket_id = make_bucket(cluster, QUOTA)
    uploads = [Steps(cluster, os.urandom(size), bucket_id=bucket_id) for size in (MIB, 6 * MIB)]
    change_quota(cluster, bucket_id, 1)
    for steps in uploads:
        assert steps.patch(0, len(steps.content)).status == 413
        assert blobs_of(cluster, steps.content) != []
    return uploads


def deleted_meanwhile(cluster: Cluster) -> list[Steps]:
    """The same, and the records are deleted while the last bytes are on their way."""
    uploads = [Steps(cluster, os.urandom(size)) for size in (MIB, 12 * MIB)]
    for steps in uploads:
        with steps.begin(len(steps.content)) as sender:
            sender.send(len(steps.content) - 1000)
            steps.wait_lying(steps.holder, len(steps.content) // 2)
            assert cluster.request("DELETE", f"/files/{steps.file_uuid}").status == 200
            sender.send(1000)
            assert sender.status() == 404
    return uploads


def without_permission(cluster: Cluster) -> Steps:
    """Who writes loses the permission, and the log knows of none of the last bytes."""
    bucket_id, token = make_bucket(cluster, QUOTA), cluster.user_token("guest")
    grant = {"permission": "write", "principal_id": "guest", "principal_type": "user"}
    granted = cluster.post(f"/buckets/{bucket_id}/permissions", grant)
    assert granted.status == 201, granted.body
    steps = Steps(cluster, os.urandom(6 * MIB), bucket_id=bucket_id)
    with steps.begin(6 * MIB, Authorization=f"Bearer {token}") as sender:
        sender.send(6 * MIB - 1000)
        steps.wait_lying(steps.holder, 3 * MIB)
        path = f"/buckets/{bucket_id}/permissions/{granted.json['id']}"
        assert cluster.request("DELETE", path).status == 200
        sender.send(1000)
        assert sender.status() == 403
    assert blobs_of(cluster, steps.content) == []
    return steps


def test_loop_of_upload_and_deletion_is_bound_by_the_quota(three: Cluster, bucket: str) -> None:
    before = lying(three, "blobs")
    assert loop(three, bucket) == [201, 201, 429, 429, 429]
    assert int(creation(three, bucket, 8 * MIB).headers["retry-after"]) > 1
    added = lying(three, "blobs").items() - before.items()
    assert sum(size for path, size in added if not path.endswith(".sums")) <= 3 * 2 * QUOTA


def loop(cluster: Cluster, bucket_id: str) -> list[int]:
    """Upload and delete most of a quota again and again; what the creations were answered."""
    statuses = []
    for _ in range(5):
        created = creation(cluster, bucket_id, 8 * MIB)
        statuses.append(created.status)
        if created.status == 201:
            put = cluster.request("PUT", created.json["upload_url"], content=os.urandom(8 * MIB))
            assert put.status == 200, put.body
            assert cluster.request("DELETE", f"/files/{created.json['file_uuid']}?now=1").status == 200
    return statuses


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_a_bucket_has_released_beyond_its_quota_goes_early(own_cluster: Cluster) -> None:
    """Within a quarter of an hour, of which the coordinators here know as half a minute."""
    own_cluster.kill(*own_cluster.coordinators)
    for member in own_cluster.coordinators:
        path = own_cluster.data(member) / "coordinator.json"
        config = json.loads(path.read_text()) | {"gc_grace_s": 30, "schedules": {"gc": 0}}
        path.write_text(json.dumps(config))
    own_cluster.restart(*own_cluster.coordinators)
    own_cluster.wait_healthy()
    bucket_id = make_bucket(own_cluster, QUOTA)
    assert loop(own_cluster, bucket_id)[-1] == 429

    def is_within_the_quota() -> bool:
        let_time_pass(own_cluster)
        return sum(lying(own_cluster, "blobs", "uploads", "quarantine").values()) <= 3 * QUOTA

    wait_until(is_within_the_quota, what="room on the disks", timeout_s=2 * SWEPT_S)
    assert creation(own_cluster, bucket_id, 8 * MIB).status == 201


def collect(cluster: Cluster) -> None:
    """What gc does a day later, when what uploads have become is pinned no more."""
    wait_until(lambda: not lying(cluster, "uploads"), what="every upload swept", timeout_s=SWEPT_S)
    let_time_pass(cluster)
    began = cluster.post("/jobs/gc", {"grace_s": 0, "yes_really": True})
    assert began.status == 202, began.body
    path = f"/jobs/runs/{began.json['run_id']}"
    wait_until(lambda: cluster.get(path).json["status"] == "completed", what="gc", timeout_s=60)

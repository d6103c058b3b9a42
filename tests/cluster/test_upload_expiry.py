"""A day after the last byte an upload ends, and nothing of it stays: neither of a file nor of its parts."""

import os
from collections.abc import Iterator

import pytest

from deploy.processes import wait_until
from tests.cluster.clocks import Clocks
from tests.cluster.harness import Cluster
from tests.cluster.part_steps import TUS, Parts, check_content
from tests.cluster.test_uploads import Upload
from tests.cluster.upload_steps import stopped

HOUR_S = 3600
MIB = 1 << 20

pytestmark = pytest.mark.long


@pytest.fixture
def clocks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path_factory.mktemp("clocks"), monkeypatch)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, clocks: Clocks) -> Iterator[Cluster]:
    del clocks  # it is preloaded
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def reserved_bytes(cluster: Cluster, bucket_id: str) -> int:
    return int(cluster.get(f"/buckets/{bucket_id}").json["reserved_bytes"])


def sent(cluster: Cluster, bucket_id: str) -> Parts:
    parts = Parts(cluster, [os.urandom(5 * MIB), os.urandom(MIB)], bucket_id=bucket_id)
    parts.send_all()
    return parts


def test_uploads_parts_and_the_file_of_parts_end_after_a_day(cluster: Cluster, clocks: Clocks) -> None:
    bucket_id = cluster.post("/buckets", {"name": "daily", "quota_bytes": 64 * MIB}).json["bucket_id"]
    upload = Upload(cluster, size_bytes=8)
    assert upload.patch(0, b"abcd").status == 204
    lonely, joined = sent(cluster, bucket_id), sent(cluster, bucket_id)
    node, *others = cluster.nodes
    with stopped(cluster, others[0]), stopped(cluster, others[1]):
        assert joined.finish(node=node, bucket_id=bucket_id).status == 503  # begun, and not put together
    [file] = cluster.get(f"/buckets/{bucket_id}/files").json["files"]
    assert reserved_bytes(cluster, bucket_id) == 12 * MIB
    for member in cluster.members:
        clocks.move(cluster.pid(member), 25 * HOUR_S, steady_s=25 * HOUR_S)
    ended = [upload.file_uuid, *lonely.uuids, file["file_uuid"], *joined.uuids]

    def is_gone(file_uuid: str) -> bool:
        head = cluster.request("HEAD", f"/files/{file_uuid}/content", headers=TUS)
        lies = any((cluster.data(each) / "uploads" / file_uuid).exists() for each in cluster.nodes)
        return head.status in {404, 410} and not lies

    wait_until(lambda: all(map(is_gone, ended)), what="the end of all, on every disk", timeout_s=120)
    assert reserved_bytes(cluster, bucket_id) == 0
    assert joined.finish(bucket_id=bucket_id).status in {404, 409, 410}
    again = sent(cluster, bucket_id)
    answer = again.finish_once_taken(bucket_id=bucket_id)
    assert answer.status == 201, answer.body
    check_content(cluster, answer.json["file_uuid"], again.content)

"""An upload goes on when the node that holds it dies: on any node, from what was acknowledged."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from ca.errors import Unavailable
from deploy.processes import wait_until
from metadata.model.records import Caller, UploadRecord
from metadata.protocol import commands
from tests.blobs_on_disk import change_byte
from tests.cluster.faulty_disk import injected
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node
from tests.cluster.upload_steps import TUS, Steps, stopped
from web.headers.digests import repr_digest

KIB, MIB = 1 << 10, 1 << 20
SIZE = 20 * MIB


def change_quota(cluster: Cluster, bucket_id: str, quota_bytes: int) -> None:
    changed = cluster.request("PATCH", f"/buckets/{bucket_id}", body={"quota_bytes": quota_bytes})
    assert changed.status == 200, changed.body


@pytest.mark.long
def test_upload_goes_on_at_another_node_and_the_old_holder_comes_back_as_a_member(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    four.kill(steps.holder)
    asked, other, _ = steps.others
    for node in steps.others:
        told = four.request("HEAD", steps.path, node=node, headers=TUS).headers
        digest = repr_digest(hashlib.sha256(steps.content[: 8 * MIB]).hexdigest())
        assert (told["upload-offset"], told["upload-prefix-digest"]) == (str(8 * MIB), digest)
    assert steps.patch_until_taken(8 * MIB, 12 * MIB, asked).status == 204
    assert [steps.offset(node) for node in steps.others] == [12 * MIB] * 3
    four.restart(steps.holder)
    four.wait_healthy()
    assert steps.offset(steps.holder) == 12 * MIB
    assert steps.patch(12 * MIB, 16 * MIB, steps.holder).status == 204
    assert steps.lying_bytes(steps.holder) > 8 * MIB  # linked again; it may be a little behind
    assert steps.patch(16 * MIB, SIZE, other).status == 204
    for node in (*steps.others, steps.holder):
        assert steps.stored(node) == steps.content


@pytest.mark.long
def test_holder_whose_disk_gives_other_bytes_back_leaves_the_upload_to_another(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    four.kill(steps.holder)
    with (four.data(steps.holder) / "uploads" / steps.file_uuid / "data").open("r+b") as data:
        data.seek(MIB)
        data.write(bytes(4096))
    four.restart(steps.holder)
    four.wait_healthy()
    assert steps.patch_until_taken(8 * MIB, SIZE, steps.holder).status == 204
    for node in four.nodes:
        assert steps.stored(node) == steps.content


def test_holder_whose_disk_gives_nothing_back_leaves_the_upload_to_another(
    four: Cluster, tmp_path: Path
) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    four.kill(steps.holder)
    four.restart(steps.holder)
    four.wait_healthy()
    data = four.data(steps.holder) / "uploads" / steps.file_uuid / "data"
    with injected(four.pid(steps.holder), "preadv,preadv2:error=EIO", tmp_path / "strace.log", data):
        assert steps.patch(8 * MIB, SIZE).status == 204  # no byte was read yet: it is passed on
    for node in four.nodes:
        assert steps.stored(node) == steps.content


def test_content_that_rots_before_its_commit_is_completed_by_a_node_that_has_it(four: Cluster) -> None:
    bucket_id = four.post("/buckets", {"name": "narrow"}).json["bucket_id"]
    steps = Steps(four, os.urandom(SIZE), bucket_id=bucket_id)
    change_quota(four, bucket_id, 1)
    assert steps.patch(0, SIZE).status == 413  # all of it is acknowledged and in place, and is not committed
    change_quota(four, bucket_id, 0)
    change_byte(four.replica(steps.holder, hashlib.sha256(steps.content).hexdigest()), MIB)
    assert steps.patch_until_taken(SIZE, SIZE, steps.holder).status == 204
    for node in four.nodes:
        assert steps.stored(node) == steps.content


def test_upload_that_lacks_only_its_commit_is_ended_by_who_asks_for_its_offset(four: Cluster) -> None:
    """A tus client that is told of all its bytes takes the upload for done, and never comes back."""
    bucket_id = four.post("/buckets", {"name": "shut"}).json["bucket_id"]
    steps = Steps(four, os.urandom(SIZE), bucket_id=bucket_id)
    change_quota(four, bucket_id, 1)
    assert steps.patch(0, SIZE).status == 413
    for node in four.nodes:
        assert four.request("HEAD", steps.path, node=node, headers=TUS).status == 413
    change_quota(four, bucket_id, 0)
    four.kill(steps.holder)
    try:
        assert steps.offset_once_told(steps.others[0]) == SIZE
        for node in steps.others:
            assert steps.stored(node) == steps.content
    finally:
        four.restart(steps.holder)
        four.wait_healthy()


def test_bytes_that_nobody_acknowledged_do_not_outlive_a_takeover(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    with steps.begin(SIZE) as sender:
        sender.send(12 * MIB)
        for node in (steps.holder, *steps.wait_members()):
            steps.wait_lying(node, 11 * MIB)
        four.kill(steps.holder)
    try:
        start = steps.offset(steps.others[0])
        # The rest is other content than was sent before: what was not acknowledged must not shine through.
        steps.content = steps.content[:start] + os.urandom(SIZE - start)
        assert steps.patch_until_taken(start, SIZE, steps.others[0]).status == 204
        assert steps.stored(steps.others[1]) == steps.content
    finally:
        four.restart(steps.holder)
        four.wait_healthy()
    assert steps.stored(steps.holder) == steps.content


def test_holder_that_hangs_is_taken_over_and_takes_no_harm(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    with stopped(four, steps.holder):
        assert steps.patch_until_taken(8 * MIB, 12 * MIB, steps.others[0]).status == 204
    answer = steps.patch_until_taken(12 * MIB, SIZE, steps.holder)
    assert answer.status == 204, answer.body
    assert steps.stored(steps.holder) == steps.content


@pytest.mark.long
def test_request_whose_holder_falls_silent_before_its_answer_ends_and_is_taken_elsewhere(
    four: Cluster,
) -> None:
    """As after a power cut: the connection takes the last bytes, and nothing ever comes back."""
    steps = Steps(four, os.urandom(SIZE))
    asked = steps.others[0]
    with steps.begin(SIZE, asked) as sender:
        sender.send(SIZE - KIB)
        steps.wait_lying(steps.holder, SIZE // 2)
        with stopped(four, steps.holder):
            sender.send(KIB)
            assert sender.status() == 503
            assert steps.patch_until_taken(steps.offset_once_told(asked), SIZE, asked).status == 204
    four.wait_healthy()
    assert steps.stored(steps.holder) == steps.content


@pytest.mark.long
def test_holder_that_has_lost_the_coordinators_is_taken_over(four: Cluster, tmp_path: Path) -> None:
    """The others reach it, so it is asked, and can do nothing."""
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    asked = steps.others[0]
    with injected(four.pid(steps.holder), "connect:error=ECONNREFUSED", tmp_path / "strace.log"):
        four.kill(*four.coordinators)
        four.restart(*four.coordinators)
        wait_until(lambda: asked in four.ready_nodes(), what="coordinators that are back", timeout_s=60)
        assert steps.patch_until_taken(8 * MIB, 12 * MIB, asked).status == 204
        assert [steps.offset(node) for node in steps.others] == [12 * MIB] * 3
    four.wait_healthy()
    assert steps.patch_until_taken(12 * MIB, SIZE, steps.holder).status == 204
    assert steps.stored(steps.holder) == steps.content


def test_two_nodes_that_ask_at_once_agree_on_the_successor(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    four.kill(steps.holder)
    statuses: list[int] = []

    def go_on(number: int) -> None:
        statuses.append(steps.patch_until_taken(8 * MIB, 12 * MIB, steps.others[number]).status)

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert statuses.count(204) == 1
        assert set(statuses) <= {204, 409, 423}
        assert [steps.offset(node) for node in steps.others] == [12 * MIB] * 3
        assert steps.patch(12 * MIB, SIZE, steps.others[0]).status == 204
        assert steps.stored(steps.others[1]) == steps.content
    finally:
        four.restart(steps.holder)
        four.wait_healthy()


async def test_holder_that_lives_is_not_taken_over(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    successor = steps.members()[0]
    command = commands.TakeOverUpload(
        caller=Caller("admin", 1, four.admin_token),
        file_uuid=steps.file_uuid,
        holder=steps.holder.id,
        successor=successor.id,
        epoch=0,
        offset_bytes=8 * MIB,
    )
    async with as_node(four, successor) as client:
        with pytest.raises(Unavailable):
            await client.propose(command, UploadRecord)
    assert steps.patch(8 * MIB, SIZE).status == 204

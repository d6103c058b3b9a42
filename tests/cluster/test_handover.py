"""An upload whose holder's disk takes no more of it goes on at a node that has room: no client need know."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.protocol.calls import DISK_OK
from tests.cluster.faulty_disk import injected
from tests.cluster.harness import Cluster
from tests.cluster.upload_steps import Steps

MIB = 1 << 20
SIZE = 20 * MIB


def all_take_bytes(cluster: Cluster) -> bool:
    nodes = cluster.get("/cluster/status").json["nodes"]
    return all(node["disk"] == DISK_OK for node in nodes)


@contextmanager
def without_room(cluster: Cluster, nodes: Sequence[Member], logs: Path) -> Iterator[None]:
    """While it lasts, these nodes find no room when they look."""
    with ExitStack() as stack:
        for node in nodes:
            log = logs / f"{node.id}.log"
            look = injected(cluster.pid(node), "fstatfs:error=ENOSPC", log, cluster.data(node))
            stack.enter_context(look)
        yield
    cluster.wait_healthy()  # they have looked again, and then the leader has heard of it
    wait_until(lambda: all_take_bytes(cluster), what="disks that take bytes", timeout_s=30)


def refusing(steps: Steps, fault: str, log: Path) -> AbstractContextManager[None]:
    """The holder's disk refuses to take bytes of this upload."""
    data = steps.cluster.data(steps.holder) / "uploads" / steps.file_uuid / "data"
    return injected(steps.cluster.pid(steps.holder), fault, log, data)


@pytest.mark.parametrize(
    "fault",
    [
        "pwrite64:error=ENOSPC",
        pytest.param("pwrite64:error=EIO", marks=pytest.mark.long),
        pytest.param("fdatasync:error=EIO", marks=pytest.mark.long),
    ],
)
def test_upload_goes_on_at_a_member_when_the_disk_of_its_holder_refuses(
    four: Cluster, tmp_path: Path, fault: str
) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    with refusing(steps, fault, tmp_path / "strace.log"):
        refused = steps.patch(8 * MIB, SIZE)
        assert (refused.status, refused.json["code"]) == (503, "unavailable")
        assert [steps.offset(node) for node in four.nodes] == [8 * MIB] * 4
        assert steps.patch(8 * MIB, SIZE).status == 204
    for node in four.nodes:
        assert steps.stored(node) == steps.content


def test_file_that_is_deleted_while_the_disk_of_its_holder_refuses_is_told_to_be_gone(
    four: Cluster, tmp_path: Path
) -> None:
    steps, log = Steps(four, os.urandom(SIZE)), tmp_path / "strace.log"
    assert steps.patch(0, 8 * MIB).status == 204
    with (
        refusing(steps, "pwrite64:error=EIO:delay_enter=2000000", log),
        ThreadPoolExecutor(1) as other,
    ):
        writing = other.submit(steps.patch, 8 * MIB, SIZE)
        wait_until(lambda: "pwrite64" in log.read_text(), what="a write", timeout_s=10)
        assert four.request("DELETE", f"/files/{steps.file_uuid}", node=steps.others[0]).status == 200
        assert writing.result().status in (404, 410)


def test_content_is_passed_on_whole_when_the_holder_has_no_room_for_it(four: Cluster, tmp_path: Path) -> None:
    steps = Steps(four, os.urandom(SIZE))
    with without_room(four, [steps.holder], tmp_path):
        answer = four.request("PUT", steps.path, node=steps.holder, content=steps.content, timeout_s=60)
    assert (answer.status, answer.json["status"]) == (200, "available"), answer.body
    for node in four.nodes:
        assert steps.stored(node) == steps.content


def test_node_outside_the_placement_goes_on_when_nobody_in_it_has_room(four: Cluster, tmp_path: Path) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    full = [steps.holder, *steps.wait_members()]
    (stranger,) = (node for node in four.nodes if node not in full)
    with (
        without_room(four, full[1:], tmp_path),
        refusing(steps, "pwrite64:error=ENOSPC", tmp_path / "strace.log"),
    ):
        assert steps.patch(8 * MIB, SIZE).status == 503
    assert steps.offset() == 8 * MIB
    assert steps.lying_bytes(stranger) == 8 * MIB
    assert steps.patch(8 * MIB, SIZE).status == 204
    for node in four.nodes:
        assert steps.stored(node) == steps.content


def test_want_of_room_for_the_quorum_is_told(four: Cluster, tmp_path: Path) -> None:
    steps = Steps(four, os.urandom(SIZE))
    with without_room(four, steps.others, tmp_path):
        refused = steps.patch(0, SIZE)
        assert (refused.status, refused.json["code"]) == (507, "insufficient_storage")
        assert "1 node has room" in refused.json["details"]
    assert steps.patch(steps.offset(), SIZE).status == 204
    assert steps.stored(steps.others[0]) == steps.content


def test_full_cluster_says_so_and_keeps_what_is_acknowledged(four: Cluster, tmp_path: Path) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    with without_room(four, four.nodes, tmp_path):
        refused = steps.patch(8 * MIB, SIZE)
        assert (refused.status, refused.json["code"]) == (507, "insufficient_storage")
    assert steps.offset() == 8 * MIB
    assert steps.patch(8 * MIB, SIZE).status == 204
    assert steps.stored(steps.others[0]) == steps.content

"""The chain: other nodes have an upload's bytes while the client still sends, whatever happens to them."""

import base64
import hashlib
import os

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.upload_steps import Steps, stopped

MIB = 1 << 20
SIZE = 24 * MIB


def assert_complete(steps: Steps) -> None:
    for node in steps.cluster.nodes:
        assert steps.stored(node) == steps.content


def copies(steps: Steps) -> int:
    sha256 = hashlib.sha256(steps.content).hexdigest()
    paths = [steps.cluster.data(node) / "blobs" / sha256[:2] / sha256[2:4] for node in steps.cluster.nodes]
    return sum((path / sha256).exists() for path in paths)


def test_replicas_receive_while_the_client_still_sends(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    with steps.begin(SIZE) as sender:
        sender.send(12 * MIB)
        for node in (steps.holder, *steps.wait_members()):
            steps.wait_lying(node, 10 * MIB)
        sender.send(12 * MIB)
        assert sender.status() == 204
    assert copies(steps) == 3
    assert_complete(steps)


def test_offset_that_is_told_lies_on_the_write_quorum(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 10 * MIB).status == 204
    assert steps.offset() == steps.offset(steps.others[0]) == 10 * MIB
    lying = sorted(steps.lying_bytes(node) for node in four.nodes)
    assert lying == [0, 10 * MIB, 10 * MIB, 10 * MIB]
    assert steps.patch(10 * MIB, SIZE, steps.others[0]).status == 204
    assert_complete(steps)


def test_piece_with_a_wrong_checksum_leaves_nothing_on_the_members(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 5 * MIB).status == 204
    wrong = f"sha256 {base64.b64encode(hashlib.sha256(b'x').digest()).decode()}"
    assert steps.patch(5 * MIB, SIZE, Upload_Checksum=wrong).status == 460
    assert [steps.lying_bytes(node) for node in steps.members()] == [5 * MIB, 5 * MIB]
    assert steps.offset() == 5 * MIB


def test_whole_put_begins_anew_on_the_members_too(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 10 * MIB).status == 204
    steps.content = os.urandom(SIZE)
    answer = four.request("PUT", steps.path, node=steps.others[0], content=steps.content, timeout_s=60)
    assert answer.status == 200, answer.body
    assert copies(steps) == 3
    assert_complete(steps)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.long)])
def test_dead_member_is_linked_around(four: Cluster, number: int) -> None:
    steps = Steps(four, os.urandom(SIZE))
    with steps.begin(SIZE) as sender:
        sender.send(8 * MIB)
        victim = steps.wait_members()[number]
        four.kill(victim)
        try:
            sender.send(16 * MIB)
            assert sender.status() == 204
        finally:
            four.restart(victim)
            four.wait_healthy()
    assert copies(steps) >= 2
    assert_complete(steps)


def test_member_that_hangs_is_linked_around(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    with steps.begin(SIZE) as sender:
        sender.send(8 * MIB)
        with stopped(four, steps.wait_members()[0]):
            sender.send(16 * MIB)
            assert sender.status() == 204
    four.wait_healthy()  # the one that was stopped knows too little of the cluster for a moment
    assert copies(steps) >= 2
    assert_complete(steps)


@pytest.mark.long
def test_without_a_write_quorum_nothing_is_acknowledged_and_the_offset_is_kept(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    four.kill(*steps.others)
    try:
        assert steps.patch(8 * MIB, 16 * MIB).status == 503
        assert steps.offset() == 8 * MIB
        assert steps.patch(8 * MIB, 16 * MIB).status == 503
    finally:
        four.restart(*steps.others)
        four.wait_healthy()
    while True:  # what the holder kept is settled by the next request that comes
        start = steps.offset()
        answer = steps.patch(start, SIZE)
        if answer.status == 204:
            break
        assert answer.status in (409, 503), answer.body
    assert_complete(steps)


@pytest.mark.long
def test_node_outside_the_placement_stands_in_for_dead_members(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    members = steps.members()
    outsider = next(node for node in steps.others if node not in members)
    four.kill(*members)
    try:
        assert steps.patch(8 * MIB, 16 * MIB).status == 204
        assert (steps.offset(), steps.lying_bytes(outsider)) == (16 * MIB, 16 * MIB)
        assert steps.patch(16 * MIB, SIZE).status == 204
        assert steps.stored(outsider) == steps.content
    finally:
        four.restart(*members)
        four.wait_healthy()

"""Nodes leave, and what is acknowledged of unfinished uploads stays: idle ones, and those that go on."""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_healing import let_an_hour_pass, runs_of
from tests.cluster.upload_steps import TUS, Steps

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]  # run by `make long`

MIB = 1 << 20
SIZE = 20 * MIB
LARGE = 192 * MIB
LEFT_S = 240.0


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Cluster]:
    """Five nodes, three copies, a write quorum of two; a node that is silent for three seconds is down."""
    options = ("--down-after", "3")
    with Cluster(tmp_path / "cluster", node_count=5, coordinator_options=options) as started:
        yield started


def placement(steps: Steps) -> list[Member]:
    """The nodes that the log names for the upload, the holder first, by who has applied most of it."""
    found = []
    for coordinator in steps.cluster.coordinators:
        state = steps.cluster.data(coordinator) / "state.sqlite"
        with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True, timeout=5.0)) as db:
            sql = "SELECT log_index, (SELECT placement FROM uploads WHERE file_uuid = ?) FROM applied"
            found.append(db.execute(sql, (steps.file_uuid,)).fetchone())
    nodes = {node.id: node for node in steps.cluster.nodes}
    return [nodes[name] for name in json.loads(max(found)[1])]


def having(steps: Steps, stop: int, nodes: list[Member]) -> list[Member]:
    """Which of these have the first bytes of the upload on their disk."""
    found = []
    for node in nodes:
        path = steps.cluster.data(node) / "uploads" / steps.file_uuid / "data"
        if path.exists() and steps.durable_bytes(node) >= stop:
            with path.open("rb") as file:
                if file.read(stop) == steps.content[:stop]:
                    found.append(node)
    return found


def drain(cluster: Cluster, node: Member, asked: Member) -> None:
    done = cluster.filestore("node", "drain", node.id, FILESTORE_URL=asked.url)
    assert done.returncode == 0, done.stderr


def remove(cluster: Cluster, node: Member, asked: Member) -> None:
    """It leaves for good once it is empty, and its disk with it."""

    def removed() -> bool:
        return cluster.filestore("node", "remove", node.id, FILESTORE_URL=asked.url).returncode == 0

    wait_until(removed, what=f"{node.id} is empty, and removed", timeout_s=LEFT_S)
    cluster.kill(node)
    shutil.rmtree(cluster.data(node) / "uploads")


def force(cluster: Cluster, node: Member, asked: Member) -> str:
    """What the command says: a node that is down is removed by force."""
    done = cluster.filestore("node", "remove", node.id, "--force", "--give-up", FILESTORE_URL=asked.url)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode() + done.stderr.decode()


def until_down(cluster: Cluster, nodes: list[Member], asked: Member) -> None:
    def are_down() -> bool:
        answer = cluster.get("/cluster/status", node=asked)
        states = {each["id"]: each["state"] for each in answer.json["nodes"]} if answer.status == 200 else {}
        return all(states.get(node.id) == "down" for node in nodes)

    wait_until(are_down, what="nodes that are known to be down", timeout_s=60)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_idle_upload_outlives_every_node_that_it_was_begun_on(five: Cluster, place: int) -> None:
    """They leave one after the other, each time the one at this place of its placement."""
    steps = Steps(five, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    for _ in range(2):
        away = placement(steps)[place]
        asked = next(node for node in five.ready_nodes() if node != away)
        drain(five, away, asked)
        remove(five, away, asked)
        assert away not in placement(steps)
        assert len(having(steps, 8 * MIB, placement(steps))) >= 2
        assert steps.offset_once_told(asked) == 8 * MIB
    asked = five.ready_nodes()[-1]
    assert steps.patch_until_taken(8 * MIB, SIZE, asked).status == 204
    for node in five.ready_nodes():
        assert steps.stored(node) == steps.content


def test_uploads_move_between_nodes_of_several_workers(tmp_path: Path) -> None:
    """Each belongs to one worker of a node, whichever the order reaches."""
    with Cluster(tmp_path / "cluster", node_count=4, node_options=("--workers", "2")) as cluster:
        all_steps = [Steps(cluster, os.urandom(SIZE)) for _ in range(4)]
        for steps in all_steps:
            assert steps.patch_until_taken(0, 8 * MIB, steps.holder).status == 204
        away, asked = cluster.nodes[0], cluster.nodes[1]
        drain(cluster, away, asked)
        remove(cluster, away, asked)
        for steps in all_steps:
            assert away not in placement(steps)
            assert len(having(steps, 8 * MIB, placement(steps))) >= 2
            assert steps.patch_until_taken(8 * MIB, SIZE, asked).status == 204
            assert steps.stored(asked) == steps.content


def test_uploads_without_a_byte_and_of_unknown_size_keep_no_node(five: Cluster) -> None:
    away, asked = five.nodes[0], five.nodes[1]
    all_steps = list[Steps]()
    while not all_steps or placement(all_steps[-1])[0] != away:
        all_steps.append(Steps(five, os.urandom(MIB), size_bytes=None))
    drain(five, away, asked)
    remove(five, away, asked)
    for steps in all_steps:
        assert away not in placement(steps)
        put = five.request("PUT", steps.path, node=asked, content=steps.content)
        assert put.status == 200, put.body
        assert steps.stored(asked) == steps.content


@pytest.mark.parametrize("killed", ["draining holder", "draining member", "new member"])
def test_upload_is_moved_though_one_of_two_is_killed_meanwhile(five: Cluster, killed: str) -> None:
    steps = Steps(five, os.urandom(LARGE))
    assert steps.patch(0, LARGE - MIB).status == 204
    wait_until(lambda: len(steps.members()) == 2, what="two members with bytes", timeout_s=30)
    before = placement(steps)
    away = before[1 if killed == "draining member" else 0]
    new = [node for node in five.nodes if node not in before]
    asked = new[0] if killed != "new member" else before[2]
    drain(five, away, asked)

    while not (coming := [node for node in new if steps.lying_bytes(node)]):
        time.sleep(0.002)  # it comes within seconds, and is there within one more
    victim = coming[0] if killed == "new member" else away
    five.kill(victim)
    five.restart(victim)
    remove(five, away, next(node for node in before[1:] if node != away))
    assert len(having(steps, LARGE - MIB, placement(steps))) >= 2
    asked = placement(steps)[-1]
    assert steps.patch_until_taken(LARGE - MIB, LARGE, asked).status == 204
    assert steps.stored(asked) == steps.content


def test_upload_that_is_written_keeps_its_draining_holder_by_name_until_it_has_ended(five: Cluster) -> None:
    steps = Steps(five, os.urandom(SIZE))
    asked = next(node for node in five.nodes if node not in placement(steps))
    with steps.begin(SIZE) as sender:
        sender.send(10 * MIB)
        steps.wait_lying(steps.holder, 9 * MIB)
        drain(five, steps.holder, asked)
        refused = five.filestore("node", "remove", steps.holder.id, FILESTORE_URL=asked.url)
        assert refused.returncode != 0
        assert steps.file_uuid in refused.stderr.decode()
        sender.send(SIZE - 10 * MIB)
        assert sender.status() == 204
    let_an_hour_pass(five, steps.holder)
    remove(five, steps.holder, asked)
    for node in five.ready_nodes():
        assert steps.stored(node) == steps.content


def test_upload_that_is_written_leaves_a_draining_member_behind(five: Cluster) -> None:
    steps = Steps(five, os.urandom(4 * SIZE))
    asked = next(node for node in five.nodes if node not in placement(steps))
    with steps.begin(4 * SIZE) as sender:
        sender.send(SIZE)
        for node in (steps.holder, *steps.wait_members()):
            steps.wait_lying(node, SIZE // 2)
        away = placement(steps)[1]
        drain(five, away, asked)
        sent = SIZE
        while away in placement(steps):
            sender.send(MIB)
            sent += MIB
            assert sent < 4 * SIZE
            time.sleep(0.2)  # a slow client
        remove(five, away, asked)
        sender.send(4 * SIZE - sent)
        assert sender.status() == 204
    for node in five.ready_nodes():
        assert steps.stored(node) == steps.content


def test_uploads_whose_nodes_are_all_gone_are_deleted_and_begun_anew(five: Cluster) -> None:
    first = Steps(five, os.urandom(SIZE))
    away = placement(first)
    same = [first]
    while len(same) < 4:
        steps = Steps(five, os.urandom(SIZE))
        if set(placement(steps)) == set(away):
            same.append(steps)
    for steps in same:
        assert steps.patch(0, 8 * MIB).status == 204
    asked, other = (node for node in five.nodes if node not in away)
    five.kill(*away)
    until_down(five, away, asked)
    refused = five.filestore("node", "remove", away[0].id, "--force", FILESTORE_URL=asked.url)
    assert refused.returncode != 0
    assert any(steps.file_uuid in refused.stderr.decode() for steps in same)
    deleted, put, patched, asked_for = same
    gone = five.request("DELETE", deleted.path, node=asked, headers=TUS)
    assert gone.status == 204, gone.body  # whoever may have its bytes
    for node in away:
        assert "unfinished uploads were placed there" in force(five, node, asked)
    assert five.request("HEAD", deleted.path, node=other, headers=TUS).status == 404
    # Until `asked` knows of all three that they are gone it tells what was acknowledged.
    begun = "an upload that begins anew"
    wait_until(lambda: asked_for.offset_once_told(asked) == 0, what=begun, timeout_s=30)
    answer = five.request("PUT", put.path, node=asked, content=put.content, timeout_s=60)
    assert answer.status == 200, answer.body
    mismatch = patched.patch_until_taken(8 * MIB, SIZE, other)
    assert (mismatch.status, mismatch.headers["upload-offset"]) == (409, "0")
    for steps in (patched, asked_for):
        assert steps.patch_until_taken(0, SIZE, other).status == 204
    for steps in (put, patched, asked_for):
        assert steps.stored(asked) == steps.content


def test_upload_whose_bytes_every_disk_has_lost_is_told_to_begin_anew(five: Cluster) -> None:
    """The nodes are there, and have nothing of it any more."""
    deleted, put, patched = all_steps = [Steps(five, os.urandom(SIZE)) for _ in range(3)]
    for steps in all_steps:
        assert steps.patch(0, 8 * MIB).status == 204
    five.kill(*five.nodes)
    for node in five.nodes:
        for directory in (five.data(node) / "uploads").iterdir():
            shutil.rmtree(directory)
    five.restart(*five.nodes)
    five.wait_healthy()
    assert five.request("DELETE", deleted.path, headers=TUS).status == 204
    assert put.offset_once_told(five.nodes[-1]) == 0
    status = five.get(f"/files/{patched.file_uuid}/status")
    assert (status.status, status.json["offset"]) == (200, 0)
    assert five.request("PUT", put.path, content=put.content, timeout_s=60).status == 200
    assert patched.patch_until_taken(0, SIZE, five.nodes[0]).status == 204
    for steps in (put, patched):
        assert steps.stored(five.nodes[1]) == steps.content


def test_upload_that_cannot_be_moved_keeps_its_node_and_is_named(mended: Cluster) -> None:
    """One of two nodes drains, and two must have its bytes."""
    steps = Steps(mended, os.urandom(SIZE))
    assert steps.patch(0, 8 * MIB).status == 204
    stays, first, second = mended.nodes
    drain(mended, first, stays)
    remove(mended, first, stays)
    drain(mended, second, stays)

    def named() -> bool:
        runs = runs_of(mended, "drain", stays)
        return any(steps.file_uuid in run["result"].get("kept", "") for run in runs)

    wait_until(named, what="a run that names the upload", timeout_s=60)
    again = mended.filestore("node", "drain", second.id)
    kept = f"{steps.file_uuid}: only 1 of the remaining nodes can hold it, 2 are required"
    assert kept in again.stderr.decode()
    refused = mended.filestore("node", "remove", second.id)
    assert refused.returncode != 0
    assert f"{steps.file_uuid} ({8 * MIB} bytes)" in refused.stderr.decode()
    assert mended.filestore("node", "undrain", second.id).returncode == 0
    assert steps.patch_until_taken(8 * MIB, SIZE, stays).status == 204
    assert steps.stored(second) == steps.content

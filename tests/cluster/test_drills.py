"""The drills of docs/ that no other test runs: a machine is lost, moves, or shows a wrong day."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import Child, start_child, stop_children, wait_until
from tests.cluster.clocks import Clocks
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster
from tests.cluster.test_coordinators import add, done, prepared, running, states, wait_voter

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SOON_S = 90.0
DAY_S = 86_400
ELSEWHERE = "127.0.0.2"  # another address of this machine


def node_states(cluster: Cluster) -> dict[str, str]:
    answer = cluster.get("/cluster/status")
    return {each["id"]: each["state"] for each in answer.json["nodes"]} if answer.status == 200 else {}


def is_healthy(cluster: Cluster) -> bool:
    return cluster.filestore("status").returncode == 0


def wait_well(cluster: Cluster) -> None:
    wait_until(lambda: is_healthy(cluster), what="a healthy cluster", timeout_s=SOON_S)


def on_path(cluster: Cluster, path: Path, node: Member) -> Child:
    """A node that runs from another directory than the cluster made for it."""
    log = cluster.directory / "logs" / f"{node.id}-moved.log"
    return start_child(node.id, ["node", "run", "--data", str(path)], log)


def test_machine_that_is_lost_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        contents = {cluster.store_everywhere(content): content for content in (os.urandom(200_000), b"small")}
        coordinator, node = cluster.coordinators[2], cluster.nodes[2]
        cluster.kill(coordinator, node)
        for member in (coordinator, node):
            shutil.rmtree(cluster.data(member))
        with drill("one machine lost"):
            done(cluster, "coordinator", "remove", coordinator.id)
            wait_until(
                lambda: cluster.filestore("node", "remove", node.id, "--force", "--is-gone").returncode == 0,
                what="the end of its name",
                timeout_s=SOON_S,
            )
            guest = prepared(cluster, "c4")
            with running(guest):
                add(cluster, guest)
                wait_voter(cluster, guest.id)
                new = cluster.add_node("n4", cluster.join_token(node_id="n4"))
                wait_well(cluster)
                for file_uuid, content in contents.items():
                    assert cluster.get(f"/files/{file_uuid}", node=new).body == content
                assert set(node_states(cluster)) == {cluster.nodes[0].id, cluster.nodes[1].id, "n4"}
                assert set(states(cluster)) == {cluster.coordinators[0].id, cluster.coordinators[1].id, "c4"}


def test_machine_that_gets_another_address_is_the_same_after_a_command_for_each_role(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        content = os.urandom(200_000)
        file_uuid = cluster.store_everywhere(content)
        coordinator, node = cluster.coordinators[2], cluster.nodes[2]
        cluster.terminate(coordinator, node)
        data, at = (
            str(cluster.data(coordinator)),
            f"{ELSEWHERE}:{coordinator.peer_port}:{coordinator.api_port}",
        )
        with drill("address changed"):
            done(cluster, "coordinator", "rebuild", "--data", data, "--id", "c9", "--address", at)
            done(cluster, "node", "set-address", "--data", str(cluster.data(node)), "--address", ELSEWHERE)
            cluster.restart(coordinator, node)
            wait_voter(cluster, "c9")
            wait_well(cluster)
            url = f"https://{ELSEWHERE}:{node.api_port}"
            target = tmp_path / "copy"
            done(cluster, "get", file_uuid, "--url", url, "-o", str(target))
            assert target.read_bytes() == content
            led = done(cluster, "coordinator", "transfer-leader", "--to", "c9")
            assert "c9 is the leader." in led


def test_disk_of_a_node_goes_to_another_host_with_all_that_is_on_it(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", coordinator_options=("--down-after", "3600")) as cluster:
        content = os.urandom(200_000)
        file_uuid = cluster.store_everywhere(content)
        node, mounted = cluster.nodes[2], tmp_path / "mounted"
        cluster.kill(node)  # the host has died, its disk has not
        with drill("disk moved to another host"):
            cluster.data(node).rename(mounted)
            done(cluster, "node", "set-address", "--data", str(mounted), "--address", ELSEWHERE)
            child = on_path(cluster, mounted, node)
            try:
                wait_until(
                    lambda: node_states(cluster)[node.id] == "healthy", what="it is heard", timeout_s=SOON_S
                )
                wait_well(cluster)
                target = tmp_path / "copy"
                url = f"https://{ELSEWHERE}:{node.api_port}"
                done(cluster, "get", file_uuid, "--url", url, "-o", str(target))
                assert target.read_bytes() == content
                runs = cluster.get("/jobs/runs").json["runs"]
                assert not any(run["result"].get("copied") for run in runs if run["job_name"] == "repair")
            finally:
                stop_children([child])


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path, monkeypatch)


@pytest.fixture
def clocked(clocks: Clocks, tmp_path: Path) -> Iterator[Cluster]:
    del clocks  # it is preloaded
    with Cluster(tmp_path / "cluster") as started:
        yield started


@pytest.mark.parametrize("shift_s", [DAY_S, -DAY_S], ids=["ahead", "behind"])
def test_machine_whose_clock_is_wrong_by_a_day_stops_nobody_and_is_well_once_it_is_set(
    clocked: Cluster, clocks: Clocks, shift_s: int
) -> None:
    cluster, leader = clocked, clocked.leader()
    node = cluster.nodes[2]
    stored = cluster.store(b"before")
    for member in (leader, node):
        clocks.move(cluster.pid(member), shift_s)
    named = f"of the coordinator {leader.id} is "
    wait_until(lambda: any(named in each for each in problems(cluster)), what="a sentence", timeout_s=SOON_S)
    wait_until(lambda: cluster.leader().id != leader.id, what="another leader", timeout_s=SOON_S)
    for asked in cluster.nodes[:2]:
        assert cluster.get(f"/files/{stored}", node=asked).body == b"before"
        assert cluster.post("/project-files", {"filename": "a", "project_id": "b"}, node=asked).status == 201
    with drill(f"clock wrong by a day ({'ahead' if shift_s > 0 else 'behind'})"):
        for member in (leader, node):
            clocks.move(cluster.pid(member), 0)
        wait_well(cluster)
    assert cluster.get(f"/files/{cluster.store(b'after')}", node=node).body == b"after"


def problems(cluster: Cluster) -> list[str]:
    answer = cluster.get("/cluster/status")
    return list(answer.json["problems"]) if answer.status == 200 else []

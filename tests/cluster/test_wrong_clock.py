"""One coordinator's wall clock is wrong, and it leads: users notice nothing, and it hands the lead over."""

from collections.abc import Iterator

import pytest

from deploy.processes import wait_until
from tests.cluster.clocks import Clocks
from tests.cluster.harness import Cluster

HOUR_S = 3600
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def preloading() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory, preloading: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path_factory.mktemp("clocks"), preloading)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, clocks: Clocks) -> Iterator[Cluster]:
    del clocks  # it is preloaded
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def refusals(cluster: Cluster, token: str) -> list[str]:
    """What members refuse this token, as each answers a read and a change, and how."""
    found = []
    for member in cluster.nodes:
        read = cluster.get("/project-files", node=member, token=token)
        changed = cluster.post(
            "/project-files", {"filename": "a.gns3p", "project_id": "lab"}, node=member, token=token
        )
        found += [
            f"{member.id}: {answer.status} {answer.json['details']}"
            for answer in (read, changed)
            if answer.status == 401
        ]
    return found


@pytest.mark.parametrize(
    "shift_s",
    [
        pytest.param(-HOUR_S, id="behind", marks=pytest.mark.long),
        pytest.param(13 * HOUR_S, id="ahead", marks=pytest.mark.long),
    ],
)
def test_leader_whose_clock_is_wrong_locks_nobody_out_and_hands_over(
    cluster: Cluster, clocks: Clocks, shift_s: int
) -> None:
    cluster.wait_healthy()
    token, leader = cluster.user_token("alice"), cluster.leader()
    clocks.move(cluster.pid(leader), shift_s)
    try:
        tokens = [token, cluster.user_token("bob")]
        refused: list[str] = []

        def is_led_by_another() -> bool:
            for each in tokens:
                refused.extend(refusals(cluster, each))
            return bool(refused) or cluster.leader().id != leader.id

        wait_until(is_led_by_another, what="another leader", timeout_s=DEADLINE_S)
        for each in tokens:
            refused.extend(refusals(cluster, each))
        assert refused == []
        told = f"The clock of the coordinator {leader.id} is "
        wait_until(lambda: any(told in line for line in problems(cluster)), what=told, timeout_s=DEADLINE_S)
        assert [line for line in problems(cluster) if "clock" in line and told not in line] == []
    finally:
        clocks.move(cluster.pid(leader), 0)
    cluster.wait_healthy()


def problems(cluster: Cluster) -> list[str]:
    return list(cluster.get("/cluster/status").json["problems"])

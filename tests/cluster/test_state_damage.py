"""A coordinator whose database is damaged while it runs: it answers nothing wrong, and it does not go on."""

import itertools
import time

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.unit.state_damage import flip, rows_of, spoil

END_S = 30.0


def checkpointed(cluster: Cluster, *, leads: bool) -> Member:
    """A coordinator whose database file holds all of its state."""
    leader = cluster.leader()
    chosen = leader if leads else next(each for each in cluster.coordinators if each != leader)
    cluster.kill(chosen)  # what is in its WAL gets into the file at the next start
    cluster.restart(chosen)
    cluster.wait_healthy()
    if leads:
        cluster.post("/cluster/leader", {"id": chosen.id})
        wait_until(lambda: cluster.leader() == chosen, what=f"the lead of {chosen.id}", timeout_s=20)
    return chosen


def answers_until_it_ends(cluster: Cluster, member: Member) -> list[tuple[int, list[str]]]:
    """What lists of users say, with a change before each, through every node, until the process has ended."""
    answers: list[tuple[int, list[str]]] = []
    ends_at = time.monotonic() + END_S
    for number in itertools.count():
        assert time.monotonic() < ends_at, f"{member.id} goes on: {answers[-6:]}"
        made = cluster.post("/buckets", {"name": f"b{number}"})
        assert made.status == 201, made
        for node in cluster.nodes:
            answer = cluster.get("/auth/users", node=node)
            answers.append((answer.status, [user["user_id"] for user in answer.json.get("users", [])]))
        cluster.get("/cluster/status")
        if not cluster.runs(member):
            return answers
    raise AssertionError("unreachable")


@pytest.mark.long
@pytest.mark.parametrize("leads", [False, True])
def test_coordinator_with_a_damaged_table_ends_and_nobody_is_told_wrong(
    own_cluster: Cluster, leads: bool
) -> None:
    cluster = own_cluster
    cluster.user_token("alice")
    member = checkpointed(cluster, leads=leads)
    spoil(cluster.data(member) / "state.sqlite", "users")
    answers = answers_until_it_ends(cluster, member)
    assert answers == [(200, ["admin", "alice"])] * len(answers)
    assert "state.sqlite is damaged" in cluster.last_words(member)

    cluster.restart(member)
    cluster.wait_healthy()
    assert len(list(cluster.data(member).glob("state.sqlite.damaged-*"))) >= 1
    rebuilt = cluster.data(member) / "state.sqlite"
    wait_until(lambda: rows_of(rebuilt, "users") == 2, what="it has caught up", timeout_s=END_S)


@pytest.mark.parametrize(
    ("name", "leads"),
    [
        pytest.param("users", True, marks=pytest.mark.long),
        pytest.param("users_by_sequence", False, marks=pytest.mark.long),
        pytest.param("users_by_sequence", True, marks=pytest.mark.long),
    ],
)
def test_coordinator_with_a_flipped_bit_in_a_table_or_an_index_ends_without_a_read_of_it(
    own_cluster: Cluster, name: str, leads: bool
) -> None:
    cluster = own_cluster
    cluster.user_token("alice")
    member = checkpointed(cluster, leads=leads)
    spoil(cluster.data(member) / "state.sqlite", name, flip)
    wait_until(lambda: not cluster.runs(member), what=f"the end of {member.id}", timeout_s=END_S)
    assert "has changed without a write" in cluster.last_words(member)
    for node in cluster.nodes:
        answer = cluster.get("/auth/users", node=node)
        assert [user["user_id"] for user in answer.json["users"]] == ["admin", "alice"]
    cluster.restart(member)
    cluster.wait_healthy()

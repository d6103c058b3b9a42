"""A member that starts takes its clients when it can serve them, and tells why if that takes long."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from runtime.lifetime import KNOWN_S
from tests.cluster.harness import Answer, Cluster

START_S = 20.0  # of a process, on a busy machine
ROLES = pytest.mark.parametrize("role", ["node", pytest.param("coordinator", marks=pytest.mark.long)])


def first_answer(cluster: Cluster, member: Member) -> tuple[Answer, float]:
    """Of the member, to one who asks it again and again, and after how many seconds."""
    began_s = time.monotonic()
    while True:
        took_s = time.monotonic() - began_s
        assert took_s < START_S + KNOWN_S, cluster.last_words(member)
        try:
            return cluster.get("/project-files", node=member), took_s
        except ConnectionRefusedError:
            time.sleep(0.001)


@contextmanager
def started_alone(cluster: Cluster, role: str) -> Iterator[Member]:
    """A member of this role that has just been started, while those that it waits for are killed."""
    first, *others = cluster.coordinators
    chosen, away = (cluster.nodes[0], [first, *others]) if role == "node" else (first, others)
    cluster.kill(chosen)
    with cluster.down(*away):
        cluster.restart(chosen)
        yield chosen


def until_ready(cluster: Cluster, member: Member) -> set[str]:
    """Why it is not, as it says from now on until it is."""
    told = set[str]()

    def is_ready() -> bool:
        answer = cluster.get("/readyz", node=member, token=None)
        told.update([] if answer.status == 200 else [answer.json["details"]])
        return answer.status == 200

    wait_until(is_ready, what="it is ready", timeout_s=START_S)
    return told


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for this signal (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << number - 1)


@pytest.mark.long
@pytest.mark.parametrize("kill", [pytest.param(False, id="ended"), pytest.param(True, id="killed")])
def test_first_request_that_a_started_member_takes_is_served(mended: Cluster, *, kill: bool) -> None:
    cluster = mended
    for member in cluster.members:
        (cluster.kill if kill else cluster.terminate)(member)
        cluster.restart(member)
        answer, _ = first_answer(cluster, member)
        assert answer.status == 200, (member.id, answer.body)
        assert not [why for why in until_ready(cluster, member) if "Another process" in why]


@pytest.mark.long
@ROLES
def test_member_that_starts_without_the_others_says_so_after_a_while(mended: Cluster, role: str) -> None:
    with started_alone(mended, role) as chosen:
        answer, took_s = first_answer(mended, chosen)
        assert took_s >= KNOWN_S
        assert (answer.status, answer.json["code"]) == (503, "unavailable")
        assert "coordinators" in answer.json["details"]


@ROLES
def test_member_that_waits_for_others_ends_at_once_when_it_is_asked_to(mended: Cluster, role: str) -> None:
    cluster = mended
    with started_alone(cluster, role) as chosen:
        wait_until(lambda: catches(cluster.pid(chosen), signal.SIGTERM), what="it waits", timeout_s=START_S)
        began_s = time.monotonic()
        cluster.terminate(chosen)
        assert time.monotonic() - began_s < KNOWN_S, cluster.last_words(chosen)
        assert "ended with code 0" in cluster.last_words(chosen)
        cluster.restart(chosen)

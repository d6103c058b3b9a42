"""A node that starts takes its clients when it can serve them, and tells why if that takes long."""

import signal
import time
from pathlib import Path

import pytest

from deploy.dev.cluster import Member
from deploy.dev.processes import wait_until
from node.server import KNOWN_S
from tests.cluster.harness import Answer, Cluster

START_S = 20.0  # of a process, on a busy machine


def first_answer(cluster: Cluster, node: Member) -> tuple[Answer, float]:
    """Of the node, to one who asks it again and again, and after how many seconds."""
    began_s = time.monotonic()
    while True:
        took_s = time.monotonic() - began_s
        assert took_s < START_S + KNOWN_S, cluster.last_words(node)
        try:
            return cluster.get("/project-files", node=node), took_s
        except ConnectionRefusedError:
            time.sleep(0.001)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for this signal (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << number - 1)


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_first_request_that_a_started_node_takes_is_served(mended: Cluster, *, kill: bool) -> None:
    cluster = mended
    for node in cluster.nodes:
        (cluster.kill if kill else cluster.terminate)(node)
        cluster.restart(node)
        answer, _ = first_answer(cluster, node)
        assert answer.status == 200, (node.id, answer.body)


def test_node_that_starts_without_coordinators_says_so_after_a_while(mended: Cluster) -> None:
    cluster, node = mended, mended.nodes[0]
    cluster.kill(node, *cluster.coordinators)
    cluster.restart(node)
    answer, took_s = first_answer(cluster, node)
    assert took_s >= KNOWN_S
    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    assert "coordinators" in answer.json["details"]
    cluster.restart(*cluster.coordinators)
    cluster.wait_healthy()


def test_node_that_waits_for_coordinators_ends_at_once_when_it_is_asked_to(mended: Cluster) -> None:
    cluster, node = mended, mended.nodes[0]
    cluster.kill(node, *cluster.coordinators)
    cluster.restart(node)
    wait_until(lambda: catches(cluster.pid(node), signal.SIGTERM), what="it waits", timeout_s=START_S)
    began_s = time.monotonic()
    cluster.terminate(node)
    assert time.monotonic() - began_s < KNOWN_S, cluster.last_words(node)
    assert "ended with code 0" in cluster.last_words(node)
    cluster.restart(node, *cluster.coordinators)
    cluster.wait_healthy()

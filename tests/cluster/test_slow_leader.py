"""The disk of the coordinator that leads is slow: users go on, and soon another leads."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from deploy.processes import wait_until
from tests.cluster.disk_shim import DiskRules, disk_rules
from tests.cluster.harness import Cluster

SYNC_MS = 700
WRITERS = 4
BEFORE_S, AFTER_S = 5.0, 10.0
LED_BY_ANOTHER_S = 60.0  # a leader that came by an election or two leads for 20 s at least
GAP_S_MAX = 3.0  # syncs of the slow disk and a hand-over; without it reads had gaps of 7.8 s

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def preloading() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory, preloading: pytest.MonkeyPatch) -> DiskRules:
    return disk_rules(tmp_path_factory.mktemp("disk"), preloading)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, rules: DiskRules) -> Iterator[Cluster]:
    del rules  # they are preloaded
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@dataclass
class Answers:
    """When clients got what they asked for."""

    at_s: list[float] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> list[float]:
        return sorted(each for each in self.at_s if begin_s <= each < end_s)

    def rate(self, begin_s: float, end_s: float) -> float:
        return len(self.between(begin_s, end_s)) / (end_s - begin_s)

    def gap_s(self, begin_s: float, end_s: float) -> float:
        moments = [begin_s, *self.between(begin_s, end_s), end_s]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))


@contextmanager
def clients(ask: Callable[[], int], count: int) -> Iterator[Answers]:
    """So many ask again and again; what is refused is no answer."""
    answers, is_over = Answers(), threading.Event()

    def run() -> None:
        while not is_over.is_set():
            try:
                is_answered = ask() < 400
            except OSError:
                is_answered = False
            if is_answered:
                answers.at_s.append(time.monotonic())
            is_over.wait(0.02)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_lead_leaves_a_slow_disk_and_reads_do_not_wait_for_it(
    cluster: Cluster, rules: DiskRules, capsys: pytest.CaptureFixture[str]
) -> None:
    body, pause = {"filename": "lab.gns3p", "project_id": "lab"}, threading.Event()
    leader = cluster.leader()
    with (
        clients(lambda: cluster.get("/project-files?limit=1", node=cluster.nodes[1]).status, 1) as reads,
        clients(lambda: cluster.post("/project-files", body).status, WRITERS) as writes,
    ):
        begun_s = time.monotonic()
        pause.wait(BEFORE_S)
        slow_s = time.monotonic()
        with rules.slow(cluster.data(leader), "S", SYNC_MS):
            try:
                wait_until(
                    lambda: cluster.leader().id != leader.id, what="another", timeout_s=LED_BY_ANOTHER_S
                )
            finally:
                led_s = time.monotonic()
                pause.wait(AFTER_S)
                end_s = time.monotonic()
                with capsys.disabled():
                    print(
                        f"\nwrites/s: {writes.rate(begun_s, slow_s):.0f} before, "
                        f"{writes.rate(slow_s, led_s):.1f} with a slow leader ({led_s - slow_s:.1f} s), "
                        f"{writes.rate(led_s, end_s):.0f} after; longest gap of writes "
                        f"{writes.gap_s(slow_s, end_s):.2f} s, of reads {reads.gap_s(slow_s, end_s):.2f} s"
                    )
            assert cluster.leader().id != leader.id
    assert reads.gap_s(slow_s, end_s) < GAP_S_MAX
    assert writes.gap_s(slow_s, end_s) < GAP_S_MAX
    assert writes.rate(led_s, end_s) > writes.rate(slow_s, led_s)

"""The numbers of several workers as those of one node."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from node.base.metrics import NodeMetrics
from node.workers.metrics_sum import OF_THE_NODE, WorkerMetrics, WorkerTotals, collect_families

SUMMED = {  # each process has some of it, or only the first one has any
    "filestore_chunk_bytes",
    "filestore_chunk_packs",
    "filestore_chunks",
    "filestore_cold_bytes",
    "filestore_cold_replicas",
    "filestore_custody_broken_off",
    "filestore_custody_rate",
    "filestore_custody_stopped",
    "filestore_packed_blobs",
    "filestore_packed_bytes",
    "filestore_packs",
    "filestore_poison_items",
    "filestore_record_lease",
    "filestore_records_kept",
    "filestore_uploads_in_progress",
}


class Worker:
    """A registry with one metric of each kind; `tell` is what travels."""

    def __init__(self, life: str, *, hits: int = 0, uploads: int = 0, free_bytes: int = 0) -> None:
        self.life = life
        self.registry = CollectorRegistry()
        self.hits = Counter("hits", "Hits.", ["route"], registry=self.registry)
        if hits:
            self.hits.labels("/a").inc(hits)
        self.times = Histogram("times", "Times.", buckets=(1.0, 2.0), registry=self.registry)
        Gauge("uploads", "Uploads.", registry=self.registry).set(uploads)
        Gauge("filestore_disk_free_bytes", "Free.", registry=self.registry).set(free_bytes)
        Gauge("process_start_time_seconds", "Start.", registry=self.registry).set(100 + hits)
        Info("filestore", "Part.", registry=self.registry).info({"component": "node"})

    def tell(self) -> WorkerMetrics:
        sent = msgspec.msgpack.encode(WorkerMetrics(self.life, collect_families(self.registry)))
        return msgspec.msgpack.decode(sent, type=WorkerMetrics)


def total(tally: WorkerTotals, own: Worker, answering: set[int]) -> dict[str, float]:
    text = generate_latest(tally.total(collect_families(own.registry), answering)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines)
    return {name: float(value) for name, value in lines}


def test_counters_and_histograms_are_summed_by_label_and_bucket() -> None:
    own, other, tally = Worker("a", hits=3), Worker("b", hits=4), WorkerTotals()
    other.hits.labels("/b").inc()
    own.times.observe(0.5)
    other.times.observe(1.5)
    tally.receive(1, other.tell())
    found = total(tally, own, {1})
    assert found['hits_total{route="/a"}'] == 7
    assert found['hits_total{route="/b"}'] == 1
    assert found['times_bucket{le="1.0"}'] == 1
    assert found['times_bucket{le="+Inf"}'] == found["times_count"] == 2
    assert found["times_sum"] == 2.0


def test_gauges_are_summed_and_what_a_node_has_once_is_told_once() -> None:
    own, other, tally = (
        Worker("a", hits=1, uploads=2, free_bytes=70),
        Worker("b", hits=2, uploads=3, free_bytes=60),
        WorkerTotals(),
    )
    tally.receive(1, other.tell())
    found = total(tally, own, {1})
    assert found["uploads"] == 5
    assert tally.gauge("uploads", {1}) == 3
    assert found["filestore_disk_free_bytes"] == 70
    assert found["process_start_time_seconds"] == 101
    assert found['filestore_info{component="node"}'] == 1


def test_silent_worker_keeps_its_counts_and_loses_its_gauges() -> None:
    own, other, tally = Worker("a", hits=1, uploads=2), Worker("b", hits=2, uploads=3), WorkerTotals()
    tally.receive(1, other.tell())
    found = total(tally, own, set())
    assert found['hits_total{route="/a"}'] == 3
    assert found["uploads"] == 2
    assert tally.gauge("uploads", set()) == 0


def test_counts_of_ended_processes_stay_when_others_take_their_place() -> None:
    own, tally = Worker("a", hits=1), WorkerTotals()
    for life in ("b", "c", "d"):
        tally.receive(1, Worker(life, hits=9).tell())  # an older look of the same life
        tally.receive(1, Worker(life, hits=10, uploads=1).tell())
    found = total(tally, own, {1})
    assert found['hits_total{route="/a"}'] == 31
    assert found["uploads"] == 1
    assert found["hits_created" if "hits_created" in found else 'hits_created{route="/a"}'] > 0


def test_counter_is_told_over_all_that_ever_ran() -> None:
    tally = WorkerTotals()
    assert tally.counter("hits") == 0
    for worker, life, hits in ((1, "b", 4), (2, "c", 1), (1, "d", 2)):
        told = Worker(life, hits=hits)
        told.hits.labels("/b").inc()
        tally.receive(worker, told.tell())
    assert tally.counter("hits") == 5 + 2 + 3


@pytest.mark.parametrize("answering", [set(), {1, 2}])
def test_sum_is_well_formed_openmetrics(answering: set[int]) -> None:
    own, tally = Worker("a", hits=1), WorkerTotals()
    for number, life in ((1, "b"), (2, "c"), (2, "d")):
        worker = Worker(life, hits=number)
        worker.hits.labels(f"/{life}").inc()
        tally.receive(number, worker.tell())
    text = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
        tally.total(collect_families(own.registry), answering)
    ).decode()
    families = {
        family.name: family
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    }
    assert {"hits", "times", "uploads"} <= set(families)
    values = {(s.name, s.labels.get("route")): s.value for s in families["hits"].samples}
    assert values["hits_total", "/a"] == 6


def test_every_gauge_of_a_node_is_summed_or_of_the_node() -> None:
    registry = CollectorRegistry()
    NodeMetrics(registry)
    gauges = {metric.name for metric in registry.collect() if metric.type == "gauge"}
    told = "each worker of a node shows it: name it in OF_THE_NODE if the node has it once, else here"
    assert gauges - OF_THE_NODE == SUMMED, told

"""The metrics of the cluster and of a coordinator's own disk, without those of the Raft group.

Everything is read at the scrape, from memory or an index: the cost does not grow with the number of files.
Each coordinator reports its own view. Only the leader certainly receives the nodes' heartbeats, so a rule
uses the one whose `filestore_raft_is_leader` is 1.

Tested by tests/cluster/test_metrics.py.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.machine.jobs import JobOutcome
from coordinator.member.open_storage import Ledger
from coordinator.rpc.server import value_of
from coordinator.storage.config import CoordinatorFiles
from metadata.model.jobs import JOBS, SNAPSHOT, Amounts, amounts_of
from metadata.model.records import DOWN, HEALTHY, ClusterView, JobRunRecord, UploadPage
from metadata.model.replica_records import ReplicaCounts, ReplicaPage
from metadata.protocol.calls import DISK_FAILED, DISK_FULL, DISK_LOW, DISK_OK
from metadata.protocol.queries import GetReplicaCounts, ListNodeUploads, ListReplicas
from metadata.rpc.node_health import NODE_STATES
from runtime.clock import now_ms

# These numbers of missing replicas are always shown, so that a rule finds a zero and no gap.
SHORT_SHOWN: Final = 3


class ClusterMetrics(Collector):
    """A collector in the registry of one coordinator.

    `node_states`: the state of each node, by its heartbeats here; `node_disks`: the state of their disks, in
    the same order; `failing_nodes`: those that fail at copies; `contested_nodes`: those with a second
    process.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        files: CoordinatorFiles,
        ledger: Ledger,
        view: Callable[[], ClusterView],
        node_states: Callable[[], Iterable[str]],
        node_disks: Callable[[], Iterable[str]],
        failing_nodes: Callable[[], Collection[str]],
        contested_nodes: Callable[[], Collection[str]],
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._view = view
        self._node_states = node_states
        self._node_disks = node_disks
        self._failing_nodes = failing_nodes
        self._contested_nodes = contested_nodes
        self._sends_snapshots = files.offsite.exists()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, with their present values."""
        yield from self._nodes()
        yield from self._usage()
        yield from self._replicas()
        yield from self._jobs()
        yield from self._disk()

    def _nodes(self) -> Iterator[Metric]:
        states, disks = list(self._node_states()), list(self._node_disks())
        yield _counted(
            "filestore_nodes", "Nodes by state, as this coordinator knows it.", NODE_STATES, states
        )
        yield _counted(
            "filestore_node_disks",
            "Nodes that are not down, by the state of their disk: ok, low (only the reserve is free), full or"
            " failed.",
            (DISK_OK, DISK_LOW, DISK_FULL, DISK_FAILED),
            [disk for state, disk in zip(states, disks, strict=True) if state != DOWN],
        )
        yield _gauge(
            "filestore_nodes_taking_files",
            "Healthy nodes whose disk has room for new replicas.",
            sum(each == (HEALTHY, DISK_OK) for each in zip(states, disks, strict=True)),
        )
        yield _gauge(
            "filestore_nodes_failing_copies",
            "Nodes that repeatedly failed as target or source of replicas, as seen by the leader.",
            len(self._failing_nodes()),
        )
        yield _gauge(
            "filestore_nodes_contested",
            "Nodes for which a second process was rejected here in the last half minute.",
            len(self._contested_nodes()),
        )
        yield _gauge(
            "filestore_nodes_emptying",
            "Draining nodes that still hold replicas or unfinished uploads; without those that are down.",
            sum(
                self._holds(node.node_id)
                for node in self._view().nodes
                if node.draining and node.state != DOWN
            ),
        )

    def _usage(self) -> Iterator[Metric]:
        files, used_bytes = self._ledger.store.usage()
        yield _gauge("filestore_files", "Files with a record.", files)
        yield _gauge(
            "filestore_used_bytes",
            "Total size of all files, counting content once for each file.",
            used_bytes,
        )

    def _replicas(self) -> Iterator[Metric]:
        """Yield counts that stop at 10,000, as `filestore status` shows them."""
        reply = self._ledger.store.answer(GetReplicaCounts(), at_ms=now_ms())
        counts = msgspec.msgpack.decode(value_of(reply), type=ReplicaCounts)
        short = GaugeMetricFamily(
            "filestore_blobs_short", "Blobs by how many replicas they lack.", labels=["missing"]
        )
        for missing in range(1, max(SHORT_SHOWN, *counts.short, 0) + 1):
            short.add_metric([str(missing)], counts.short.get(missing, 0))
        yield short
        view = self._view()
        yield _gauge(
            "filestore_blobs_on_few_nodes",
            "Blobs with fewer replicas than wanted, including those on draining nodes.",
            counts.few,
        )
        yield _gauge(
            "filestore_blobs_on_last_replica",
            "Blobs with a single replica on a node that is not down, where more are wanted.",
            counts.last,
        )
        yield _gauge("filestore_replicas_wanted", "Replicas that each blob should have.", view.replicas)
        yield _gauge(
            "filestore_write_quorum",
            "Replicas that must be durable before an upload is complete.",
            view.write_quorum,
        )
        yield _gauge(
            "filestore_blobs_lost",
            "Blobs of files without a replica on any node that is not down.",
            counts.lost + counts.absent,
        )
        yield _gauge(
            "filestore_blobs_damaged",
            "Blobs without a sound replica that can be restored from damaged copies.",
            counts.damaged,
        )
        yield _gauge(
            "filestore_blobs_incomplete",
            "Blobs of files with bytes that are damaged on every node.",
            counts.gone,
        )
        yield _gauge(
            "filestore_lost_bytes", "Bytes of blobs that are damaged on every node.", counts.gone_bytes
        )
        yield _gauge(
            "filestore_blobs_unreferenced",
            "Blobs that no file refers to and that gc will delete.",
            counts.unreferenced,
        )
        yield _gauge(
            "filestore_replicas_doomed",
            "Replicas marked for deletion, which their nodes have yet to delete.",
            sum(counts.doomed.values()),
        )

    def _jobs(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("filestore_job_running", "1 while the job runs.", labels=["job_name"])
        failed = GaugeMetricFamily(
            "filestore_job_failed", "1 if the last finished run of the job failed.", labels=["job_name"]
        )
        completed = GaugeMetricFamily(
            "filestore_job_completed_timestamp_seconds",
            "When a run of the job last completed; 0 if none is recorded.",
            labels=["job_name"],
        )
        running_names = {run.job_name for run in self._ledger.store.running_runs()}
        outcomes = self._ledger.store.job_outcomes()
        for job in JOBS:
            outcome = outcomes.get(job.name, JobOutcome())
            running.add_metric([job.name], int(job.name in running_names))
            failed.add_metric([job.name], int(outcome.has_failed))
            completed.add_metric([job.name], outcome.completed_at_ms / 1000)
        yield from (running, failed, completed)
        sent = GaugeMetricFamily(
            "filestore_offsite_snapshot_timestamp_seconds",
            "When a snapshot of the metadata was last sent to another place; 0 if none is recorded.",
        )
        if self._sends_snapshots:
            sent.add_metric([], outcomes.get(SNAPSHOT.name, JobOutcome()).sent_at_ms / 1000)
        yield sent
        yield from self._amounts()

    def _amounts(self) -> Iterator[Metric]:
        """Yield the amounts of the newest run of each job, all zero without a run."""
        found = {
            run.job_name: amounts_of(run.job_name, _result(run)) for run in self._ledger.store.newest_runs()
        }
        readings: dict[str, tuple[str, Callable[[Amounts], int]]] = {
            "looked": ("Items that the newest run of the job has checked.", lambda a: a.looked),
            "done": ("Items that it has processed: copied, released, dropped, read.", lambda a: a.done),
            "left": ("Items that remain, as far as it knows.", lambda a: a.left or 0),
            "bytes": ("Bytes that it has copied, read or freed.", lambda a: a.size_bytes),
        }
        for name, (text, read) in readings.items():
            gauge = GaugeMetricFamily(f"filestore_job_{name}", text, labels=["job_name"])
            for job in JOBS:
                gauge.add_metric([job.name], read(found[job.name]) if job.name in found else 0)
            yield gauge

    def _disk(self) -> Iterator[Metric]:
        log = self._ledger.log
        yield _gauge("filestore_raft_first_index", "First entry in the log.", log.first_index())
        yield _gauge("filestore_raft_log_size_bytes", "Records of the log's segments.", log.size_bytes())
        with suppress(OSError):  # a failing disk shows elsewhere: the scrape continues without it
            size_bytes = self._files.state.stat().st_size
            yield _gauge("filestore_database_size_bytes", "The database file.", size_bytes)
            yield _gauge("filestore_disk_free_bytes", "Free bytes.", log.free_bytes())
            size_bytes = shutil.disk_usage(self._files.data).total
            yield _gauge("filestore_disk_size_bytes", "All bytes of the disk.", size_bytes)

    def _holds(self, node_id: str) -> bool:
        """Return whether the log names a node for any replica, or an unfinished upload is placed there."""
        store, at_ms = self._ledger.store, now_ms()
        reply = store.answer(ListReplicas(node_id=node_id, limit=1), at_ms=at_ms)
        if msgspec.msgpack.decode(value_of(reply), type=ReplicaPage).replicas:
            return True
        reply = store.answer(ListNodeUploads(node_id=node_id, limit=1), at_ms=at_ms)
        return bool(msgspec.msgpack.decode(value_of(reply), type=UploadPage).uploads)


def _result(run: JobRunRecord) -> dict[str, object]:
    return msgspec.json.decode(run.result, type=dict[str, object]) if run.result else {}


def _counted(name: str, documentation: str, states: Iterable[str], found: Iterable[str]) -> Metric:
    """Return how many are in each state."""
    family = GaugeMetricFamily(name, documentation, labels=["state"])
    counts = Counter(found)
    for state in states:
        family.add_metric([state], counts[state])
    return family


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)

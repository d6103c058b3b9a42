"""The metrics of a node beyond its HTTP requests: bytes in and out, replicas, damage, free space."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from ca.errors import Unavailable
from node.packs.rows import PackFacts

CLIENT_BYTES: Final = ("filestore_upload_bytes", "filestore_download_bytes")
POISON: Final = "filestore_poison_items"
_Piece = TypeVar("_Piece", bytes, bytes | bytearray, bytes | memoryview)


class CustodyStops:
    """Passes that stopped because too many blobs would go at once, until one of their kind succeeds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(
            "filestore_custody_stopped",
            "1 while a pass is stopped at the safety limits: collect, compare or scrub.",
            ["kind"],
            registry=registry,
        )
        for kind in ("collect", "compare", "scrub"):
            self._gauge.labels(kind)
        self._kinds: set[str] = set()
        self._broken_off = Gauge(
            "filestore_custody_broken_off",
            "1 while the node cannot continue with custody (of losses), collect, compare, scrub, packs, "
            "freeze, thaw or chunks.",
            ["kind"],
            registry=registry,
        )
        for kind in ("custody", "collect", "compare", "scrub", "packs", "freeze", "thaw", "chunks"):
            self._broken_off.labels(kind)

    def note_trouble(self, kind: str, error: Exception | None) -> None:
        """Record that work of a kind failed, or succeeded again.

        A lack of answers from the coordinators is reported elsewhere.
        """
        if not isinstance(error, Unavailable):
            self._broken_off.labels(kind).set(error is not None)

    def note(self, kind: str, *, is_stopped: bool) -> None:
        """Record the end of the last pass of this kind."""
        (self._kinds.add if is_stopped else self._kinds.discard)(kind)
        self._gauge.labels(kind).set(is_stopped)

    def kinds(self) -> list[str]:
        """Return the kinds that have stopped."""
        return sorted(self._kinds)


@dataclass(frozen=True, slots=True)
class PackGauges:
    """The metrics of one kind of packs (`node/custody/packing.py`)."""

    packs: Gauge
    records: Gauge
    size: Gauge
    given_back: Counter

    def __post_init__(self) -> None:
        """Show both states from the start, at zero."""
        for state in ("live", "dead"):
            self.size.labels(state)

    def show(self, packs: Sequence[PackFacts]) -> None:
        """Show these packs."""
        self.packs.set(len(packs))
        self.records.set(sum(pack.live_blobs for pack in packs))
        self.size.labels("live").set(sum(pack.live_bytes for pack in packs))
        self.size.labels("dead").set(sum(pack.dead_bytes for pack in packs))


class NodeMetrics:
    """The metrics of one node, in the registry of its process.

    That registry is `runtime.metrics.Metrics.registry`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.upload_bytes = Counter("filestore_upload_bytes", "Content bytes received.", registry=registry)
        self.download_bytes = Counter(
            "filestore_download_bytes",
            "Content bytes sent to clients, by where they were read: local or peer.",
            ["source"],
            registry=registry,
        )
        for source in ("local", "peer"):
            self.download_bytes.labels(source)  # shown from the start, at zero
        self.replica_bytes = Counter(
            "filestore_replica_bytes",
            "Bytes of blobs exchanged with other nodes: sent or received.",
            ["direction"],
            registry=registry,
        )
        for direction in ("sent", "received"):
            self.replica_bytes.labels(direction)
        self.uploads_completed = Counter(
            "filestore_uploads_completed", "Uploads that became available here.", registry=registry
        )
        self.damaged_segments = Counter(
            "filestore_damaged_segments", "Segments whose checksum did not match.", registry=registry
        )
        self._add_custody(registry)
        self.record_reads = Counter(
            "filestore_record_reads",
            "Records looked up for downloads: kept (in the cache) or asked (from a coordinator).",
            ["source"],
            registry=registry,
        )
        for source in ("kept", "asked"):
            self.record_reads.labels(source)
        self.uploads_in_progress = Gauge(
            "filestore_uploads_in_progress", "Requests that are writing an upload.", registry=registry
        )
        # The gauges are read at every scrape. The creator of this object sets their functions.
        self.records_kept = Gauge("filestore_records_kept", "File records in the cache.", registry=registry)
        self.record_lease = Gauge(
            "filestore_record_lease",
            "1 while the lease allows answers from cached records.",
            registry=registry,
        )
        self.disk_free_bytes = Gauge("filestore_disk_free_bytes", "Free bytes.", registry=registry)
        self.disk_size_bytes = Gauge("filestore_disk_size_bytes", "All bytes.", registry=registry)
        self.disk_writable = Gauge(
            "filestore_disk_writable",
            (
                "1 if the last write to the disk was successful within half a minute, and there is room "
                "for more."
            ),
            registry=registry,
        )

        self.poison_items = Gauge(
            POISON,
            "Files and directories on the disk that cannot be used and are skipped.",
            registry=registry,
        )

    def client_bytes(self) -> float:
        """Return how many content bytes clients have sent and received through this process."""
        families = (*self.upload_bytes.collect(), *self.download_bytes.collect())
        return sum(
            sample.value for family in families for sample in family.samples if sample.name.endswith("_total")
        )

    def _add_custody(self, registry: CollectorRegistry) -> None:
        """Add the metrics of this node's replicas (`node/custody/custody.py`)."""
        self.quarantined_blobs = Counter(
            "filestore_quarantined_blobs", "Damaged blobs moved to quarantine.", registry=registry
        )
        self.unknown_blobs = Counter(
            "filestore_unknown_blobs", "Blobs unknown to the log, moved to quarantine.", registry=registry
        )
        self.replicas_dropped = Counter(
            "filestore_replicas_dropped",
            "Replicas deleted because the log had marked them for deletion.",
            registry=registry,
        )
        self.replicas_restored = Counter(
            "filestore_replicas_restored", "Blobs restored from quarantine.", registry=registry
        )
        self.replicas_lost = Counter(
            "filestore_replicas_lost",
            "Replicas reported lost to the log: missing or damaged.",
            ["reason"],
            registry=registry,
        )
        for reason in ("missing", "damaged"):
            self.replicas_lost.labels(reason)
        self.scrubbed_bytes = Counter(
            "filestore_scrubbed_bytes",
            "Bytes of replicas read from the disk to find damage.",
            registry=registry,
        )
        self.scrubbed_since = Gauge(
            "filestore_scrubbed_since_timestamp_seconds",
            "Every replica here was verified, or arrived, after this time; 0 if unknown.",
            registry=registry,
        )
        self.withdrawn_blobs = Gauge(
            "filestore_withdrawn_blobs",
            "Damaged blobs that cannot be moved to quarantine: removed from service where they are.",
            registry=registry,
        )
        self._add_packs(registry)
        self.custody_stops = CustodyStops(registry)
        self.custody_rate = Gauge(
            "filestore_custody_rate",
            "Bytes per second that custody and replication may use now.",
            registry=registry,
        )

    def _add_packs(self, registry: CollectorRegistry) -> None:
        """Add the metrics of packs and of cold replicas, as of their last check."""
        self.packs = PackGauges(
            packs=Gauge("filestore_packs", "Files that hold many small blobs.", registry=registry),
            records=Gauge("filestore_packed_blobs", "Small blobs in packs.", registry=registry),
            size=Gauge(
                "filestore_packed_bytes",
                "Bytes in packs: live (of blobs), or dead (deleted, until their pack is rewritten).",
                ["state"],
                registry=registry,
            ),
            given_back=Counter(
                "filestore_pack_bytes_given_back", "Bytes given back by rewriting packs.", registry=registry
            ),
        )
        self.chunks = PackGauges(
            packs=Gauge("filestore_chunk_packs", "Files that hold chunks.", registry=registry),
            records=Gauge("filestore_chunks", "Chunks of cold replicas, each once.", registry=registry),
            size=Gauge(
                "filestore_chunk_bytes",
                "Bytes of chunks: live, or dead (deleted, until their pack is rewritten).",
                ["state"],
                registry=registry,
            ),
            given_back=Counter(
                "filestore_chunk_bytes_given_back",
                "Bytes given back by rewriting packs of chunks.",
                registry=registry,
            ),
        )
        self.cold_replicas = Gauge(
            "filestore_cold_replicas", "Replicas that are stored as chunks.", registry=registry
        )
        self.cold_bytes = Gauge("filestore_cold_bytes", "Content of cold replicas.", registry=registry)
        self.frozen_bytes = Counter(
            "filestore_frozen_bytes", "Content of replicas that turned cold.", registry=registry
        )
        self.chunks_collected = Counter(
            "filestore_chunks_collected", "Chunks deleted because no replica needs them.", registry=registry
        )
        self.chunks_repaired = Counter(
            "filestore_chunks_repaired", "Damaged chunks fetched from another node.", registry=registry
        )


async def count_bytes(body: AsyncGenerator[_Piece, None], counter: Counter) -> AsyncGenerator[_Piece, None]:
    """Pass the pieces on, and count their bytes once they were consumed; closes `body` at its end."""
    async with aclosing(body):
        async for piece in body:
            yield piece
            counter.inc(len(piece))

"""What a node counts beyond its HTTP requests: bytes in and out, replicas, damage, room."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

_Piece = TypeVar("_Piece", bytes, bytes | bytearray, bytes | memoryview)


class NodeMetrics:
    """The metrics of one node, in the registry of its process (`coordinator.metrics.Metrics.registry`)."""

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
        self.record_reads = Counter(
            "filestore_record_reads",
            "Records looked up for downloads: kept (from memory, no question) or asked (of a coordinator).",
            ["source"],
            registry=registry,
        )
        for source in ("kept", "asked"):
            self.record_reads.labels(source)
        self.quarantined_blobs = Counter(
            "filestore_quarantined_blobs",
            "Blobs taken out of service because they were damaged.",
            registry=registry,
        )
        self.uploads_in_progress = Gauge(
            "filestore_uploads_in_progress", "Requests that write an upload now.", registry=registry
        )
        # The gauges are read at every scrape: whoever makes this object sets their functions.
        self.records_kept = Gauge("filestore_records_kept", "Records in memory.", registry=registry)
        self.record_lease = Gauge(
            "filestore_record_lease", "1 while records may be answered from memory.", registry=registry
        )
        self.disk_free_bytes = Gauge("filestore_disk_free_bytes", "Free bytes.", registry=registry)
        self.disk_size_bytes = Gauge("filestore_disk_size_bytes", "All bytes.", registry=registry)
        self.disk_writable = Gauge(
            "filestore_disk_writable",
            "1 if the disk took bytes within the last half minute.",
            registry=registry,
        )


async def counted(body: AsyncGenerator[_Piece, None], counter: Counter) -> AsyncGenerator[_Piece, None]:
    """The same pieces, their bytes counted once they were taken; `body` is closed with it."""
    async with aclosing(body):
        async for piece in body:
            yield piece
            counter.inc(len(piece))

"""What a node counts beyond its HTTP requests: bytes in and out, replicas, damage, room."""

from prometheus_client import CollectorRegistry, Counter, Gauge


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
        self.replica_bytes = Counter(
            "filestore_replica_bytes",
            "Bytes of blobs exchanged with other nodes: sent or received.",
            ["direction"],
            registry=registry,
        )
        self.uploads_completed = Counter(
            "filestore_uploads_completed", "Uploads that became available here.", registry=registry
        )
        self.damaged_segments = Counter(
            "filestore_damaged_segments", "Segments whose checksum did not match.", registry=registry
        )
        self.uploads_in_progress = Gauge(
            "filestore_uploads_in_progress", "Requests that write an upload now.", registry=registry
        )
        self.disk_free_bytes = Gauge("filestore_disk_free_bytes", "Free bytes.", registry=registry)
        self.disk_size_bytes = Gauge("filestore_disk_size_bytes", "All bytes.", registry=registry)

"""The result of a run for node_exporter's text file collector. Apart from runs, which know no Prometheus.

The server's name, which an operator has given it, is the only label that names something: several servers may
be backed up by one machine. Projects have their ids there, and not their names.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from ca.secretfiles import write_durable
from deploy.gns3.backup import BackupResult

STATUSES = ("stored", "unchanged", "running", "failed", "gone")


def metrics_text(
    server: str,
    results: Sequence[BackupResult],
    *,
    ended_at: float,
    good_at: Mapping[str, float],
    oldest_good_at: float,
) -> bytes:
    """The exposition of one run. Times are seconds since 1970."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"filestore_gns3_{name}", text, ["server", *labels], registry=registry)

    gauge("last_run_timestamp_seconds", "When the last run of backups ended.").labels(server).set(ended_at)
    good = gauge(
        "good_backup_timestamp_seconds",
        "When a project's backup was last known to be as the project is.",
        "project_id",
    )
    for project_id, at in good_at.items():
        good.labels(server, project_id).set(at)
    gauge(
        "oldest_good_backup_timestamp_seconds",
        "The same of the project for which that is the longest ago; without any, when the last one was seen.",
    ).labels(server).set(oldest_good_at)
    counts: Counter[str] = Counter(result.status for result in results)
    projects = gauge("projects", "Projects of the last run, by what became of them.", "status")
    for status in STATUSES:
        projects.labels(server, status).set(counts[status])
    stored = gauge("stored_bytes", "Bytes of projects that the last run has stored.")
    stored.labels(server).set(sum(result.size_bytes for result in results))
    failed_images = gauge("failed_images", "Images that the last run could not store.")
    failed_images.labels(server).set(
        sum(len(result.errors) for result in results if result.status in ("stored", "unchanged"))
    )
    return generate_latest(registry)


def write_metrics(directory: Path, server: str, text: bytes) -> None:
    """Replace this server's file in the directory of the collector, at once. Raises OSError."""
    write_durable(directory / f"filestore_gns3_{server}.prom", text)

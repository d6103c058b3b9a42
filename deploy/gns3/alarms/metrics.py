"""The result of a run for node_exporter's text file collector. Apart from runs, which know no Prometheus.

The server's name, which an operator has given it, is the only label that names something: several servers may
be backed up by one machine. Each server, known by its identity, has a file and series of its own: another
server that gets its name does not end its alert. Projects have their ids there, and not their names.

Tested by tests/unit/deploy/gns3/test_state.py.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ca.errors import Conflict
from ca.secretfiles import write_durable
from deploy.base.failures import Failure
from deploy.gns3 import journal
from deploy.gns3.alarms.reports import told
from deploy.gns3.alarms.rules import OVERDUE_S
from deploy.gns3.backup import BackupResult
from deploy.gns3.identity import ServerIdentity

STATUSES = ("stored", "unchanged", "running", "failed", "gone")


@contextmanager
def recorded(
    server: ServerIdentity, cluster: str, directory: Path | None
) -> Iterator[tuple[journal.Journal, list[BackupResult]]]:
    """Open the journal of a run, and a list for its results.

    However the run ends, also before it reached the server, its metrics are written to `directory`. Raises
    Conflict while another process has the journal, OSError.
    """
    with journal.opened(server, cluster) as remembered:
        remembered.looked(at=time.time())
        results: list[BackupResult] = []
        try:
            yield remembered, results
        finally:
            if directory is not None:
                text = metrics_text(
                    server,
                    results,
                    ended_at=time.time(),
                    good_at=remembered.good_at(),
                    oldest_good_at=remembered.oldest_good_at(),
                    overdue_after_s=remembered.runs.overdue_after_s or OVERDUE_S,
                )
                write_durable(directory / f"filestore_gns3_{server.id}.prom", text)


async def record_unreached(
    server: ServerIdentity,
    cluster: str,
    directory: Path | None,
    error: Failure,
    *,
    expected: tuple[str, float] | None,
    report: Callable[[journal.Journal], Awaitable[object]],
) -> None:
    """Record a run that ended before it reached the server, unless another run is recorded now.

    `expected`: for a run of all projects, the kind of backups and how old a good one may be. `report` is
    awaited with the journal.
    """
    with suppress(Conflict), recorded(server, cluster, directory) as (remembered, _):
        if expected is not None:
            remembered.expect(expected[0], overdue_after_s=expected[1])
            remembered.note_end(told([error]), at=time.time(), of_all=False)
        await report(remembered)


def metrics_text(
    server: ServerIdentity,
    results: Sequence[BackupResult],
    *,
    ended_at: float,
    good_at: Mapping[str, float],
    oldest_good_at: float,
    overdue_after_s: float,
) -> bytes:
    """The exposition of one run. Times are seconds since 1970."""
    from prometheus_client import CollectorRegistry, Gauge  # here: most runs write none
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"filestore_gns3_{name}", text, ["server", "server_id", *labels], registry=registry)

    of = (server.name, server.id)
    gauge("last_run_timestamp_seconds", "When the last run of backups ended.").labels(*of).set(ended_at)
    good = gauge(
        "good_backup_timestamp_seconds",
        "When the backup of a project was last known to be up to date.",
        "project_id",
    )
    for project_id, at in good_at.items():
        good.labels(*of, project_id).set(at)
    gauge(
        "oldest_good_backup_timestamp_seconds",
        (
            "The oldest good_backup_timestamp_seconds of all projects; without projects, when the last "
            "one was seen."
        ),
    ).labels(*of).set(oldest_good_at)
    gauge(
        "overdue_after_seconds", "How old good_backup_timestamp_seconds may be before the alert fires."
    ).labels(*of).set(overdue_after_s)
    counts: Counter[str] = Counter(result.status for result in results)
    projects = gauge("projects", "Projects of the last run, by result.", "status")
    for status in STATUSES:
        projects.labels(*of, status).set(counts[status])
    stored = gauge("stored_bytes", "Bytes of projects that the last run stored.")
    stored.labels(*of).set(sum(result.size_bytes for result in results))
    failed_images = gauge("failed_images", "Images that the last run could not store.")
    failed_images.labels(*of).set(
        sum(len(result.errors) for result in results if result.status in ("stored", "unchanged"))
    )
    return generate_latest(registry)

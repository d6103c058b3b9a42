"""The job `snapshot` of a coordinator for tests."""

from pathlib import Path

from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_steps import SnapshotJob
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles


def snapshot_job(context: ReconcileContext, directory: Path) -> SnapshotJob:
    """Return the job for the coordinator c1 with its files in a directory."""
    config = CoordinatorConfig(id="c1", cluster="test", members=[])
    return SnapshotJob(context, config, CoordinatorFiles(directory))

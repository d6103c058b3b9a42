"""The metrics of a member of the Raft group.

Tested by tests/cluster/test_metrics.py.
"""

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Histogram

from metadata.protocol.calls import CoordinatorStatus
from runtime.metrics import DURATION_BUCKETS_S


class CoordinatorMetrics:
    """The metrics of a member of the Raft group; `status` is called at every scrape."""

    def __init__(self, registry: CollectorRegistry, status: Callable[[], CoordinatorStatus]) -> None:
        readings: dict[str, tuple[str, Callable[[CoordinatorStatus], int]]] = {
            "filestore_raft_term": ("Current term.", lambda s: s.term),
            "filestore_raft_is_leader": ("1 on the leader, 0 elsewhere.", lambda s: int(s.leader == s.id)),
            "filestore_raft_last_index": ("Last entry in the log.", lambda s: s.last_index),
            "filestore_raft_commit_index": ("Last committed entry.", lambda s: s.commit),
            "filestore_raft_applied_index": ("Last entry in the database.", lambda s: s.applied),
            "filestore_raft_followers_active": (
                "Members that answer the leader, including the leader; 0 on other members.",
                lambda s: sum(follower.active for follower in s.followers),
            ),
            "filestore_raft_followers": (
                "Voters and learners, including the leader; 0 on other members.",
                lambda s: len(s.followers),
            ),
            "filestore_raft_lag_entries": (
                "Committed entries that the slowest member lacks; 0 on other members than the leader.",
                lambda s: max((max(s.commit - f.match, 0) for f in s.followers), default=0),
            ),
            "filestore_cache_leases": (
                "Node processes with a lease on cached records; 0 on other members than the leader.",
                lambda s: s.cache_leases,
            ),
            "filestore_coordinator_disk_full": (
                "1 while the disk of this coordinator has no room for changes.",
                lambda s: int(s.disk_full),
            ),
            "filestore_raft_recovering": (
                "1 while this coordinator neither votes nor leads because it has lost the end of its log.",
                lambda s: int(s.recovering),
            ),
            "filestore_coordinator_clock_wrong": (
                "1 while the clock of this coordinator differs from those of most other members.",
                lambda s: int(s.clock_wrong),
            ),
            "filestore_coordinator_clock_jump_seconds": (
                "How far most clocks have jumped ahead of the time that this coordinator keeps; usually 0.",
                lambda s: s.clock_jump_ms // 1000,
            ),
            "filestore_raft_diverged_members": (
                "Members whose state is known to be wrong.",
                lambda s: len(s.diverged),
            ),
            "filestore_raft_states_differ": (
                "1 while members differ and it is unknown whose state is wrong; no snapshot is sent.",
                lambda s: int(s.differ),
            ),
        }
        for name, (help_text, read) in readings.items():
            gauge = Gauge(name, help_text, registry=registry)
            gauge.set_function(lambda read=read: float(read(status())))  # type: ignore[misc]


def timed_sync(registry: CollectorRegistry) -> Callable[[int], None]:
    """Return a function that syncs the data of a descriptor and records the time."""
    durations = Histogram(
        "filestore_raft_log_sync_duration_seconds",
        "Time of one fdatasync of the log.",
        buckets=DURATION_BUCKETS_S,
        registry=registry,
    )

    def sync(descriptor: int) -> None:
        with durations.time():
            os.fdatasync(descriptor)

    return sync

"""Metrics of every process, and those of a coordinator, in Prometheus terms: base units, bounded labels.

Each process has its own registry, handed around, so that several can live in one test. Labels never hold an
id, a name of a user or a path: only route templates, methods and statuses.
"""

import os
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from coordinator.calls import CoordinatorStatus

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# From one answer out of memory to a big file over a slow wire.
DURATION_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0)


class Metrics:
    """The registry of one process, and what its HTTP server counts. `component`: `coordinator` or `node`."""

    def __init__(self, component: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("filestore", "Which part of the product this is.", registry=self.registry).info(
            {"component": component}
        )
        self._requests = Counter(
            "filestore_http_requests",
            "HTTP requests by method, route template and status; 499 is a client that went away.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "filestore_http_request_duration_seconds",
            "Time from the end of the request's headers to the end of its answer.",
            ["method", "route"],
            buckets=DURATION_BUCKETS_S,
            registry=self.registry,
        )
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}  # few: labels are bounded
        self._in_progress: list[Callable[[], int]] = []  # of each listener: a count, read at the scrape
        Gauge(
            "filestore_http_requests_in_progress",
            "HTTP requests being worked on, the scrape included.",
            registry=self.registry,
        ).set_function(lambda: sum(count() for count in self._in_progress))

    def observe_request(self, *, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request. `route` is a template from the router or a fixed word in parentheses."""
        found = self._children.get((method, route, status))
        if found is None:  # looking labels up costs more than counting
            known = method if method in METHODS else "OTHER"
            found = self._requests.labels(known, route, str(status)), self._durations.labels(known, route)
            if known == method:
                self._children[method, route, status] = found
        count, durations = found
        count.inc()
        durations.observe(duration_s)

    def count_in_progress(self, count: Callable[[], int]) -> None:
        """How many requests one more listener of this process works on, whenever it is asked."""
        self._in_progress.append(count)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The text of /metrics and its content type: OpenMetrics if `accept` asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class CoordinatorMetrics:
    """What a member of the Raft group tells about itself; `status` is asked at every scrape."""

    def __init__(self, registry: CollectorRegistry, status: Callable[[], CoordinatorStatus]) -> None:
        readings: dict[str, tuple[str, Callable[[CoordinatorStatus], int]]] = {
            "filestore_raft_term": ("Current term.", lambda s: s.term),
            "filestore_raft_is_leader": ("1 on the leader, 0 elsewhere.", lambda s: int(s.leader == s.id)),
            "filestore_raft_last_index": ("Last entry in the log.", lambda s: s.last_index),
            "filestore_raft_commit_index": ("Last committed entry.", lambda s: s.commit),
            "filestore_raft_applied_index": ("Last entry in the database.", lambda s: s.applied),
            "filestore_raft_followers_active": (
                "Members that the leader hears, itself included; 0 elsewhere.",
                lambda s: sum(follower.active for follower in s.followers),
            ),
            "filestore_raft_lag_entries": (
                "Entries that the member which lags most is behind the commit; 0 but on the leader.",
                lambda s: max((max(s.commit - f.match, 0) for f in s.followers), default=0),
            ),
            "filestore_cache_leases": (
                "Processes of nodes that may keep records of files; 0 but on the leader.",
                lambda s: s.cache_leases,
            ),
            "filestore_coordinator_disk_full": (
                "1 while the disk of this coordinator has no room for changes.",
                lambda s: int(s.disk_full),
            ),
            "filestore_raft_diverged_members": (
                "Other members whose state is known to differ from that of the majority.",
                lambda s: len(s.diverged),
            ),
        }
        for name, (help_text, read) in readings.items():
            gauge = Gauge(name, help_text, registry=registry)
            gauge.set_function(lambda read=read: float(read(status())))  # type: ignore[misc]


def timed_sync(registry: CollectorRegistry) -> Callable[[int], None]:
    """fdatasync of a descriptor, with its time on record."""
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

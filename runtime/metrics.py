"""Metrics of every process, and those of a coordinator, in Prometheus terms: base units, bounded labels.

Each process has its own registry, handed around, so that several can live in one test. Labels never hold an
id, a name of a user or a path: only route templates, methods and statuses.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.version import VERSION

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
ALL_TAKEN: Final = "all_taken"  # why a connection is refused: no connection is accepted then
GREEDY: Final = "greedy_address"  # or others do
# From one answer out of memory to a big file over a slow wire.
DURATION_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0)


class Metrics:
    """The registry of one process, and what its HTTP server counts. `component`: `coordinator` or `node`."""

    def __init__(self, component: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("filestore", "Role and version of this process.", registry=self.registry).info(
            {"component": component, "version": VERSION}
        )
        self._requests = Requests()
        self.registry.register(self._requests)
        self._connections_refused = Counter(
            "filestore_http_connections_refused",
            "Connections refused because there were too many in total, or from one address.",
            labelnames=["cause"],
            registry=self.registry,
        )
        for cause in (ALL_TAKEN, GREEDY):  # a rule meets a zero and no gap
            self._connections_refused.labels(cause)
        self._overrides = Counter(
            "filestore_protection_overrides",
            "Deletions by admins that overrode the protection of files.",
            registry=self.registry,
        )
        self._in_progress: list[Callable[[], int]] = []  # of each listener: a count, read at the scrape
        Gauge(
            "filestore_http_requests_in_progress",
            "HTTP requests in progress, including this scrape.",
            registry=self.registry,
        ).set_function(lambda: sum(count() for count in self._in_progress))

    def connection_refused(self, cause: str) -> None:
        """Count one, of a listener of this process."""
        self._connections_refused.labels(cause).inc()

    def protection_overridden(self) -> None:
        """Count one deletion that overrode the protection of a file."""
        self._overrides.inc()

    def observe_request(self, *, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request. `route` is a template from the router or a fixed word in parentheses."""
        self._requests.observe(method if method in METHODS else "OTHER", route, status, duration_s)

    def count_in_progress(self, count: Callable[[], int]) -> None:
        """How many requests one more listener of this process works on, whenever it is asked."""
        self._in_progress.append(count)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The text of /metrics and its content type: OpenMetrics if `accept` asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class Requests(Collector):
    """How many requests were answered and how long each took. For the event loop alone.

    Counted here and told at the scrape: the library's own counter and histogram, with a lock each, cost five
    times as much for every answer.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._durations: dict[tuple[str, str], _Durations] = {}

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request. The caller bounds the values of `method` and `route`."""
        counted = (method, route, status)
        self._counts[counted] = self._counts.get(counted, 0) + 1
        durations = self._durations.get((method, route))
        if durations is None:
            durations = self._durations[method, route] = _Durations()
        durations.sum_s += duration_s
        durations.counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the request metrics at a scrape."""
        requests = CounterMetricFamily(
            "filestore_http_requests",
            "HTTP requests by method, route template and status; 499 means that the client disconnected.",
            labels=["method", "route", "status"],
        )
        for (method, route, status), count in self._counts.items():
            requests.add_metric([method, route, str(status)], count)
        yield requests
        times = HistogramMetricFamily(
            "filestore_http_request_duration_seconds",
            "Time from the end of the request's headers to the end of the answer.",
            labels=["method", "route"],
        )
        for labels, durations in self._durations.items():
            bounds = [*(str(bound) for bound in DURATION_BUCKETS_S), "+Inf"]
            buckets = list(zip(bounds, itertools.accumulate(durations.counts), strict=True))
            times.add_metric(labels, buckets=buckets, sum_value=durations.sum_s)
        yield times


@dataclass(slots=True)
class _Durations:
    """The durations of one method and route.

    `counts` has the number of each bucket alone, the last without a bound.
    """

    sum_s: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_S) + 1))

"""Adds the numbers of several workers up to those of one node. No I/O here.

A counter or histogram is the sum over all workers that ever ran. A silent worker counts with its last
numbers, and a restarted one also with those before its end, so no sum decreases. A gauge is the sum over the
workers that answer. A number that a node has only once, such as that of its disk, comes from the process
that adds up.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

OF_THE_NODE: Final = frozenset(
    {
        "filestore_certificate_expiry_timestamp_seconds",
        "filestore_clock_offset_seconds",
        "filestore_disk_free_bytes",
        "filestore_disk_size_bytes",
        "filestore_disk_writable",
        "filestore_scrubbed_since_timestamp_seconds",
        "filestore_view_age_seconds",
        "filestore_withdrawn_blobs",  # the first worker includes those of the others
    }
)
EARLIEST: Final = frozenset({"process_start_time_seconds"})  # and all others that say when a number began
_RISING: Final = frozenset({"counter", "histogram", "summary"})
_CREATED: Final = "_created"
_TOTAL: Final = "_total"

_Labels = tuple[tuple[str, str], ...]
_Values = dict[tuple[str, _Labels], float]


class Value(Struct, frozen=True, array_like=True):
    """One sample."""

    name: str
    labels: _Labels
    value: float


class Family(Struct, frozen=True, array_like=True):
    """The samples that share a name, a type and an explanation."""

    name: str
    explanation: str
    kind: str
    unit: str
    values: list[Value]


class WorkerMetrics(Struct, frozen=True, array_like=True):
    """The metrics of one worker. `life` changes with each start of its process."""

    life: str
    families: list[Family]

    def gauge(self, name: str) -> float:
        """Return the sum of a gauge's samples; 0 if there is none of that name."""
        return sum(value.value for family in self.families if family.name == name for value in family.values)


def collect_families(registry: CollectorRegistry) -> list[Family]:
    """Return everything in a registry, as it is now."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [Value(s.name, tuple(sorted(s.labels.items())), s.value) for s in metric.samples],
        )
        for metric in registry.collect()
    ]


class SummedMetrics(CollectorRegistry):
    """Finished metrics, for an encoder."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._made = list(metrics)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics unchanged."""
        return self._made


class WorkerTotals:
    """The numbers of the other workers, including ended ones. Bounded by the number of workers."""

    def __init__(self) -> None:
        self._received: dict[int, WorkerMetrics] = {}
        self._ended = _Sums()

    @property
    def workers(self) -> frozenset[int]:
        """Return the workers whose numbers have arrived."""
        return frozenset(self._received)

    def receive(self, worker: int, numbers: WorkerMetrics) -> None:
        """Store the numbers of a worker."""
        earlier = self._received.get(worker)
        if earlier is not None and earlier.life != numbers.life:
            self._ended.add(earlier.families, kinds=_RISING)
        self._received[worker] = numbers

    def gauge(self, name: str, workers: Collection[int]) -> float:
        """Return the sum of a gauge over these workers, by their last numbers."""
        return sum(numbers.gauge(name) for worker, numbers in self._received.items() if worker in workers)

    def counter(self, name: str) -> float:
        """Return the sum of a counter's samples over all workers that ever ran, by their last numbers."""
        received = [family for numbers in self._received.values() for family in numbers.families]
        return sum(
            value.value
            for family in (*received, *self._ended.families())
            if family.name == name
            for value in family.values
            if value.name == name + _TOTAL
        )

    def total(self, own: list[Family], answering: Collection[int]) -> SummedMetrics:
        """Return the numbers of the node.

        `own` are those of this process, `answering` the workers that answered now.
        """
        sums = _Sums()
        sums.add(own)
        for worker, numbers in sorted(self._received.items()):
            if worker in answering:
                sums.add([family for family in numbers.families if _is_summed(family)])
            else:
                sums.add(numbers.families, kinds=_RISING)
        sums.add(self._ended.families())
        return SummedMetrics(sums.metrics())


class _Sums:
    """Families in which each sample is the sum of those that were added."""

    def __init__(self) -> None:
        self._heads: dict[str, Family] = {}
        self._values: dict[str, _Values] = {}

    def add(self, families: Iterable[Family], *, kinds: Collection[str] | None = None) -> None:
        for family in families:
            if kinds is not None and family.kind not in kinds:
                continue
            self._heads.setdefault(family.name, family)
            values = self._values.setdefault(family.name, {})
            for value in family.values:
                key = value.name, value.labels
                values[key] = _combined(value.name, values.get(key), value.value)

    def families(self) -> list[Family]:
        return [
            Family(head.name, head.explanation, head.kind, head.unit, _listed(self._values[name]))
            for name, head in self._heads.items()
        ]

    def metrics(self) -> list[Metric]:
        found = []
        for family in self.families():
            metric = Metric(family.name, family.explanation, family.kind, family.unit)
            for value in family.values:
                metric.add_sample(value.name, dict(value.labels), value.value)
            found.append(metric)
        return found


def _is_summed(family: Family) -> bool:
    return family.kind != "info" and family.name not in OF_THE_NODE


def _combined(name: str, known: float | None, new: float) -> float:
    if known is None:
        return new
    return min(known, new) if name in EARLIEST or name.endswith(_CREATED) else known + new


def _listed(values: Mapping[tuple[str, _Labels], float]) -> list[Value]:
    return [Value(name, labels, value) for (name, labels), value in values.items()]

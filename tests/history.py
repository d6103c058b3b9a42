"""Is a history of reads and writes linearizable? Many keys, each a register of its own (Herlihy and Wing
1990: a history is linearizable if it is so for every object by itself).

A write with unknown outcome may take effect at any time after its call, or never; one that failed never
does. Where the written values of a key are unique, Gibbons and Korach's zones decide in n log n ("Testing
shared memories", 1997, section 4); otherwise `tests.history_search` searches. No I/O, no clock.

Times are any numbers that grow: an operation comes before another if it returned before the other was
called. Equal times count as concurrent, so a simulator hands in the numbers of its events.
"""

import bisect
import collections
import itertools
import math
from collections.abc import Iterable, Sequence

from tests.history_records import Operation, Value, Violation
from tests.history_search import Undecided, search

__all__ = ["Operation", "Undecided", "Violation", "check"]


def check(history: Iterable[Operation], *, initial: Value = None) -> Violation | None:
    """The first violation by key, or None if the history is linearizable.

    Every register holds `initial` at first. Raises Undecided for a key with repeated values and too many
    orders.
    """
    by_key: dict[str, list[Operation]] = collections.defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key in sorted(by_key):
        operations = by_key[key]
        written = [o.value for o in operations if o.kind == "write" and o.outcome != "failed"]
        unique = len(set(written)) == len(written) and initial not in written
        found = _check_unique(key, operations, initial) if unique else search(key, operations, initial)
        if found is not None:
            return found
    return None


class _Cluster:
    """A write and the reads that found its value; without a write, those that found the initial value."""

    def __init__(self, value: Value, write: Operation | None) -> None:
        self.value = value
        self.write = write
        self.first = write  # the first to return; None while only the initial value is meant
        self.last = write  # the last to be called
        self.is_read = False
        self.shown_after: float = -math.inf  # the last call of a read of this value

    def add_read(self, read: Operation) -> None:
        if self.write is not None and (self.first is None or read.ends_at < self.first.ends_at):
            self.first = read
        if self.last is None or read.called_at > self.last.called_at:
            self.last = read
        self.is_read = True
        self.shown_after = max(self.shown_after, read.called_at)

    @property
    def settled_at(self) -> float:
        """By now its write has taken effect: an operation of it has returned."""
        return -math.inf if self.first is None else self.first.ends_at

    @property
    def needed_at(self) -> float:
        """Until now at least it was current, or had yet to become so: an operation of it is called."""
        return -math.inf if self.last is None else self.last.called_at


def _check_unique(key: str, operations: Sequence[Operation], initial: Value) -> Violation | None:
    clusters = {initial: _Cluster(initial, None)}
    failed = {o.value: o for o in operations if o.kind == "write" and o.outcome == "failed"}
    for operation in operations:
        if operation.kind == "write" and operation.outcome != "failed":
            clusters[operation.value] = _Cluster(operation.value, operation)
    for read in operations:
        if read.kind != "read" or read.outcome != "ok":
            continue
        cluster = clusters.get(read.value)
        if cluster is None:
            return _unwritten(key, read, failed.get(read.value))
        if cluster.write is not None and read.ends_at < cluster.write.called_at:
            return _violation(key, "a read found a value before it was written", cluster.write, read)
        cluster.add_read(read)
    return _check_zones(key, [c for c in clusters.values() if c.is_read or c.settled_at < math.inf])


def _check_zones(key: str, clusters: Sequence[_Cluster]) -> Violation | None:
    """Two values contradict each other when each has an operation wholly before one of the other.

    Gibbons and Korach: if no two do, an order exists. A zone is forward when its value was settled before
    it was needed for the last time: it was current all that time, so no other zone may lie within.
    """
    forward = sorted(
        (c for c in clusters if c.settled_at < c.needed_at), key=lambda c: (c.settled_at, c.needed_at)
    )
    for earlier, later in itertools.pairwise(forward):
        if later.settled_at < earlier.needed_at:
            return _came_back(key, earlier, later)
    starts = [cluster.settled_at for cluster in forward]
    for cluster in clusters:
        at = bisect.bisect_left(starts, cluster.needed_at) - 1
        if cluster.settled_at < cluster.needed_at or at < 0:
            continue
        if cluster.settled_at < forward[at].needed_at:
            return _came_back(key, forward[at], cluster)
    return None


def _came_back(key: str, outer: _Cluster, inner: _Cluster) -> Violation:
    """`outer` was current before and after `inner`, which was current in between."""
    assert outer.last is not None
    if inner.shown_after > outer.last.ends_at:
        kind = "a stale read: an overwritten value was found, and later the newer one again"
    elif inner.write is not None and inner.write.outcome == "unknown":
        kind = "a write of unknown outcome was seen and then unseen"
    else:
        kind = "an overwritten value came back: a lost write, a stale read, or a write applied twice"
    settled = "at first" if outer.first is None else f"by {outer.settled_at:.6g}"
    reason = (
        f"{kind}. {outer.value!r} had taken effect {settled}, before an operation with {inner.value!r} was"
        f" called at {inner.needed_at:.6g}; {inner.value!r} had by {inner.settled_at:.6g}, before"
        f" {outer.value!r} was found by a read called at {outer.needed_at:.6g}: neither can be the first"
    )
    shown = (outer.write, outer.first, inner.write, inner.first, inner.last, outer.last)
    return _violation(key, reason, *(operation for operation in shown if operation is not None))


def _unwritten(key: str, read: Operation, failed: Operation | None) -> Violation:
    if failed is None:
        return _violation(key, "a read found a value that nobody ever wrote", read)
    return _violation(key, "a read found the value of a write that had failed", failed, read)


def _violation(key: str, reason: str, *operations: Operation) -> Violation:
    once = {id(operation): operation for operation in operations}
    return Violation(key, reason, tuple(sorted(once.values(), key=lambda o: (o.called_at, o.ends_at))))

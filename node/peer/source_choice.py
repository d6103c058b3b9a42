"""Which node to ask for the next range of a download. No I/O; the clock is passed in.

One that answers, the faster the rather. The Python client has a copy of this module (`release/client.py`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

REST_S_MIN = 0.5
REST_S_MAX = 8.0
RATE_WEIGHT = 0.5  # of the newest measurement: a node that has recovered is noticed after two ranges
MEASURED_BYTES_MIN = 256 << 10  # what takes less is all round trip, and tells nothing of a rate


@dataclass(slots=True)
class NodeAddress:
    """The state of one node: connections in use, bytes per second of one, and when to try it again."""

    url: str
    in_use: int = 0
    turns: int = 0
    bytes_per_s: float = 0.0  # 0: not measured yet
    failures: int = 0  # since the last success
    rest_s: float = 0.0
    rests_until_s: float = 0.0


class NodeChoice:
    """The nodes of one download. After each `take`: `note_success` or `note_failure`, then `release`."""

    def __init__(self, urls: Sequence[str], *, now: Callable[[], float] = time.monotonic) -> None:
        assert urls
        self._now = now
        self._nodes = [NodeAddress(url) for url in urls]

    def take(self) -> NodeAddress:
        """The node that promises the most for one connection more; in turn while nothing is known.

        Those that failed lately are left out, unless all did: then the one whose rest ends first.
        """
        now_s = self._now()
        awake = [node for node in self._nodes if node.rests_until_s <= now_s]
        if awake:
            best = self.best_bytes_per_s()
            node = min(awake, key=lambda node: ((node.in_use + 1) / (node.bytes_per_s or best), node.turns))
        else:
            node = min(self._nodes, key=lambda node: node.rests_until_s)
        node.in_use += 1
        node.turns += 1
        return node

    @property
    def is_empty(self) -> bool:
        """Whether every node was dropped: there is none to take."""
        return not self._nodes

    def any_awake(self) -> bool:
        """Whether there is a node that has not failed just now."""
        return not all(self.is_resting(node) for node in self._nodes)

    def best_bytes_per_s(self) -> float:
        """Return the rate of one connection to the fastest node; 1 if unknown."""
        return max(node.bytes_per_s for node in self._nodes) or 1.0

    def release(self, node: NodeAddress) -> None:
        """One connection less."""
        assert node.in_use > 0
        node.in_use -= 1

    def record_throughput(self, node: NodeAddress, size_bytes: int, elapsed_s: float) -> None:
        """Record how many bytes one connection received in this time, for complete ranges or not."""
        if size_bytes >= MEASURED_BYTES_MIN or elapsed_s > 1:
            rate = size_bytes / max(elapsed_s, 1e-6)
            old = node.bytes_per_s or rate
            node.bytes_per_s = max(old + RATE_WEIGHT * (rate - old), 1.0)

    def note_success(self, node: NodeAddress) -> None:
        """A range came whole."""
        node.rest_s, node.failures = 0.0, 0

    def is_resting(self, node: NodeAddress) -> bool:
        """Whether it has failed just now."""
        return node.rests_until_s > self._now()

    def drop(self, node: NodeAddress) -> bool:
        """It is asked for nothing more. Whether any other is left."""
        self._nodes = [other for other in self._nodes if other is not node]
        return bool(self._nodes)

    def note_failure(self, node: NodeAddress) -> None:
        """The node refused, broke off or fell silent: it rests, longer each time."""
        node.failures += 1
        node.rest_s = min(max(node.rest_s * 2, REST_S_MIN), REST_S_MAX)
        node.rests_until_s = self._now() + node.rest_s

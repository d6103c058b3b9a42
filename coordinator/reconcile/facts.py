"""The facts for plans: the nodes by the log, and which of them accept bytes now. Pure.

Tested by tests/unit/coordinator/reconcile/test_backoff.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metadata.model.placement import Candidate, zone_of
from metadata.model.records import HEALTHY, NodeRecord

SOURCES_MAX = 16  # of one copy: the limit of a node for an order (node/peerapi/blobs.py)


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster at one moment.

    `reachable`: nodes that answer now, independent of their state in the log.
    """

    nodes: tuple[NodeRecord, ...]
    candidates: tuple[Candidate, ...]
    reachable: frozenset[str]
    replicas: int
    write_quorum: int

    @property
    def counting(self) -> frozenset[str]:
        """Return the nodes whose replicas count in the log, which includes those silent for a moment."""
        return frozenset(n.node_id for n in self.nodes if n.state == HEALTHY and not n.draining)

    @property
    def wanted(self) -> int:
        """Return how many replicas a blob should have: not more than there are nodes to hold them."""
        return min(self.replicas, len([n for n in self.nodes if n.node_id in self.counting and n.peer_port]))

    @property
    def missing_min(self) -> int:
        """Return the fewest missing replicas, as in `blobs.missing`, for which more copies are possible."""
        return self.replicas - self.wanted + 1

    def counting_holders(self, holders: Sequence[str]) -> list[str]:
        """Return the holders of a blob that count."""
        counting = self.counting
        return [node_id for node_id in holders if node_id in counting]

    def zone(self, node_id: str) -> str:
        """Return the zone of a node; its own id if none is set."""
        named = next((node.zone for node in self.nodes if node.node_id == node_id), "")
        return zone_of(node_id, named)

    def sources(self, holders: Sequence[str]) -> tuple[str, ...]:
        """Return nodes that can send a blob, the best first: those that count, then others that answer."""
        good = set(self.counting_holders(holders))
        reachable = [node_id for node_id in holders if node_id in self.reachable]
        return tuple(sorted(reachable, key=lambda node_id: node_id not in good))[:SOURCES_MAX]


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica to make: on `target`, from one of `sources`, or from all of them together (`needs_all`)."""

    sha256: str
    size_bytes: int
    target: str
    sources: tuple[str, ...]
    needs_all: bool = False

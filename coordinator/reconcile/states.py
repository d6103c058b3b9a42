"""Decide which nodes the log should record as down or returning. No I/O here; time is passed in.

A node with a failing disk counts as down: its replicas may be unreadable, and it cannot repair anything. A
full disk keeps its replicas.

Silence is counted in checks, not by the clock alone: a coordinator that was suspended has received no
heartbeats, which says nothing about the nodes. The same applies to the time of a disk failure.
"""

from collections.abc import Iterable
from typing import Literal

from metadata.model.records import DOWN, RETURNING, NodeRecord
from metadata.rpc.node_health import NodeHealth

TICK_S_MAX = 5.0  # of one check: the most that a pause of this process counts

Mark = tuple[str, Literal["down", "returning"]]


class NodeObserver:
    """The time that each node was silent, or its disk failed, while this coordinator was active."""

    def __init__(self) -> None:
        self._looked_at_s: float | None = None
        self._quiet_s: dict[str, float] = {}
        self._failing_s: dict[str, float] = {}
        self._seen: set[str] = set()

    @property
    def failing_nodes(self) -> frozenset[str]:
        """Return the nodes whose disk failed at their last heartbeat."""
        return frozenset(self._failing_s)

    def observe(self, nodes: Iterable[NodeRecord], health: NodeHealth, *, at_s: float) -> None:
        """Record the heartbeats since the last call. A new node starts without silence."""
        before_s, self._looked_at_s = self._looked_at_s, at_s
        tick_s = 0.0 if before_s is None else min(at_s - before_s, TICK_S_MAX)
        last = {node.node_id: health.last(node.node_id) for node in nodes}
        since_s = float("-inf") if before_s is None else before_s
        self._seen = {node_id for node_id, beat in last.items() if beat and beat.at_s > since_s}
        self._quiet_s = {
            node_id: 0.0 if node_id in self._seen else self._quiet_s.get(node_id, -tick_s) + tick_s
            for node_id in last
        }
        self._failing_s = {
            node_id: self._failing_s.get(node_id, -tick_s) + tick_s
            for node_id, beat in last.items()
            if beat and beat.heartbeat.disk_fails
        }

    def marks(self, nodes: Iterable[NodeRecord], *, down_after_s: float) -> list[Mark]:
        """Return the states that the log should record for nodes.

        A node that has never announced itself holds nothing, and keeps its state.
        """
        found: list[Mark] = []
        for node in nodes:
            node_id = node.node_id
            out_s = max(self._quiet_s.get(node_id, 0.0), self._failing_s.get(node_id, 0.0))
            if node.state != DOWN and node.peer_port and out_s >= down_after_s:
                found.append((node_id, DOWN))
            elif node.is_revoked:
                continue  # its last heartbeat was processed before
            elif node.state == DOWN and node_id in self._seen and node_id not in self._failing_s:
                found.append((node_id, RETURNING))
        return found

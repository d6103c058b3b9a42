"""Which nodes the log should call down, and which returning. No I/O here; time is handed in.

Silence is counted in looks, not by the clock alone: a coordinator that slept has heard nobody, which says
nothing about the nodes.
"""

from collections.abc import Iterable
from typing import Literal

from coordinator.health import NodeHealth
from coordinator.records import DOWN, RETURNING, NodeRecord

TICK_S_MAX = 5.0  # of one look: what a pause of this process counts for

Mark = tuple[str, Literal["down", "returning"]]


class Attention:
    """For how long each node was silent while this coordinator listened; leader or not."""

    def __init__(self) -> None:
        self._looked_at_s: float | None = None
        self._quiet_s: dict[str, float] = {}
        self._heard: set[str] = set()

    def look(self, nodes: Iterable[NodeRecord], health: NodeHealth, *, at_s: float) -> None:
        """What was heard since the last look. A node that is new begins with no silence."""
        before_s, self._looked_at_s = self._looked_at_s, at_s
        tick_s = 0.0 if before_s is None else min(at_s - before_s, TICK_S_MAX)
        last = {node.node_id: health.last(node.node_id) for node in nodes}
        since_s = float("-inf") if before_s is None else before_s
        self._heard = {node_id for node_id, heard in last.items() if heard and heard.at_s > since_s}
        self._quiet_s = {
            node_id: 0.0 if node_id in self._heard else self._quiet_s.get(node_id, -tick_s) + tick_s
            for node_id in last
        }

    def marks(self, nodes: Iterable[NodeRecord], *, down_after_s: float) -> list[Mark]:
        """What the log should say of nodes from now on.

        One that has never announced itself holds nothing: it is left as it is.
        """
        found: list[Mark] = []
        for node in nodes:
            quiet_s = self._quiet_s.get(node.node_id, 0.0)
            if node.state != DOWN and node.peer_port and quiet_s >= down_after_s:
                found.append((node.node_id, DOWN))
            elif node.state == DOWN and node.node_id in self._heard:
                found.append((node.node_id, RETURNING))
        return found

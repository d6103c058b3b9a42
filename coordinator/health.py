"""Which nodes this coordinator hears: heartbeats by node, in memory. No I/O here; time is handed in.

Every node sends its heartbeats to every coordinator, so that a new leader knows at once who lives.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.calls import DISK_FAILED, DISK_LOW, DISK_OK, HeartbeatCall
from coordinator.placement import Candidate
from coordinator.records import DOWN, HEALTHY, RETURNING, NodeRecord

PLACEABLE_S = 3.0  # silent for longer: nothing new is placed there
SUSPECT_S = 10.0
DOWN_S = 600.0
REFUSED_S = 30.0  # a process that is refused tries again sooner, and is told of for so long
REPORTS_MIN = 2  # of nodes that cannot reach another
UNREACHABLE: Final = "unreachable"
NODE_STATES: Final = ("joined", HEALTHY, UNREACHABLE, "suspect", DOWN, RETURNING, "draining")  # as shown


@dataclass(frozen=True, slots=True)
class Heard:
    """The last heartbeat of a node; `at_s` on the caller's monotonic clock.

    `clock_offset_ms`: the node's clock less ours, less the way of the heartbeat; None from older versions.
    """

    at_s: float
    heartbeat: HeartbeatCall
    clock_offset_ms: int | None = None


class NodeHealth:
    """The last heartbeat of every node."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._refused: dict[str, tuple[str, float]] = {}  # why, and when last

    def hear(self, node_id: str, heartbeat: HeartbeatCall, *, at_s: float, at_ms: int = 0) -> None:
        """A heartbeat came, at `at_ms` by our clock.

        Only for nodes that have joined, so the table is bounded by theirs.
        """
        is_known = heartbeat.at_ms > 0 and at_ms > 0
        self._heard[node_id] = Heard(at_s, heartbeat, heartbeat.at_ms - at_ms if is_known else None)

    def forget(self, node_id: str) -> None:
        """A node has joined, or was revoked; what was heard under its name was another."""
        self._heard.pop(node_id, None)
        self._refused.pop(node_id, None)

    def refuse(self, node_id: str, why: str, *, at_s: float) -> None:
        """A process with the certificate of this node, which has joined, was refused."""
        self._refused[node_id] = (why, at_s)

    def rival(self, node_id: str, *, at_s: float) -> str:
        """Why a second process that claims to be this node is refused, "" if there was none lately."""
        why, refused_at_s = self._refused.get(node_id, ("", float("-inf")))
        return why if at_s - refused_at_s < REFUSED_S else ""

    def is_silent(self) -> bool:
        """Whether no node was ever heard: this coordinator knows nothing about them yet."""
        return not self._heard

    def last(self, node_id: str) -> Heard | None:
        """The last heartbeat of a node, or None."""
        return self._heard.get(node_id)

    def heard(self, *, at_s: float) -> frozenset[str]:
        """The nodes that answer now, as far as that can be known."""
        return frozenset(self._answering(at_s)) - self._cut_off(at_s)

    def is_cut_off(self, node_id: str, *, at_s: float) -> bool:
        """Whether most of the other nodes that answer now, and two of them at least, cannot reach this one.

        A single one may be the one that is cut off.
        """
        return node_id in self._cut_off(at_s)

    def _answering(self, at_s: float) -> dict[str, Heard]:
        """By node, what was heard lately enough to place something there."""
        return {name: heard for name, heard in self._heard.items() if at_s - heard.at_s < PLACEABLE_S}

    def _cut_off(self, at_s: float) -> frozenset[str]:
        answering = self._answering(at_s)
        reports: Counter[str] = Counter()
        for own_id, heard in answering.items():
            reports.update(set(heard.heartbeat.unreachable) - {own_id})
        return frozenset(
            name
            for name, count in reports.items()
            if count >= REPORTS_MIN and 2 * count > len(answering) - (name in answering)
        )

    def shown_state(self, node: NodeRecord, *, at_s: float) -> str:
        """What an operator is told of a node: what she must act on comes first.

        down or suspect when it is silent, or down because the log says so and nobody has recorded yet that it
        is back; unreachable when most others say so; returning; draining; healthy, or joined.
        """
        state = self.state(node.node_id, at_s=at_s)
        if DOWN in (node.state, state):
            return DOWN
        if state != HEALTHY:
            return state
        if node.state == RETURNING:
            return RETURNING
        return "draining" if node.draining else HEALTHY

    def state(self, node_id: str, *, at_s: float) -> str:
        """healthy, unreachable, suspect, down, or joined when it was never heard here."""
        heard = self._heard.get(node_id)
        if heard is None:
            return "joined"
        silent_s = at_s - heard.at_s
        if silent_s < SUSPECT_S:
            return UNREACHABLE if self.is_cut_off(node_id, at_s=at_s) else HEALTHY
        return "suspect" if silent_s < DOWN_S else "down"

    def disk(self, node_id: str) -> str:
        """How the disk of a node was at its last heartbeat; DISK_OK while there was none."""
        heard = self._heard.get(node_id)
        if heard is None:
            return DISK_OK
        beat = heard.heartbeat
        if not beat.takes_bytes:
            return DISK_FAILED
        if not beat.total_bytes:
            return DISK_OK  # it has not looked yet
        room = Candidate(node_id, "", 1, beat.free_bytes, beat.total_bytes)
        return DISK_OK if room.has_room(0) else DISK_LOW

    def candidates(self, nodes: Iterable[NodeRecord], *, at_s: float) -> list[Candidate]:
        """The nodes that live, that peers can reach, that the log calls healthy, that are not draining and
        whose disk takes bytes, with their room.
        """
        found = []
        answering = self.heard(at_s=at_s)
        for node in nodes:
            if node.node_id not in answering or not node.takes_replicas:
                continue
            beat = self._heard[node.node_id].heartbeat
            if beat.takes_bytes and beat.total_bytes:  # none before it has looked at its disk
                found.append(
                    Candidate(node.node_id, node.zone, node.weight, beat.free_bytes, beat.total_bytes)
                )
        return found

"""The last heartbeat of each node that came to this coordinator, in memory. No I/O here; time is handed in.

Every node sends its heartbeats to every coordinator, so that a new leader knows at once who lives.

Tested by tests/unit/coordinator/test_admission.py.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metadata.model.placement import Candidate
from metadata.model.records import DOWN, HEALTHY, RETURNING, NodeRecord
from metadata.protocol.calls import DISK_FAILED, DISK_FULL, DISK_LOW, DISK_OK, HeartbeatCall

PLACEABLE_S = 4.0  # silent for longer: nothing new is placed there
SUSPECT_S = 10.0
DOWN_S = 600.0
REFUSED_S = 30.0  # how long a rejected process is shown; it tries again sooner
REPORTS_MIN = 2  # of nodes that cannot reach another
UNREACHABLE: Final = "unreachable"
UNHEARD: Final = "unheard"
NODE_STATES: Final = (  # as shown
    "joined",
    UNHEARD,
    HEALTHY,
    UNREACHABLE,
    "suspect",
    DOWN,
    RETURNING,
    "draining",
)
SILENT, DISK, CUSTODY, POISON = "silent", "disk", "custody", "poison"  # what a node may have for a while


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The last heartbeat of a node; `at_s` on the caller's monotonic clock.

    `clock_offset_ms`: the node's clock less ours, less the way of the heartbeat; None if it does not tell.
    `since_ms`: by our clock, when DISK, CUSTODY and POISON were first received in a row.
    """

    at_s: float
    heartbeat: HeartbeatCall
    clock_offset_ms: int | None = None
    since_ms: Mapping[str, int] = field(default_factory=dict)


class NodeHealth:
    """The last heartbeat of every node."""

    def __init__(self) -> None:
        self._heartbeats: dict[str, LastHeartbeat] = {}
        self._refused: dict[str, tuple[str, float]] = {}  # why, and when last
        # nodes that do not know the rules in force, and when they were last active
        self._too_old: dict[str, float] = {}

    def receive(self, node_id: str, heartbeat: HeartbeatCall, *, at_s: float, at_ms: int = 0) -> None:
        """A heartbeat came, at `at_ms` by our clock.

        Only for nodes that have joined, so the table is bounded by theirs.
        """
        is_known, before = heartbeat.at_ms > 0 and at_ms > 0, self._heartbeats.get(node_id)
        since_ms = {
            trouble: at_ms if before is None else before.since_ms.get(trouble, at_ms)
            for trouble in _troubles(heartbeat)
        }
        offset_ms = heartbeat.at_ms - at_ms if is_known else None
        self._heartbeats[node_id] = LastHeartbeat(at_s, heartbeat, offset_ms, since_ms)
        self._too_old.pop(node_id, None)

    def forget(self, node_id: str) -> None:
        """A node has joined, or was revoked; what came under its name was another's."""
        self._heartbeats.pop(node_id, None)
        self._refused.pop(node_id, None)
        self._too_old.pop(node_id, None)

    def refuse(self, node_id: str, why: str, *, at_s: float) -> None:
        """A process with the certificate of this node, which has joined, was refused."""
        self._refused[node_id] = (why, at_s)

    def rival(self, node_id: str, *, at_s: float) -> str:
        """Why a second process that claims to be this node is refused, "" if there was none lately."""
        why, refused_at_s = self._refused.get(node_id, ("", float("-inf")))
        return why if at_s - refused_at_s < REFUSED_S else ""

    def refuse_too_old(self, node_id: str, *, at_s: float) -> bool:
        """A node does not know the rules in force; whether that is new."""
        is_new = not self.is_too_old(node_id, at_s=at_s)
        self._too_old[node_id] = at_s
        return is_new

    def is_too_old(self, node_id: str, *, at_s: float) -> bool:
        """Whether a node was refused lately because it does not know the rules in force."""
        return at_s - self._too_old.get(node_id, float("-inf")) < REFUSED_S

    def rules(self, nodes: Iterable[NodeRecord]) -> dict[str, int]:
        """Return the newest rules that each active node supports; 0 before its first heartbeat.

        Nodes are not active if they are down by the log, have never run, or are revoked.
        """
        found = {}
        for node in nodes:
            if node.state != DOWN and node.peer_port and not node.is_revoked:
                last = self._heartbeats.get(node.node_id)
                found[node.node_id] = 0 if last is None else last.heartbeat.rules
        return found

    def is_silent(self) -> bool:
        """Whether no heartbeat ever came: this coordinator knows nothing about nodes yet."""
        return not self._heartbeats

    def last(self, node_id: str) -> LastHeartbeat | None:
        """The last heartbeat of a node, or None."""
        return self._heartbeats.get(node_id)

    def reachable(self, *, at_s: float) -> frozenset[str]:
        """The nodes that answer now, as far as that can be known."""
        return frozenset(self._answering(at_s)) - self._cut_off(at_s)

    def is_cut_off(self, node_id: str, *, at_s: float) -> bool:
        """Whether most of the other nodes that answer now, and two of them at least, cannot reach this one.

        A single one may be the one that is cut off.
        """
        return node_id in self._cut_off(at_s)

    def _answering(self, at_s: float) -> dict[str, LastHeartbeat]:
        """Return, by node, the heartbeats that are recent enough to place data there."""
        return {name: last for name, last in self._heartbeats.items() if at_s - last.at_s < PLACEABLE_S}

    def _cut_off(self, at_s: float) -> frozenset[str]:
        answering = self._answering(at_s)
        reports: Counter[str] = Counter()
        for own_id, last in answering.items():
            reports.update(set(last.heartbeat.unreachable) - {own_id})
        return frozenset(
            name
            for name, count in reports.items()
            if count >= REPORTS_MIN and 2 * count > len(answering) - (name in answering)
        )

    def shown_state(self, node: NodeRecord, *, at_s: float) -> str:
        """Return the state of a node to show to an operator: a state that needs action comes first.

        down or suspect without heartbeats, or down because the log says so and its return is not recorded
        yet; unreachable if most others say so; returning; draining; healthy. Without any heartbeat so far:
        joined if it has never run, otherwise `unheard`.
        """
        state = self.state(node.node_id, at_s=at_s)
        if DOWN in (node.state, state):
            return DOWN
        if state == "joined" and node.peer_port:
            return UNHEARD
        if state != HEALTHY:
            return state
        if node.state == RETURNING:
            return RETURNING
        return "draining" if node.draining else HEALTHY

    def state(self, node_id: str, *, at_s: float) -> str:
        """healthy, unreachable, suspect, down, or joined when no heartbeat ever came."""
        last = self._heartbeats.get(node_id)
        if last is None:
            return "joined"
        silent_s = at_s - last.at_s
        if silent_s < SUSPECT_S:
            return UNREACHABLE if self.is_cut_off(node_id, at_s=at_s) else HEALTHY
        return "suspect" if silent_s < DOWN_S else "down"

    def disk(self, node_id: str) -> str:
        """How the disk of a node was at its last heartbeat; DISK_OK while there was none."""
        last = self._heartbeats.get(node_id)
        return DISK_OK if last is None else _disk(last.heartbeat)

    def since_ms(self, node_id: str) -> dict[str, int]:
        """Since when a node has the troubles of its last heartbeat, by our clock; {} before its first."""
        last = self._heartbeats.get(node_id)
        return {} if last is None else dict(last.since_ms)

    def candidates(self, nodes: Iterable[NodeRecord], *, at_s: float) -> list[Candidate]:
        """The nodes that may take bytes, with their room.

        They live, peers can reach them, the log calls them healthy, they are not draining, and their disk
        takes bytes or is merely full.
        """
        found = []
        answering = self.reachable(at_s=at_s)
        for node in nodes:
            if node.node_id not in answering or not node.takes_replicas:
                continue
            beat = self._heartbeats[node.node_id].heartbeat
            if (
                beat.takes_bytes or beat.disk_full
            ) and beat.total_bytes:  # none before it has looked at its disk
                found.append(
                    Candidate(node.node_id, node.zone, node.weight, beat.free_bytes, beat.total_bytes)
                )
        return found


def _disk(beat: HeartbeatCall) -> str:
    if beat.disk_full:
        return DISK_FULL
    if not beat.takes_bytes:
        return DISK_FAILED
    if not beat.total_bytes:
        return DISK_OK  # it has not looked yet
    room = Candidate("", "", 1, beat.free_bytes, beat.total_bytes)
    return DISK_OK if room.has_room(0) else DISK_LOW


def _troubles(beat: HeartbeatCall) -> list[str]:
    found = {DISK: _disk(beat) != DISK_OK, CUSTODY: bool(beat.custody_stopped), POISON: beat.poison_count > 0}
    return [trouble for trouble, is_there in found.items() if is_there]

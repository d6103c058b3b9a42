"""How well a cluster is, from what its coordinators say: one word, and each reason. No I/O here."""

from collections.abc import Mapping
from typing import Final

from coordinator.calls import DISK_FAILED, DISK_LOW, DISK_OK, INTERMEDIATE, ROOT, StatusReply
from coordinator.records import DOWN
from coordinator.replica_records import HELD_MAX
from coordinator.telling import counted
from node.api.bodies.coordinators import CoordinatorState, EndingCertificate, NodeState

HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
UNAVAILABLE: Final = "unavailable"
CLOCK_OFFSET_MS_MAX: Final = 5000
_WELL: Final = frozenset({"healthy", "draining"})  # states of nodes that need nobody's attention
_ONCE_DOWN: Final = ": its replicas do not count, and repair makes others"
# Just joined; or heard before by another leader, or before a restore: a new leader has heard nobody.
_UNHEARD: Final = (
    "has not been heard by the coordinator that leads: start it; where it runs, its log says why (after a"
    " restore of the coordinators: `filestore node reconnect`)."
)


def members_are_well(leader: str, coordinators: list[CoordinatorState], nodes: list[NodeState]) -> bool:
    """A leader is known, every coordinator answers, has room and the right state, every node is healthy,
    has its replicas and makes those that it shall, and every disk takes bytes.
    """
    ill = _of_coordinators(coordinators, leader, {}) or _of_nodes(nodes)
    return not (_blockers(leader, coordinators) or ill)


def health_of(
    best: StatusReply,
    leader: str,
    coordinators: list[CoordinatorState],
    nodes: list[NodeState],
    certificates: list[EndingCertificate],
    *,
    is_served: bool = True,
    now: str = "",
) -> tuple[str, list[str]]:
    """HEALTHY, DEGRADED, or UNAVAILABLE when changes or uploads are refused; and why, a sentence each.

    `is_served`: the member that was asked hears of changes. `now` is a time as `rfc3339` writes it.
    """
    blockers = _blockers(leader, coordinators)
    takers = sum(node.state == "healthy" and node.disk == DISK_OK for node in nodes)
    if takers < best.write_quorum:
        blockers.append(f"{_nodes_take(takers)} new files, {best.write_quorum} must: uploads are refused.")
    addresses = {each.coordinator_id: f"{each.address}:{each.peer_port}" for each in best.coordinators}
    others = [
        *["The member that was asked has lost the coordinators and refuses requests."] * (not is_served),
        *_of_coordinators(coordinators, leader, addresses),
        *_of_nodes(nodes),
        *(f"The disk of the node {node.id} is nearly full." for node in nodes if node.disk == DISK_LOW),
        *_of_clocks(coordinators, nodes),
        *_of_replicas(best, takers),
        *(_of_certificate(each, now) for each in certificates),
    ]
    word = UNAVAILABLE if blockers else DEGRADED if others else HEALTHY
    return word, [*blockers, *others]


def _of_certificate(certificate: EndingCertificate, now: str) -> str:
    ends = "ended" if certificate.expires_at <= now else "ends"
    of = f"{certificate.holder} certificate"
    if certificate.holder not in (INTERMEDIATE, ROOT):
        of = f"certificate of {certificate.holder}"
    return f"The {of} {ends} at {certificate.expires_at}."


def _blockers(leader: str, coordinators: list[CoordinatorState]) -> list[str]:
    if not leader:
        return ["No coordinator leads: nothing can be changed."]
    is_full = any(each.id == leader and each.disk_full is True for each in coordinators)
    return [f"The disk of the coordinator {leader}, which leads, is full: changes are refused."] * is_full


def _of_coordinators(
    coordinators: list[CoordinatorState], leader: str, addresses: Mapping[str, str]
) -> list[str]:
    found = []
    for each in coordinators:
        if each.role == "unreachable":
            found.append(f"The coordinator {each.id} does not answer at {addresses.get(each.id, '?')}.")
        if each.role != "unreachable" and each.active is False and each.id != leader:
            found.append(f"The coordinator {each.id} answers, but not to the leader.")
        if each.disk_full is True and each.id != leader:
            found.append(f"The disk of the coordinator {each.id} is full.")
        if each.recovering is True:
            found.append(
                f"The coordinator {each.id} has lost the end of its log: it neither votes nor leads until a"
                " leader of a later term has brought it up to date. Look at its disk."
            )
        if each.diverged:
            found.append(f"The state of the coordinator {each.id} is wrong: rebuild it.")
    return found


def _of_nodes(nodes: list[NodeState]) -> list[str]:
    failed = [
        f"The disk of the node {node.id} takes no bytes{_ONCE_DOWN if node.state == DOWN else ''}."
        for node in nodes
        if node.disk == DISK_FAILED
    ]
    stopped = [
        f"Too many replicas of the node {node.id} would go at once, so a {kind} stopped: see its log."
        for node in nodes
        for kind in node.custody_stopped
    ]
    failing = [
        f"The node {node.id} {node.copy_failures}: see its log." for node in nodes if node.copy_failures
    ]
    poison = [_of_poison(node) for node in nodes if node.poison_count]
    states = [_of_state(node) for node in nodes if node.state not in _WELL]
    rivals = [
        f"A second process claims to be the node {node.id} and is refused: {node.rival}. See the runbook,"
        " FilestoreNodeContested."
        for node in nodes
        if node.rival
    ]
    return [*states, *rivals, *failed, *stopped, *failing, *poison]


def _of_state(node: NodeState) -> str:
    if node.revoked:
        return (
            f"The node {node.id} is revoked: remove it (`filestore node remove --force`), or let it join anew"
            " with a token of its name."
        )
    return (
        f"The node {node.id} {_UNHEARD}" if node.state == "joined" else f"The node {node.id} is {node.state}."
    )


def _of_poison(node: NodeState) -> str:
    more = node.poison_count - len(node.poison)
    told = "; ".join([*node.poison, *[f"{more} more"] * (more > 0)])
    return f"The node {node.id} passes over what it cannot use: {told.removesuffix('.')}."


def _of_replicas(best: StatusReply, takers: int) -> list[str]:
    counts, found = best.replicas, []
    if counts is None:
        return []
    if counts.lost:
        found.append(f"{_several(counts.lost, 'blob')} lost: no node holds a replica.")
    if counts.gone:
        where = f"{counts.gone_bytes} bytes are damaged on every node"
        found.append(
            f"{_several(counts.gone, 'blob')} incomplete: {where}. `filestore damaged` names the files."
        )
    if counts.damaged:
        found.append(
            f"{_several(counts.damaged, 'blob')} damaged on every node, each elsewhere: repair puts the sound"
            " parts together."
        )
    if counts.absent:
        least = "At least " if any(blobs > HELD_MAX for blobs in counts.short.values()) else ""
        where = "only on nodes that are down, or not compared since: bring one back"
        found.append(f"{least}{_several(counts.absent, 'blob')} {where}.")
    if counts.last:
        hope = "stop none, bring another back or add one"
        found.append(f"{_several(counts.last, 'blob')} on one node alone that is there: {hope}.")
    short = sum(counts.short.values()) - counts.absent
    if short > 0:
        cannot = f"{_nodes_take(takers)} replicas, {best.replicas_wanted} must: start or add one"
        hope = cannot if takers < best.replicas_wanted else "repair makes them where nodes have room"
        found.append(f"{_several(short, 'blob')} short of replicas: {hope}.")
    return found


def _several(count: int, noun: str) -> str:
    return counted(count, f"{noun} is", f"{noun}s are")


def _nodes_take(count: int) -> str:
    return counted(count, "node takes", "nodes take")


def _of_clocks(coordinators: list[CoordinatorState], nodes: list[NodeState]) -> list[str]:
    offsets_ms = {f"coordinator {each.id}": each.clock_offset_ms for each in coordinators}
    offsets_ms |= {f"node {each.id}": each.clock_offset_ms for each in nodes}
    return [
        f"The clock of the {name} is {offset_ms} ms from most others'."
        for name, offset_ms in offsets_ms.items()
        if isinstance(offset_ms, int) and abs(offset_ms) > CLOCK_OFFSET_MS_MAX
    ]

"""How well a cluster is, from what its coordinators say: one word, and each reason. No I/O here."""

from collections.abc import Mapping
from typing import Final

from api.bodies.coordinators import CoordinatorState, EndingCertificate, Finding, NodeState
from metadata.model.records import DOWN
from metadata.model.replica_records import HELD_MAX, ReplicaCounts
from metadata.protocol.calls import (
    DISK_FAILED,
    DISK_FULL,
    DISK_LOW,
    DISK_OK,
    FOR_BROWSERS,
    INTERMEDIATE,
    ROOT,
    NodeStatus,
    StatusReply,
)
from metadata.rpc.node_health import CUSTODY, DISK, POISON, SILENT, UNHEARD, UNREACHABLE
from runtime.timestamps import rfc3339
from runtime.wording import counted, duration

HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
UNAVAILABLE: Final = "unavailable"
CLOCK_OFFSET_MS_MAX: Final = 5000
_MIB: Final = 1 << 20
_WELL: Final = frozenset({"healthy", "draining"})  # states of nodes that need no attention
_SILENT: Final = frozenset({DOWN, "suspect"})
_DIFFER: Final = (
    "The states of coordinators differ, and it is not known yet which one is wrong. Until then, a "
    "coordinator that lags receives no snapshot."
)
_ONCE_DOWN: Final = ": its replicas do not count, and repair creates others"
_START: Final = (
    "start it. If it runs, its log says why (after a restore of the coordinators: `filestore node "
    "reconnect`)."
)

Since = Mapping[str, Mapping[str, str]]  # by node, and then by what it has: a time


def members_are_well(leader: str, coordinators: list[CoordinatorState], nodes: list[NodeState]) -> bool:
    """Return whether all members are healthy.

    They are if a leader is known, every coordinator answers, has room and the right state, every node is
    healthy, has its replicas and creates its assigned ones, and every disk can be written.
    """
    ill = _of_coordinators(coordinators, leader, {}) or _of_nodes(nodes, {})
    return not (_blockers(leader, coordinators) or ill)


def since_of(node: NodeStatus, best: StatusReply) -> dict[str, str]:
    """Since when a node has each of its troubles, as a time by what most clocks show."""
    if not best.at_ms:
        return {}
    times_ms = dict(node.since_ms)
    if node.heard_ms_ago:
        times_ms[SILENT] = best.at_ms - node.heard_ms_ago
    return {trouble: rfc3339(max(at_ms + best.correction_ms, 0)) for trouble, at_ms in times_ms.items()}


def findings_of(
    best: StatusReply,
    leader: str,
    coordinators: list[CoordinatorState],
    nodes: list[NodeState],
    certificates: list[EndingCertificate],
    *,
    is_served: bool = True,
    now: str = "",
    since: Since | None = None,
) -> tuple[str, list[Finding]]:
    """HEALTHY, DEGRADED, or UNAVAILABLE when changes or uploads are refused; and why, a sentence each.

    `is_served`: the member that was asked learns of changes. `now` is a time as `rfc3339` writes it; `since`
    is what `since_of` returns for the nodes.
    """
    blockers = _blockers(leader, coordinators)
    takers = sum(node.state == "healthy" and node.disk == DISK_OK for node in nodes)
    if takers < best.write_quorum:
        refused = f"{_nodes_take(takers)} new files, {best.write_quorum} are required: uploads are rejected."
        blockers.append(Finding(problem=refused, runbook="FilestoreTooFewNodes"))
    addresses = {each.coordinator_id: f"{each.address}:{each.peer_port}" for each in best.coordinators}
    lost = "The member that was asked has lost contact with the coordinators and rejects requests."
    others = [
        *[Finding(problem=lost, runbook="FilestoreViewStale")] * (not is_served),
        *_of_coordinators(coordinators, leader, addresses),
        *[Finding(problem=_DIFFER, runbook="FilestoreCoordinatorsDiffer")] * best.coordinator.differ,
        *_of_nodes(nodes, since or {}),
        *_of_room(nodes, since or {}),
        *(_of_blocked(node) for node in nodes if node.blocked_dead_bytes),
        *_of_clocks(coordinators, nodes),
        *_of_jump(best.coordinator.clock_jump_ms),
        *_of_replicas(best, takers),
        *_of_drains(nodes, best.replicas_wanted),
        *(_of_certificate(each, now) for each in certificates),
    ]
    health = UNAVAILABLE if blockers else DEGRADED if others else HEALTHY
    return health, [*blockers, *others]


def _of_certificate(certificate: EndingCertificate, now: str) -> Finding:
    has_ended = certificate.expires_at <= now
    is_member = certificate.holder not in (INTERMEDIATE, ROOT)
    of = f"certificate of {certificate.holder}" if is_member else f"{certificate.holder} certificate"
    runbook = "FilestoreCertificateNotRenewed" if is_member else "FilestoreAuthorityExpires"
    if certificate.holder.endswith(FOR_BROWSERS):
        runbook = "FilestoreWebCertificateExpires"
    return Finding(
        problem=f"The {of} {'expired' if has_ended else 'expires'} at {certificate.expires_at}.",
        runbook=runbook,
        since=certificate.expires_at if has_ended else "",
    )


def _blockers(leader: str, coordinators: list[CoordinatorState]) -> list[Finding]:
    if not leader:
        unled = "No coordinator leads: nothing can be changed."
        return [Finding(problem=unled, runbook="FilestoreNoLeader")]
    is_full = any(each.id == leader and each.disk_full is True for each in coordinators)
    refused = f"The disk of the leading coordinator {leader} is full: changes are rejected."
    return [Finding(problem=refused, runbook="FilestoreCoordinatorDiskFull")] * is_full


def _of_coordinators(
    coordinators: list[CoordinatorState], leader: str, addresses: Mapping[str, str]
) -> list[Finding]:
    found = []
    for each in coordinators:
        if each.role == "unreachable":
            problem = f"The coordinator {each.id} does not answer at {addresses.get(each.id, '?')}."
            found.append(Finding(problem=problem, runbook="FilestoreCoordinatorSilent"))
        if each.role != "unreachable" and each.active is False and each.id != leader:
            problem = f"The coordinator {each.id} answers, but not to the leader."
            found.append(Finding(problem=problem, runbook="FilestoreCoordinatorSilent"))
        if each.disk_full is True and each.id != leader:
            problem = f"The disk of the coordinator {each.id} is full."
            found.append(Finding(problem=problem, runbook="FilestoreCoordinatorDiskFull"))
        if each.recovering is True:
            problem = (
                f"The coordinator {each.id} has lost the end of its log. It neither votes nor leads "
                "until a leader of a later term has sent it the missing entries. Check its disk."
            )
            found.append(Finding(problem=problem, runbook="FilestoreCoordinatorRecovering"))
        if each.diverged:
            problem = f"The state of the coordinator {each.id} is wrong. Rebuild it."
            found.append(Finding(problem=problem, runbook="FilestoreCoordinatorDiverged"))
    return found


def _of_nodes(nodes: list[NodeState], since: Since) -> list[Finding]:
    stopped = [
        Finding(
            problem=(
                f"A {kind} on the node {node.id} stopped, because it would remove too many "
                "replicas at once. See the node's log."
            ),
            runbook="FilestoreCustodyStopped",
            since=_since(since, node, CUSTODY),
        )
        for node in nodes
        for kind in node.custody_stopped
    ]
    failing = [
        Finding(
            problem=f"The node {node.id} {node.copy_failures}. See its log.",
            runbook="FilestoreNodeFailsCopies",
        )
        for node in nodes
        if node.copy_failures
    ]
    states = [_of_state(node, since) for node in nodes if node.state not in _WELL]
    rivals = [
        Finding(
            problem=f"A second process that claims to be the node {node.id} is rejected: {node.rival}.",
            runbook="FilestoreNodeContested",
        )
        for node in nodes
        if node.rival and node.state != UNHEARD
    ]
    failed = [_of_failed_disk(node, since) for node in nodes if node.disk == DISK_FAILED]
    poison = [_of_poison(node, since) for node in nodes if node.poison_count]
    too_old = [
        Finding(
            problem=(
                f"The node {node.id} is rejected, because its version is older than the cluster "
                "requires. Install the version of the other members."
            ),
            runbook="FilestoreNodeDown",
        )
        for node in nodes
        if node.is_too_old
    ]
    return [*too_old, *states, *rivals, *failed, *stopped, *failing, *poison]


def _of_state(node: NodeState, since: Since) -> Finding:
    problem = f"The node {node.id} is {node.state}."
    if node.revoked:
        problem = (
            f"The node {node.id} is revoked. Remove it (`filestore node remove --force`), or let it "
            "join again with a token for its name."
        )
    elif node.state == UNHEARD and node.rival:
        problem = f"The node {node.id} is rejected: {node.rival}."
    elif node.state == "joined":
        problem = f"The node {node.id} has never run, as far as the current leader knows: {_START}"
    elif node.state == UNHEARD:
        problem = (
            f"The node {node.id} has sent no heartbeat to the current leader yet, and was last "
            f"recorded as {node.recorded}: {_START}"
        )
    return Finding(
        problem=problem,
        runbook=_runbook_of(node),
        since=_since(since, node, SILENT) if node.state in _SILENT else "",
    )


def _runbook_of(node: NodeState) -> str:
    if node.revoked or (node.state == UNHEARD and node.rival):
        return "FilestoreNodeContested"
    return "FilestoreNodeUnreachable" if node.state == UNREACHABLE else "FilestoreNodeDown"


def _of_failed_disk(node: NodeState, since: Since) -> Finding:
    more = _ONCE_DOWN if node.state == DOWN else ""
    return Finding(
        problem=f"The disk of the node {node.id} cannot be written{more}.",
        runbook="FilestoreDiskNotWritable",
        since=_since(since, node, DISK),
    )


def _of_room(nodes: list[NodeState], since: Since) -> list[Finding]:
    problems = {
        DISK_LOW: ("is almost full.", "FilestoreDiskLow"),
        DISK_FULL: ("is full: nothing can be written there.", "FilestoreDiskNotWritable"),
    }
    return [
        Finding(
            problem=f"The disk of the node {node.id} {problems[node.disk][0]}",
            runbook=problems[node.disk][1],
            since=_since(since, node, DISK),
        )
        for node in nodes
        if node.disk in problems
    ]


def _of_blocked(node: NodeState) -> Finding:
    """Round up: as much as the sentence asks for is enough."""
    dead, wanted = (-(-size // _MIB) for size in (node.blocked_dead_bytes, node.blocked_wanted_bytes))
    return Finding(
        problem=(
            f"The node {node.id} cannot free {dead} MiB of deleted small files until its disk has "
            f"{wanted} MiB more free space. Delete larger files, or add a node."
        ),
        runbook="FilestoreDiskLow",
    )


def _of_poison(node: NodeState, since: Since) -> Finding:
    more = node.poison_count - len(node.poison)
    items = "; ".join([*node.poison, *[f"{more} more"] * (more > 0)])
    return Finding(
        problem=f"The node {node.id} skips what it cannot use: {items.removesuffix('.')}.",
        runbook="FilestorePoisonItems",
        since=_since(since, node, POISON),
    )


def _since(since: Since, node: NodeState, trouble: str) -> str:
    return since.get(node.id, {}).get(trouble, "")


def _of_replicas(best: StatusReply, takers: int) -> list[Finding]:
    counts, found = best.replicas, []
    if counts is None:
        return []
    if counts.lost:
        problem = f"{_several(counts.lost, 'blob')} lost: no live node holds a replica."
        found.append(Finding(problem=problem, runbook="FilestoreBlobsLost"))
    if counts.gone:
        where = f"{counts.gone_bytes} bytes are damaged on every node"
        problem = f"{_several(counts.gone, 'blob')} incomplete: {where}. `filestore damaged` lists the files."
        found.append(Finding(problem=problem, runbook="FilestoreBlobsIncomplete"))
    if counts.damaged:
        problem = (
            f"{_several(counts.damaged, 'blob')} damaged on every node, but in different places: "
            "repair combines the intact parts."
        )
        found.append(Finding(problem=problem, runbook="FilestoreBlobsDamaged"))
    if counts.absent:
        least = "At least " if _is_cut(counts) else ""
        where = "only on nodes that are down or have not compared their disks since: bring one back"
        problem = f"{least}{_several(counts.absent, 'blob')} {where}."
        found.append(Finding(problem=problem, runbook="FilestoreBlobsLost"))
    if counts.last:
        hope = "do not stop that node; bring another back or add one"
        problem = f"{_several(counts.last, 'blob')} on only one live node: {hope}."
        found.append(Finding(problem=problem, runbook="FilestoreLastReplica"))
    # What only waits to leave a node that drains is on as many nodes as it shall be.
    in_all = sum(counts.short.values())
    short = (in_all if counts.few < 0 else counts.few) - counts.absent
    if short > 0:
        cannot = f"{_nodes_take(takers)} replicas, {best.replicas_wanted} are required: start or add one"
        hope = cannot if takers < best.replicas_wanted else "repair creates them on nodes that have room"
        least = "At least " if counts.few != in_all and _is_cut(counts) else ""
        problem = f"{least}{_several(short, 'blob')} short of replicas: {hope}."
        found.append(Finding(problem=problem, runbook="FilestoreReplicasShort"))
    return found


def _of_drains(nodes: list[NodeState], wanted: int) -> list[Finding]:
    """A replica leaves a node only once enough replicas on other nodes count."""
    others = sum(node.state == "healthy" for node in nodes)
    if others >= wanted:
        return []
    needs, has = counted(wanted, "replica", "replicas"), counted(others, "node is", "nodes are")
    lacking = counted(wanted - others, "node", "nodes")
    return [
        Finding(
            problem=(
                f"The node {node.id} cannot be drained: each blob needs {needs} on other nodes, and {has} "
                f"healthy and not draining. Start or add {lacking}, or end the drain: "
                f"`filestore node undrain {node.id}`."
            ),
            runbook="FilestoreDrainLasts",
        )
        for node in nodes
        if node.state == "draining" and node.replicas
    ]


def _is_cut(counts: ReplicaCounts) -> bool:
    """Whether there are more blobs than the HELD_MAX whose nodes are looked at."""
    return any(blobs > HELD_MAX for blobs in counts.short.values())


def _several(count: int, noun: str) -> str:
    return counted(count, f"{noun} is", f"{noun}s are")


def _nodes_take(count: int) -> str:
    return counted(count, "node takes", "nodes take")


def _of_clocks(coordinators: list[CoordinatorState], nodes: list[NodeState]) -> list[Finding]:
    offsets_ms = {f"coordinator {each.id}": each.clock_offset_ms for each in coordinators}
    offsets_ms |= {f"node {each.id}": each.clock_offset_ms for each in nodes}
    return [
        Finding(
            problem=(
                f"The clock of the {name} is {duration(abs(offset_ms) / 1000)} "
                f"{'ahead of' if offset_ms > 0 else 'behind'} most other clocks."
            ),
            runbook="FilestoreClockOff",
        )
        for name, offset_ms in offsets_ms.items()
        if isinstance(offset_ms, int) and abs(offset_ms) > CLOCK_OFFSET_MS_MAX
    ]


def _of_jump(jump_ms: int) -> list[Finding]:
    way = f"{duration(abs(jump_ms) / 1000)} {'ahead' if jump_ms > 0 else 'back'}"
    meaning = "Expiry waits until both the old and the new time are reached"
    if jump_ms < 0:
        meaning = "The cluster continues with its own time"
    problem = f"Most clocks have jumped {way}. {meaning}, until the clocks are corrected or a day has passed."
    return [Finding(problem=problem, runbook="FilestoreClockOff")] * bool(jump_ms)

"""The coordinators: how they are, and changes of their group."""

from typing import Any, Final

from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.coordinators import (
    AddCoordinatorBody,
    ClusterStatus,
    CoordinatorBody,
    CoordinatorState,
    EndingCertificate,
    HeldContentBody,
    Leader,
    NodeState,
    RemovedCoordinator,
    ReplicaState,
    TransferLeaderBody,
)
from api.bodies.views import shown
from api.cluster import url_of
from api.cluster_health import findings_of, members_are_well, since_of
from api.context import API, ApiServices
from api.jobs import body_of
from api.spec.operation import Answer, OperationTable
from ca.errors import Conflict, InvalidRequest, NotFound, Unavailable
from ca.identity import check_address, check_member_id, check_port
from metadata.model.records import CoordinatorRecord
from metadata.model.snapshot_records import HeldContent
from metadata.protocol.calls import FollowerStatus, NodeStatus, StatusReply
from runtime.clock import now_ms
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_CLUSTER: Final = "/api/v1/cluster"
_COORDINATORS: Final = f"{_CLUSTER}/coordinators"
_TAG: Final = "Cluster"
OPERATIONS: Final = OperationTable(_TAG)


@OPERATIONS.add(
    f"GET {_CLUSTER}/status",
    "get_cluster_status",
    "Show the health of the cluster",
    Answer("The health of the cluster.", ClusterStatus),
)
async def status(request: web.Request) -> web.Response:
    """Show the state of the cluster, as each coordinator sees it. Admins only.

    It is answered without a majority too.
    """
    caller = await authenticate(request, at_any_age=True)
    services = request.app[API]
    replies = await services.metadata.status(caller)
    replied = [reply for reply in replies.values() if reply is not None]
    if not replied:
        raise Unavailable("No coordinator answers.")
    best = max(replied, key=_standing)
    leader = best.coordinator.id if _is_leader(best) else best.coordinator.leader
    coordinators = [_coordinator_state(record, replies, best) for record in best.coordinators]
    nodes = [_node_state(services, node) for node in best.nodes]
    since = {node.node.node_id: since_of(node, best) for node in best.nodes}
    certificates = _certificates(replied)
    is_served = services.view.is_fresh()  # or this member refuses everything but this
    now = rfc3339(now_ms())
    health, findings = findings_of(
        best, leader, coordinators, nodes, certificates, is_served=is_served, now=now, since=since
    )
    answer = shown(
        ClusterStatus,
        best,
        leader=leader,
        healthy=is_served and members_are_well(leader, coordinators, nodes),
        health=health,
        problems=[finding.problem for finding in findings],
        findings=findings,
        coordinators=coordinators,
        nodes=nodes,
        replicas=_replica_state(best),
        replicas_wanted=best.replicas_wanted,
        held=shown(HeldContentBody, best.held or HeldContent()),
        runs=[body_of(run) for run in best.runs],
        certificates=certificates,
    )
    return json_response(answer)


@OPERATIONS.add(
    f"POST {_COORDINATORS}",
    "add_coordinator",
    "Add a coordinator",
    Answer("The coordinator was added as a learner.", CoordinatorBody),
    status=201,
    body=AddCoordinatorBody,
    errors=(Conflict,),
    changes=True,
)
async def add(request: web.Request) -> web.Response:
    """Add a running coordinator to the group. Repeating it changes nothing. Admins only."""
    caller = await authenticate(request)
    body = await read_json(request, AddCoordinatorBody)
    services = request.app[API]
    record = CoordinatorRecord(
        coordinator_id=check_member_id(body.id),
        address=check_address(body.address, development=services.view.current.development, field="address"),
        peer_port=check_port(body.peer_port, "peer_port"),
        api_port=check_port(body.api_port),
    )
    async with audited(request, "add_coordinator", principal=caller.subject, target=record.coordinator_id):
        added = await services.metadata.add_coordinator(caller, record)
    answer = shown(CoordinatorBody, added, id=added.coordinator_id, membership=added.role)
    return json_response(answer, status=201)


@OPERATIONS.add(
    f"DELETE {_COORDINATORS}/{{id}}",
    "remove_coordinator",
    "Remove a coordinator",
    Answer("The coordinator is no longer in the group.", RemovedCoordinator),
    errors=(Conflict,),
    changes=True,
)
async def remove(request: web.Request) -> web.Response:
    """Remove a coordinator permanently. Repeating it is no error. Admins only."""
    caller = await authenticate(request)
    try:
        coordinator_id = check_member_id(request.match_info["id"])
    except InvalidRequest as error:
        raise NotFound(f"There is no coordinator {request.match_info['id']}.") from error
    async with audited(request, "remove_coordinator", principal=caller.subject, target=coordinator_id):
        await request.app[API].metadata.remove_coordinator(caller, coordinator_id)
    return json_response(RemovedCoordinator(deleted=True, id=coordinator_id))


@OPERATIONS.add(
    f"POST {_CLUSTER}/leader",
    "transfer_leader",
    "Transfer the lead to another coordinator",
    Answer("The coordinator that leads now.", Leader),
    body=TransferLeaderBody,
    errors=(Conflict,),
)
async def transfer_leader(request: web.Request) -> web.Response:
    """Transfer the lead to another coordinator, and respond when it leads. Admins only."""
    caller = await authenticate(request)
    body = await read_json(request, TransferLeaderBody)
    target = check_member_id(body.id) if body.id else ""
    async with audited(request, "transfer_leader", principal=caller.subject, target=target):
        leader = await request.app[API].metadata.transfer_leader(caller, target)
    return json_response(Leader(leader=leader))


def _replica_state(best: StatusReply) -> ReplicaState:
    counts = best.replicas
    if counts is None:
        return ReplicaState(
            short={},
            lost=0,
            damaged=0,
            incomplete=0,
            lost_bytes=0,
            absent=0,
            last=0,
            unreferenced=0,
            doomed=0,
        )
    return shown(
        ReplicaState,
        counts,
        short={str(missing): blobs for missing, blobs in sorted(counts.short.items())},
        incomplete=counts.gone,
        lost_bytes=counts.gone_bytes,
        doomed=sum(counts.doomed.values()),
    )


def _is_leader(reply: StatusReply) -> bool:
    return reply.coordinator.role == "leader"


def _standing(reply: StatusReply) -> tuple[bool, int, int]:
    """Return a sort key that is greatest for the best informed reply.

    The leader has it; between two leaders the one of the later term; then the one that has
    applied most.
    """
    return _is_leader(reply), reply.coordinator.term, reply.coordinator.applied


def _certificates(replied: list[StatusReply]) -> list[EndingCertificate]:
    """The certificates that end soon, of all replies, by holder.

    Each coordinator reports its own; all of them report the others, in the same words.
    """
    ends_at_ms = {each.holder: each.expires_at_ms for reply in replied for each in reply.certificates}
    return [
        EndingCertificate(holder=holder, expires_at=rfc3339(expires_at_ms))
        for holder, expires_at_ms in sorted(ends_at_ms.items())
    ]


def _coordinator_state(
    record: CoordinatorRecord, replies: dict[str, StatusReply | None], best: StatusReply
) -> CoordinatorState:
    """Combine what a coordinator and the leader report about the coordinator."""
    own_id = record.coordinator_id
    reply = replies.get(own_id)
    seen = next((each for each in best.coordinator.followers if each.id == own_id), None)
    told = {
        "id": own_id,
        "membership": record.role,
        "diverged": any(own_id in each.coordinator.diverged for each in replies.values() if each is not None),
        **_as_followed(seen, best.coordinator.commit),
    }
    if reply is None:
        return CoordinatorState(role="unreachable", **told)
    has_times = reply.at_ms and best.at_ms
    return shown(
        CoordinatorState,
        reply.coordinator,
        rules=reply.rules_known,
        version=reply.version,
        certificate_expires_at=rfc3339(reply.certificate_ends_at_ms),
        clock_offset_ms=reply.at_ms - best.at_ms - best.correction_ms if has_times else UNSET,
        **told,
    )


def _as_followed(seen: FollowerStatus | None, commit: int) -> dict[str, Any]:
    if seen is None:
        return {}
    lag = max(commit - seen.match, 0)
    return {"match": seen.match, "lag": lag, "replication": seen.state, "active": seen.active}


def _node_state(services: ApiServices, seen: NodeStatus) -> NodeState:
    return shown(
        NodeState,
        seen,
        id=seen.node.node_id,
        url=url_of(services, seen.node),
        zone=seen.node.zone,
        weight=seen.node.weight,
        recorded=seen.node.state,
        revoked=seen.node.is_revoked,
        certificate_expires_at=rfc3339(seen.certificate_ends_at_ms),
    )

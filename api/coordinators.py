"""The coordinators: how they are, and changes of their group."""

from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.coordinators import (
    AddCoordinatorBody,
    ClusterStatus,
    CoordinatorBody,
    CoordinatorState,
    EndingCertificate,
    Leader,
    NodeState,
    RemovedCoordinator,
    ReplicaState,
    TransferLeaderBody,
)
from api.cluster import url_of
from api.cluster_health import findings_of, members_are_well, since_of
from api.context import API, ApiServices
from api.jobs import body_of
from api.spec.operation import Answer, Operation
from ca.errors import Conflict, InvalidRequest, NotFound, Unavailable
from ca.identity import check_address, check_member_id, check_port
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import FollowerStatus, NodeStatus, StatusReply
from runtime.clock import now_ms
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_CLUSTER: Final = "/api/v1/cluster"
_COORDINATORS: Final = f"{_CLUSTER}/coordinators"
_TAG: Final = "Cluster"


async def status(request: web.Request) -> web.Response:
    """It answers without a quorum too. Admins only, by what each coordinator knows."""
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
    answer = ClusterStatus(
        cluster=best.cluster,
        leader=leader,
        rules=best.rules,
        healthy=is_served and members_are_well(leader, coordinators, nodes),
        health=health,
        problems=[finding.problem for finding in findings],
        findings=findings,
        coordinators=coordinators,
        nodes=nodes,
        files=best.files,
        blobs=best.blobs,
        blob_bytes=best.blob_bytes,
        replicas=_replica_state(best),
        runs=[body_of(run) for run in best.runs],
        certificates=certificates,
    )
    return json_response(answer)


async def add(request: web.Request) -> web.Response:
    """A coordinator that runs joins the group; the same again changes nothing. Admins only."""
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
    answer = CoordinatorBody(
        id=added.coordinator_id,
        address=added.address,
        peer_port=added.peer_port,
        api_port=added.api_port,
        membership=added.role,
    )
    return json_response(answer, status=201)


async def remove(request: web.Request) -> web.Response:
    """It leaves for good; one that was removed already is no error. Admins only."""
    caller = await authenticate(request)
    try:
        coordinator_id = check_member_id(request.match_info["id"])
    except InvalidRequest as error:
        raise NotFound(f"There is no coordinator {request.match_info['id']}.") from error
    async with audited(request, "remove_coordinator", principal=caller.subject, target=coordinator_id):
        await request.app[API].metadata.remove_coordinator(caller, coordinator_id)
    return json_response(RemovedCoordinator(deleted=True, id=coordinator_id))


async def transfer_leader(request: web.Request) -> web.Response:
    """Another coordinator leads when this is answered. Admins only."""
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
    return ReplicaState(
        short={str(missing): blobs for missing, blobs in sorted(counts.short.items())},
        lost=counts.lost,
        damaged=counts.damaged,
        incomplete=counts.gone,
        lost_bytes=counts.gone_bytes,
        absent=counts.absent,
        last=counts.last,
        unreferenced=counts.unreferenced,
        doomed=sum(counts.doomed.values()),
    )


def _is_leader(reply: StatusReply) -> bool:
    return reply.coordinator.role == "leader"


def _standing(reply: StatusReply) -> tuple[bool, int, int]:
    """A key by which the best informed reply is the greatest.

    That is the reply of the leader, of two that claim to lead the one of the later term, then of whoever has
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
    """What a coordinator says of itself, and what the leader says of it."""
    own_id = record.coordinator_id
    reply = replies.get(own_id)
    seen = next((each for each in best.coordinator.followers if each.id == own_id), None)
    state = CoordinatorState(
        id=own_id,
        role="unreachable",
        membership=record.role,
        diverged=any(own_id in each.coordinator.diverged for each in replies.values() if each is not None),
        **_as_followed(seen, best.coordinator.commit),
    )
    if reply is None:
        return state
    own = reply.coordinator
    return msgspec.structs.replace(
        state,
        role=own.role,
        term=own.term,
        commit=own.commit,
        applied=own.applied,
        last_index=own.last_index,
        disk_full=own.disk_full,
        recovering=own.recovering,
        version=reply.version,
        rules=reply.rules_known,
        certificate_expires_at=rfc3339(reply.certificate_ends_at_ms or None),
        clock_offset_ms=reply.at_ms - best.at_ms - best.correction_ms
        if reply.at_ms and best.at_ms
        else UNSET,
    )


def _as_followed(seen: FollowerStatus | None, commit: int) -> dict[str, Any]:
    if seen is None:
        return {}
    lag = max(commit - seen.match, 0)
    return {"match": seen.match, "lag": lag, "replication": seen.state, "active": seen.active}


def _node_state(services: ApiServices, seen: NodeStatus) -> NodeState:
    return NodeState(
        id=seen.node.node_id,
        url=url_of(services, seen.node),
        state=seen.state,
        heard_ms_ago=seen.heard_ms_ago,
        free_bytes=seen.free_bytes,
        total_bytes=seen.total_bytes,
        uploads=seen.uploads,
        zone=seen.node.zone,
        weight=seen.node.weight,
        disk=seen.disk,
        recorded=seen.node.state,
        scrubbed_since=rfc3339(seen.scrubbed_since_ms or None),
        custody_stopped=seen.custody_stopped,
        copy_failures=seen.copy_failures,
        poison=seen.poison,
        poison_count=seen.poison_count,
        rival=seen.rival,
        revoked=seen.node.is_revoked,
        version=seen.version,
        rules=seen.rules,
        is_too_old=seen.is_too_old,
        replicas=seen.replicas,
        blocked_dead_bytes=seen.blocked_dead_bytes,
        blocked_wanted_bytes=seen.blocked_wanted_bytes,
        certificate_expires_at=rfc3339(seen.certificate_ends_at_ms or None),
        clock_offset_ms=UNSET if seen.clock_offset_ms is None else seen.clock_offset_ms,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="get_cluster_status",
        tag=_TAG,
        method="GET",
        path=f"{_CLUSTER}/status",
        handler=status,
        summary="Show how the cluster is",
        answers={200: Answer(description="How it is.", body=ClusterStatus)},
    ),
    Operation(
        name="add_coordinator",
        tag=_TAG,
        method="POST",
        path=_COORDINATORS,
        handler=add,
        summary="Add a coordinator",
        body=AddCoordinatorBody,
        answers={201: Answer(description="The coordinator is a learner.", body=CoordinatorBody)},
        errors=(Conflict,),
        changes=True,
    ),
    Operation(
        name="remove_coordinator",
        tag=_TAG,
        method="DELETE",
        path=f"{_COORDINATORS}/{{id}}",
        handler=remove,
        summary="Remove a coordinator",
        answers={200: Answer(description="It is out of the group.", body=RemovedCoordinator)},
        errors=(Conflict,),
        changes=True,
    ),
    Operation(
        name="transfer_leader",
        tag=_TAG,
        method="POST",
        path=f"{_CLUSTER}/leader",
        handler=transfer_leader,
        summary="Let another coordinator lead",
        body=TransferLeaderBody,
        is_body_required=False,
        answers={200: Answer(description="Who leads now.", body=Leader)},
        errors=(Conflict,),
    ),
)

"""Nodes: `/api/v1/cluster/nodes`. Admins only."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from aiohttp import web

from api.access import audited, authenticate
from api.bodies.cluster import MoveNodeBody, NodeBody, NodeList, RemovedNode, RevokedNode
from api.bodies.views import shown
from api.cluster import url_of
from api.context import API, ApiServices
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, numbered_page, page_response, query_flag
from api.spec.operation import Answer, OperationTable, Parameter
from ca.errors import Conflict, InvalidRequest, NotFound, Unavailable
from ca.identity import check_address, check_member_id
from metadata.model.records import DOWN, HEALTHY, Caller, NodeRecord, UploadPage
from metadata.model.replica_records import NodeRemoval, SolePage
from metadata.protocol.calls import StatusReply
from metadata.protocol.commands import DrainNode, ForgetInstance, MoveNode, RemoveNode, RevokeNode
from metadata.protocol.queries import CountSoleReplicas, ListNodes, ListNodeUploads
from metadata.rpc.node_health import PLACEABLE_S
from web.app import json_response, read_json

_NODES: Final = "/api/v1/cluster/nodes"
_NODE: Final = f"{_NODES}/{{id}}"
_TAG: Final = "Cluster"
# States of nodes whose content can be read. A node that has just come back may have lost some.
_THERE: Final = frozenset({HEALTHY, "draining"})
NAMED_MAX: Final = 5  # uploads in a refusal
COUNTED_MAX: Final = 10_000  # blobs that are only on one node
_MAYBE_REMOVAL: type[NodeRemoval | None] = NodeRemoval | None  # type: ignore[assignment]  # as msgspec takes
OPERATIONS: Final = OperationTable(_TAG)


@OPERATIONS.add(
    f"GET {_NODES}",
    "list_nodes",
    "List the nodes",
    Answer("A page of nodes.", NodeList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_all(request: web.Request) -> web.Response:
    """List the nodes that have joined, oldest first. Admins only."""
    nodes = await _nodes(request)
    page, next_cursor = numbered_page(request, numbered(nodes))
    bodies = [_body_of(request.app[API], node) for node in page]
    return page_response(request, NodeList, bodies, next_cursor)


@OPERATIONS.add(f"GET {_NODE}", "get_node", "Show a node", Answer("The node.", NodeBody))
async def get(request: web.Request) -> web.Response:
    """Show a node. Admins only."""
    node_id = request.match_info["id"]
    for node in await _nodes(request):
        if node.node_id == node_id:
            return json_response(_body_of(request.app[API], node))
    raise NotFound(f"There is no node {node_id}.")


@OPERATIONS.add(
    f"PATCH {_NODE}",
    "move_node",
    "Change the address of a node",
    Answer("The node, at its new address.", NodeBody),
    body=MoveNodeBody,
    changes=True,
)
async def move(request: web.Request) -> web.Response:
    """Change the address of a node, once it has a certificate for the new one. Admins only.

    `filestore node set-address`, run on the node's machine, does both.
    """
    caller = await authenticate(request)
    node_id = _path_node(request)
    body = await read_json(request, MoveNodeBody)
    services = request.app[API]
    address = check_address(body.address, development=services.view.current.development, field="address")
    command = MoveNode(caller=caller, node_id=node_id, address=address)
    async with audited(request, "move_node", principal=caller.subject, target=node_id):
        moved = await services.metadata.propose(command, NodeRecord)
    return json_response(_body_of(services, moved))


@OPERATIONS.add(
    f"POST {_NODE}/drain",
    "drain_node",
    "Drain a node",
    Answer("The node, draining.", NodeBody),
    query=(Parameter("force", ("`1`: drain the node even if others need damaged copies that it keeps.")),),
    changes=True,
)
async def drain(request: web.Request) -> web.Response:
    """Place nothing new on the node; its content stays there and is served. Admins only.

    It is a conflict if the node keeps damaged copies with bytes that no other node has, unless `force` is
    set.
    """
    return await _set_draining(request, draining=True)


@OPERATIONS.add(
    f"DELETE {_NODE}/drain",
    "stop_draining_node",
    "Stop draining a node",
    Answer("The node in its previous state.", NodeBody),
    changes=True,
)
async def stop_draining(request: web.Request) -> web.Response:
    """Place new files on the node again. Admins only."""
    return await _set_draining(request, draining=False)


@OPERATIONS.add(
    f"POST {_NODE}/revoke",
    "revoke_node",
    "Revoke the certificates of a node",
    Answer("The node is rejected from now on.", RevokedNode),
    changes=True,
)
async def revoke(request: web.Request) -> web.Response:
    """Revoke the certificates of a node at once, in any state. Admins only.

    This is for a node that was stolen or copied. Its replicas do not count any more. The node stays in the
    list until it is removed, or joins again with a token for its name.
    """
    caller = await authenticate(request)
    node_id = _path_node(request)
    services = request.app[API]
    async with audited(request, "revoke_node", principal=caller.subject, target=node_id):
        removal = await services.metadata.propose(RevokeNode(caller=caller, node_id=node_id), NodeRemoval)
    leader = await _leader(services, caller)
    others = _others_there(leader, node_id)
    body = shown(
        RevokedNode,
        removal,
        revoked=True,
        id=node_id,
        only_there=await _sole(services, node_id, others, count_max=COUNTED_MAX),
        uploads_only_there=await _endangered(services, node_id, frozenset(others), leader.write_quorum),
    )
    return json_response(body)


@OPERATIONS.add(
    f"DELETE {_NODE}/instance",
    "forget_node_instance",
    "Let a node reconnect from another directory",
    Answer("The node, which accepts the next process with its name.", NodeBody),
    changes=True,
)
async def forget_instance(request: web.Request) -> web.Response:
    """Accept the next process that announces itself with this node's certificate. Admins only.

    This is for a node whose directory was restored from a backup. Its replicas count again after they were
    compared with the log.
    """
    caller = await authenticate(request)
    node_id = _path_node(request)
    services = request.app[API]
    command = ForgetInstance(caller=caller, node_id=node_id)
    async with audited(request, "forget_node_instance", principal=caller.subject, target=node_id):
        record = await services.metadata.propose(command, NodeRecord)
    return json_response(_body_of(services, record))


@OPERATIONS.add(
    f"DELETE {_NODE}",
    "remove_node",
    "Remove a node from the cluster",
    Answer("The node is removed.", RemovedNode),
    query=(
        Parameter("force", ("`1`: the node is gone for good, with everything that it holds.")),
        Parameter(
            "give_up", ("`1`: remove the node even if that loses content that no other live node has.")
        ),
        Parameter("is_gone", ("`1`: remove the node before it counts as down. Only with `force`.")),
    ),
    errors=(Conflict,),
)
async def remove(request: web.Request) -> web.Response:
    """Remove a node permanently and revoke its certificates. Admins only.

    The response is a conflict unless the node is draining and has neither replicas nor unfinished uploads.

    With `force`, the node must be recorded as down; or `is_gone` says that it is gone for good, and it must
    send no heartbeats. Its replicas are given up, and created on other nodes if another replica exists. The
    response is also a conflict if no live node has some of its content, or the acknowledged bytes of an
    unfinished upload, unless `give_up` accepts that loss. `give_up` is also required for a node that keeps
    damaged copies with bytes that no other node has.
    """
    caller = await authenticate(request)
    node_id = _path_node(request)
    gives_up = query_flag(request, "give_up")
    command = RemoveNode(
        caller=caller,
        node_id=node_id,
        force=query_flag(request, "force"),
        give_up=gives_up,
        is_gone=query_flag(request, "is_gone"),
    )
    if command.is_gone and not command.force:
        raise InvalidRequest("is_gone: only allowed with force")
    action = "remove_node_by_force" if command.force else "remove_node"
    async with audited(request, action, principal=caller.subject, target=node_id):
        if command.force:
            await _require_expendable(request.app[API], command)
        removal = await _removed(request.app[API], command)
    return json_response(shown(RemovedNode, removal or NodeRemoval(replicas=0), deleted=True, id=node_id))


async def _require_expendable(services: ApiServices, command: RemoveNode) -> None:
    """Raise Conflict if the cluster still needs a node that is to be removed by force.

    That is the case if a node that is said to be gone has just sent a heartbeat. Unless `give_up` is set, it
    is also the case if no other live node has some of its content, as the node or its disk may come back. The
    check includes nodes that are not down, which the log rejects: such a node may be down by then. Raises
    Forbidden for a caller that is not an admin; Unavailable if there is no leader.
    """
    node_id = command.node_id
    leader = await _leader(services, command.caller)
    seen = next((each for each in leader.nodes if each.node.node_id == node_id), None)
    is_down = seen is not None and seen.state == DOWN
    if command.is_gone and seen is not None and not is_down and 0 < seen.heard_ms_ago < PLACEABLE_S * 1000:
        raise Conflict(
            f"{node_id} sent a heartbeat {seen.heard_ms_ago} ms ago, so it is not gone. Stop it first. "
            "If you cannot stop it, or someone else has its certificate: `filestore node revoke "
            f"{node_id}`."
        )
    if command.give_up:
        return
    others = _others_there(leader, node_id)
    sole = await _sole(services, node_id, others, count_max=1)
    if sole and not (is_down or command.is_gone):
        raise Conflict(f"{node_id} is not down and has content that no other node has. Drain it first.")
    if sole:
        raise Conflict(
            f"At least {sole} blobs on {node_id} are on no other live node. Bring one back first, or "
            "accept that this content is lost (--give-up, give_up=1)."
        )
    if named := await _endangered(services, node_id, frozenset(others), leader.write_quorum):
        raise Conflict(
            f"Acknowledged bytes of unfinished uploads may be on no live node except {node_id}: "
            f"{', '.join(named)}. Bring a node back first, or accept that these bytes are lost "
            "(--give-up, give_up=1)."
        )


async def _leader(services: ApiServices, caller: Caller) -> StatusReply:
    """Return the status reply of the leader. Raises Forbidden if the caller is not an admin; Unavailable."""
    replies = (await services.metadata.status(caller)).values()
    leaders = [reply for reply in replies if reply is not None and reply.coordinator.role == "leader"]
    if not leaders:
        raise Unavailable("There is no leading coordinator.")
    return leaders[-1]


def _others_there(leader: StatusReply, node_id: str) -> list[str]:
    states = {each.node.node_id: each.state for each in leader.nodes}
    return [other_id for other_id, state in states.items() if state in _THERE and other_id != node_id]


async def _sole(services: ApiServices, node_id: str, others: list[str], *, count_max: int) -> int:
    """Return how many blobs none of the others has, counted up to `count_max`."""
    page, sole = SolePage(sole=0, after="", more=True), 0
    while page.more and sole < count_max:
        query = CountSoleReplicas(node_id=node_id, others=others, after=page.after)
        page = await services.metadata.read(query, SolePage)
        sole += page.sole
    return sole if count_max == 1 else min(sole, count_max)


async def _endangered(
    services: ApiServices, node_id: str, others: frozenset[str], write_quorum: int
) -> list[str]:
    """The first uploads of this node whose bytes may be on no node among `others`.

    As many nodes as the write quorum of its placement have the bytes of an upload; it is named here when so
    many nodes of the placement are not among `others`.
    """
    named: list[str] = []
    page = UploadPage(uploads=[], more=True)
    after = ""
    while page.more and len(named) < NAMED_MAX:
        page = await services.metadata.read(ListNodeUploads(node_id=node_id, after=after), UploadPage)
        after = page.uploads[-1].file_uuid if page.uploads else after
        for upload in page.uploads:
            elsewhere = [each for each in upload.placement if each not in others]
            if upload.offset_bytes and len(elsewhere) >= write_quorum:
                named.append(f"{upload.file_uuid} ({upload.offset_bytes} bytes)")
    return named[:NAMED_MAX]


async def _removed(services: ApiServices, command: RemoveNode) -> NodeRemoval | None:
    try:
        return await services.metadata.propose(command, _MAYBE_REMOVAL)
    except Conflict as error:
        node = services.view.node(command.node_id)
        if command.force or node is None or node.state != DOWN:
            raise
        raise Conflict(
            f"{error.details} The node is down. If it is gone for good, force its removal."
        ) from error


async def _set_draining(request: web.Request, *, draining: bool) -> web.Response:
    caller = await authenticate(request)
    node_id = _path_node(request)
    services = request.app[API]
    force = draining and query_flag(request, "force")
    command = DrainNode(caller=caller, node_id=node_id, draining=draining, force=force)
    action = "drain_node" if draining else "stop_draining_node"
    async with audited(request, action, principal=caller.subject, target=node_id):
        record = await services.metadata.propose(command, NodeRecord)
    return json_response(_body_of(services, record))


async def _nodes(request: web.Request) -> list[NodeRecord]:
    caller = await authenticate(request)
    return await request.app[API].metadata.read(ListNodes(caller=caller), list[NodeRecord])


def numbered(nodes: Iterable[NodeRecord]) -> Iterator[tuple[int, NodeRecord]]:
    """The nodes in the order in which they joined, each with a number of its own.

    A node has the same number in every list: the millisecond in which it joined; of two with the same one the
    second takes the next number that is free.
    """
    number = 0
    for node in sorted(nodes, key=attrgetter("joined_at_ms", "node_id")):
        number = max(number + 1, node.joined_at_ms)
        yield number, node


def _path_node(request: web.Request) -> str:
    """The id of the node in the path. Raises NotFound: no node has a malformed id."""
    try:
        return check_member_id(request.match_info["id"])
    except InvalidRequest as error:
        raise NotFound(f"There is no node {request.match_info['id']}.") from error


def _body_of(services: ApiServices, record: NodeRecord) -> NodeBody:
    return shown(NodeBody, record, id=record.node_id, url=url_of(services, record))

"""Nodes: `/api/v1/cluster/nodes`. Admins only."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from aiohttp import web

from api.access import audited, authenticate
from api.bodies.cluster import MoveNodeBody, NodeBody, NodeList, RemovedNode, RevokedNode
from api.cluster import url_of
from api.context import API, ApiServices
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, cursor_text, numbered_page, page_response, query_flag
from api.spec.operation import Answer, Operation, Parameter
from ca.errors import Conflict, InvalidRequest, NotFound, Unavailable
from ca.identity import check_address, check_member_id
from metadata.model.records import DOWN, HEALTHY, Caller, NodeRecord, UploadPage
from metadata.model.replica_records import NodeRemoval, SolePage
from metadata.protocol.calls import StatusReply
from metadata.protocol.commands import DrainNode, ForgetInstance, MoveNode, RemoveNode, RevokeNode
from metadata.protocol.queries import CountSoleReplicas, ListNodes, ListNodeUploads
from metadata.rpc.node_health import PLACEABLE_S
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_NODES: Final = "/api/v1/cluster/nodes"
_NODE: Final = f"{_NODES}/{{id}}"
_TAG: Final = "Cluster"
# States of nodes whose content can be read. Of one that has just come back nobody knows what it still has.
_THERE: Final = frozenset({HEALTHY, "draining"})
NAMED_MAX: Final = 5  # uploads in a refusal
COUNTED_MAX: Final = 10_000  # blobs that are only on one node
_MAYBE_REMOVAL: type[NodeRemoval | None] = NodeRemoval | None  # type: ignore[assignment]  # as msgspec takes


async def list_all(request: web.Request) -> web.Response:
    """Every node that has joined, oldest first. Admins only."""
    nodes = await _nodes(request)
    page, next_cursor = numbered_page(request, numbered(nodes))
    bodies = [_body_of(request.app[API], node) for node in page]
    answer = NodeList(count=len(bodies), nodes=bodies, next_cursor=cursor_text(next_cursor))
    return page_response(request, answer, next_cursor)


async def get(request: web.Request) -> web.Response:
    """Admins only."""
    node_id = request.match_info["id"]
    for node in await _nodes(request):
        if node.node_id == node_id:
            return json_response(_body_of(request.app[API], node))
    raise NotFound(f"There is no node {node_id}.")


async def move(request: web.Request) -> web.Response:
    """Others reach the node there from now on, once it has a certificate for it. Admins only.

    `filestore node set-address` on its machine does both.
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


async def drain(request: web.Request) -> web.Response:
    """Nothing new is placed on the node from now on; what it holds stays there and is served. Admins only.

    A conflict where it keeps damaged copies with bytes that no other node has, unless `force` says to go on.
    """
    return await _set_draining(request, draining=True)


async def stop_draining(request: web.Request) -> web.Response:
    """The node takes new files again. Admins only."""
    return await _set_draining(request, draining=False)


async def revoke(request: web.Request) -> web.Response:
    """The certificates of a node are dead at once, whatever its state, and its copies do not count: for one
    that was stolen, or copied. Admins only.

    It stays in the list until it is removed, or joins anew with a token of its name.
    """
    caller = await authenticate(request)
    node_id = _path_node(request)
    services = request.app[API]
    async with audited(request, "revoke_node", principal=caller.subject, target=node_id):
        removal = await services.metadata.propose(RevokeNode(caller=caller, node_id=node_id), NodeRemoval)
    leader = await _leader(services, caller)
    others = _others_there(leader, node_id)
    body = RevokedNode(
        revoked=True,
        id=node_id,
        replicas=removal.replicas,
        uploads=removal.uploads,
        only_there=await _sole(services, node_id, others, count_max=COUNTED_MAX),
        uploads_only_there=await _endangered(services, node_id, frozenset(others), leader.write_quorum),
    )
    return json_response(body)


async def forget_instance(request: web.Request) -> web.Response:
    """Whichever process announces itself next with the certificate of this node speaks for it: for one whose
    directory was put back from a backup. What it holds counts when it was compared. Admins only.
    """
    caller = await authenticate(request)
    node_id = _path_node(request)
    services = request.app[API]
    command = ForgetInstance(caller=caller, node_id=node_id)
    async with audited(request, "forget_node_instance", principal=caller.subject, target=node_id):
        record = await services.metadata.propose(command, NodeRecord)
    return json_response(_body_of(services, record))


async def remove(request: web.Request) -> web.Response:
    """The node leaves for good, and its certificates are revoked. Admins only.

    A conflict unless it is draining and holds nothing any more, unfinished uploads neither. With `force`:
    unless it is recorded as down, or `is_gone` says that it is gone for good, and it is not heard; its copies
    are given up, and made elsewhere as far as others hold them. Also a conflict where no node that is not
    down holds some of it, or may not hold what was acknowledged of an unfinished upload, unless `give_up`
    says that this content is lost. `give_up` is said as well to remove one that keeps damaged copies with
    bytes that no other node has.
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
        raise InvalidRequest("is_gone: only with force")
    action = "remove_node_by_force" if command.force else "remove_node"
    async with audited(request, action, principal=caller.subject, target=node_id):
        if command.force:
            await _require_expendable(request.app[API], command)
        removal = await _removed(request.app[API], command)
    removal = removal or NodeRemoval(replicas=0)
    body = RemovedNode(deleted=True, id=node_id, replicas=removal.replicas, uploads=removal.uploads)
    return json_response(body)


async def _require_expendable(services: ApiServices, command: RemoveNode) -> None:
    """Raises Conflict when the cluster still needs a node that is to be removed by force.

    It does when a node that is said to be gone was heard just now; and, unless `give_up` is set, when no
    other node that is there has some of what this one has: it may come back, or its disk. The same is true of
    one that is not down, which the log refuses: it may be down by then. Raises Forbidden for a caller that is
    no admin, and shall not know; Unavailable when nobody leads.
    """
    node_id = command.node_id
    leader = await _leader(services, command.caller)
    seen = next((each for each in leader.nodes if each.node.node_id == node_id), None)
    is_down = seen is not None and seen.state == DOWN
    if command.is_gone and seen is not None and not is_down and 0 < seen.heard_ms_ago < PLACEABLE_S * 1000:
        raise Conflict(
            f"{node_id} was heard {seen.heard_ms_ago} ms ago, so it is not gone: stop it first. Where that"
            f" cannot be done, or another has its certificate: `filestore node revoke {node_id}`."
        )
    if command.give_up:
        return
    others = _others_there(leader, node_id)
    sole = await _sole(services, node_id, others, count_max=1)
    if sole and not (is_down or command.is_gone):
        raise Conflict(f"{node_id} is not down, and has content that no other node has: drain it.")
    if sole:
        raise Conflict(
            f"Of what {node_id} holds, {sole} blobs or more are on no node that is there: bring one back"
            " first, or say that this content is given up (--give-up, give_up=1)."
        )
    if named := await _endangered(services, node_id, frozenset(others), leader.write_quorum):
        raise Conflict(
            f"What is acknowledged of unfinished uploads may be on no node that is there without {node_id}:"
            f" {', '.join(named)}. Bring one back first, or say that this content is given up (--give-up,"
            " give_up=1)."
        )


async def _leader(services: ApiServices, caller: Caller) -> StatusReply:
    """What the coordinator that leads sees. Raises Forbidden for a caller that is no admin; Unavailable."""
    replies = (await services.metadata.status(caller)).values()
    leaders = [reply for reply in replies if reply is not None and reply.coordinator.role == "leader"]
    if not leaders:
        raise Unavailable("No coordinator leads.")
    return leaders[-1]


def _others_there(leader: StatusReply, node_id: str) -> list[str]:
    states = {each.node.node_id: each.state for each in leader.nodes}
    return [other_id for other_id, state in states.items() if state in _THERE and other_id != node_id]


async def _sole(services: ApiServices, node_id: str, others: list[str], *, count_max: int) -> int:
    """How many blobs none of the others has; what is beyond `count_max` is not looked for."""
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
        raise Conflict(f"{error.details} It is down: if it is gone for good, force its removal.") from error


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
    return NodeBody(
        id=record.node_id,
        url=url_of(services, record),
        address=record.address,
        api_port=record.api_port,
        peer_port=record.peer_port,
        zone=record.zone,
        weight=record.weight,
        joined_at=rfc3339(record.joined_at_ms),
        draining=record.draining,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="list_nodes",
        tag=_TAG,
        method="GET",
        path=_NODES,
        handler=list_all,
        summary="List the nodes",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of nodes.", body=NodeList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="get_node",
        tag=_TAG,
        method="GET",
        path=_NODE,
        handler=get,
        summary="Show a node",
        answers={200: Answer(description="The node.", body=NodeBody)},
    ),
    Operation(
        name="move_node",
        tag=_TAG,
        method="PATCH",
        path=_NODE,
        handler=move,
        summary="Reach a node at another address",
        body=MoveNodeBody,
        answers={200: Answer(description="The node, at its new address.", body=NodeBody)},
        changes=True,
    ),
    Operation(
        name="drain_node",
        tag=_TAG,
        method="POST",
        path=f"{_NODE}/drain",
        handler=drain,
        summary="Place nothing new on a node",
        query=(
            Parameter(name="force", description="`1`: also where others need damaged copies that it keeps."),
        ),
        answers={200: Answer(description="The node, draining.", body=NodeBody)},
        changes=True,
    ),
    Operation(
        name="stop_draining_node",
        tag=_TAG,
        method="DELETE",
        path=f"{_NODE}/drain",
        handler=stop_draining,
        summary="Place new files on a node again",
        answers={200: Answer(description="The node, as it was before.", body=NodeBody)},
        changes=True,
    ),
    Operation(
        name="revoke_node",
        tag=_TAG,
        method="POST",
        path=f"{_NODE}/revoke",
        handler=revoke,
        summary="Revoke the certificates of a node",
        answers={200: Answer(description="The node is shut out.", body=RevokedNode)},
        changes=True,
    ),
    Operation(
        name="forget_node_instance",
        tag=_TAG,
        method="DELETE",
        path=f"{_NODE}/instance",
        handler=forget_instance,
        summary="Let another directory speak for a node",
        answers={200: Answer(description="The node, whoever speaks for it next.", body=NodeBody)},
        changes=True,
    ),
    Operation(
        name="remove_node",
        tag=_TAG,
        method="DELETE",
        path=_NODE,
        handler=remove,
        summary="Remove a node from the cluster",
        query=(
            Parameter(name="force", description="`1`: the node is gone for good, with all that it holds."),
            Parameter(name="give_up", description="`1`: also what no other node has that is not down."),
            Parameter(name="is_gone", description="`1`: before it counts as down; with `force`."),
        ),
        answers={200: Answer(description="The node is removed.", body=RemovedNode)},
        errors=(Conflict,),
    ),
)

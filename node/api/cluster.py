"""The cluster itself: joining it, its authority, its nodes and join tokens."""

from aiohttp import web

from ca.certificates import root_digest
from ca.errors import NotFound, Unauthorized
from ca.identity import check_address, check_member_id, check_port
from ca.jointoken import is_token_id, new_join_token, secret_digest, split_bearer
from coordinator.calls import JoinCall
from coordinator.commands import CreateJoinToken, DeleteJoinToken
from coordinator.queries import ListJoinTokens, ListNodes
from coordinator.records import JoinTokenPage, JoinTokenRecord, NodeRecord
from coordinator.timestamps import rfc3339
from coordinator.web import json_response, read_json
from node.api.access import audited, authenticate, bearer, check_join_rate, refuse_join
from node.api.bodies import (
    ClusterAuthority,
    CoordinatorAddress,
    CreateJoinTokenBody,
    DeletedJoinToken,
    JoinBody,
    JoinResult,
    JoinTokenBody,
    JoinTokenList,
    MintedJoinToken,
    NodeBody,
    NodeList,
)
from node.api.pages import cursor_text, page_response, query_cursor, query_limit
from node.api.services import API, ApiServices

_TOKENS_PATH = "/api/v1/cluster/join-tokens"


async def join(request: web.Request) -> web.Response:
    """POST /api/v1/cluster/join/filestore, with a join token as credential.

    A node id that is taken is a conflict: proving possession of its certificate is not built yet here, so
    such a node is given another id.
    """
    check_join_rate(request)
    services = request.app[API]
    try:
        token_id, secret = split_bearer(bearer(request))
    except Unauthorized as error:
        raise refuse_join(request, error) from error
    body = await read_json(request, JoinBody)
    call = JoinCall(
        token_id=token_id,
        secret_sha256=secret_digest(secret),
        node_id=check_member_id(body.id),
        address=check_address(body.ip_address, development=services.view.current.development),
        api_port=check_port(body.api_port),
        csr=body.csr,
    )
    try:
        async with audited(request, "join", principal=f"join token {token_id}", target=call.node_id):
            reply = await services.metadata.join(call)
    except Unauthorized as error:
        raise refuse_join(request, error) from error
    answer = JoinResult(ca_cert=reply.ca_cert, node_cert=reply.node_cert)
    return json_response(answer, headers={"Cache-Control": "no-store"})


async def authority(request: web.Request) -> web.Response:
    """GET /api/v1/cluster/ca: the root and where the coordinators are. No credential."""
    view = request.app[API].view.current
    coordinators = [
        CoordinatorAddress(
            coordinator_id=record.coordinator_id,
            address=record.address,
            peer_port=record.peer_port,
            api_port=record.api_port,
        )
        for record in view.coordinators
    ]
    return json_response(
        ClusterAuthority(ca_cert=view.root_pem, cluster=view.cluster, coordinators=coordinators)
    )


async def list_nodes(request: web.Request) -> web.Response:
    """GET /api/v1/cluster/nodes: admins only."""
    nodes = await _nodes(request)
    return json_response(NodeList(count=len(nodes), nodes=nodes))


async def get_node(request: web.Request) -> web.Response:
    """GET /api/v1/cluster/nodes/{id}: admins only."""
    for node in await _nodes(request):
        if node.id == request.match_info["id"]:
            return json_response(node)
    raise NotFound("No such node.")


async def create_join_token(request: web.Request) -> web.Response:
    """POST /api/v1/cluster/join-tokens: admins only; the whole token is in this answer and nowhere else."""
    caller = await authenticate(request)
    body = await read_json(request, CreateJoinTokenBody)
    services = request.app[API]
    token = new_join_token(root_digest(services.view.current.root_pem))
    command = CreateJoinToken(
        caller=caller,
        token_id=token.token_id,
        secret_sha256=secret_digest(token.secret),
        node_id=check_member_id(body.node_id, "node_id") if body.node_id else "",
        uses_max=body.max_uses,
        ttl_seconds=body.ttl_seconds,
    )
    async with audited(request, "create_join_token", principal=caller.subject, target=token.token_id):
        record = await services.metadata.propose(command, JoinTokenRecord)
    answer = MintedJoinToken(
        token_id=token.token_id,
        token=token.text,
        expires_at=rfc3339(record.expires_at_ms),
        node_id=record.node_id,
        max_uses=record.uses_max,
    )
    headers = {"Location": f"{_TOKENS_PATH}/{token.token_id}", "Cache-Control": "no-store"}
    return json_response(answer, status=201, headers=headers)


async def list_join_tokens(request: web.Request) -> web.Response:
    """GET /api/v1/cluster/join-tokens: admins only, without the secrets."""
    caller = await authenticate(request)
    query = ListJoinTokens(caller=caller, limit=query_limit(request), cursor=query_cursor(request))
    page = await request.app[API].metadata.read(query, JoinTokenPage)
    tokens = [
        JoinTokenBody(
            token_id=record.token_id,
            node_id=record.node_id,
            max_uses=record.uses_max,
            uses=record.uses,
            created_by=record.created_by,
            created_at=rfc3339(record.created_at_ms),
            expires_at=rfc3339(record.expires_at_ms),
        )
        for record in page.join_tokens
    ]
    answer = JoinTokenList(count=len(tokens), join_tokens=tokens, next_cursor=cursor_text(page.next_cursor))
    return page_response(request, answer, page.next_cursor)


async def delete_join_token(request: web.Request) -> web.Response:
    """DELETE /api/v1/cluster/join-tokens/{token_id}: admins only."""
    caller = await authenticate(request)
    token_id = request.match_info["token_id"]
    if not is_token_id(token_id):
        raise NotFound("No such join token.")  # before it is recorded: somebody may have pasted a whole token
    command = DeleteJoinToken(caller=caller, token_id=token_id)
    async with audited(request, "delete_join_token", principal=caller.subject, target=token_id):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(DeletedJoinToken(deleted=True, token_id=token_id))


async def _nodes(request: web.Request) -> list[NodeBody]:
    caller = await authenticate(request)
    services = request.app[API]
    records = await services.metadata.read(ListNodes(caller=caller), list[NodeRecord])
    return [
        NodeBody(
            id=record.node_id,
            url=url_of(services, record),
            address=record.address,
            api_port=record.api_port,
            peer_port=record.peer_port,
            zone=record.zone,
            weight=record.weight,
            joined_at=rfc3339(record.joined_at_ms),
        )
        for record in records
    ]


def url_of(services: ApiServices, record: NodeRecord) -> str:
    """Where clients reach a node; "" while this member's view does not have it yet."""
    return services.public_url(record.node_id) if services.view.node(record.node_id) is not None else ""

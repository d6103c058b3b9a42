"""The cluster itself: joining it, its authority and its join tokens."""

import re
from typing import Final

from aiohttp import web

from api.access import audited, authenticate, bearer, check_join_rate, refuse_join
from api.bodies.cluster import (
    ClusterAuthority,
    CoordinatorAddress,
    CreateJoinTokenBody,
    DeletedJoinToken,
    Intermediate,
    IntermediateBody,
    JoinBody,
    JoinCoordinatorBody,
    JoinedCoordinator,
    JoinResult,
    JoinTokenBody,
    JoinTokenList,
    MintedJoinToken,
)
from api.context import API, ApiServices
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, cursor_text, page_response, query_cursor, query_limit
from api.spec.operation import NOT_STORED, Answer, Operation
from ca.certificates import UntrustedCertificate, certificates_in, root_digest, serial_hex, validity_ms
from ca.errors import Conflict, InvalidRequest, NotFound, Unauthorized
from ca.identity import check_address, check_member_id, check_port
from ca.jointoken import is_token_id, new_join_token, secret_digest, split_bearer
from ca.setuptoken import ID_PREFIX
from metadata.model.records import CoordinatorRecord, JoinTokenPage, JoinTokenRecord, NodeRecord
from metadata.protocol.calls import JoinCall, JoinCoordinatorCall
from metadata.protocol.commands import AddIntermediate, CreateJoinToken, DeleteJoinToken
from metadata.protocol.queries import CheckJoinSecret, ListJoinTokens
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_CLUSTER: Final = "/api/v1/cluster"
_TOKENS: Final = f"{_CLUSTER}/join-tokens"
_TAG: Final = "Cluster"


async def join(request: web.Request) -> web.Response:
    """Sign the certificate of a node. The credential is a join token.

    A repeated request with the same token, id and key gets the same response for a while. If the node id is
    already used, the response is a conflict, and the node needs another id.
    """
    check_join_rate(request)
    services = request.app[API]
    try:
        token_id, secret = split_bearer(bearer(request))
        secret_sha256 = secret_digest(secret)
        known = CheckJoinSecret(token_id=token_id, secret_sha256=secret_sha256)
        await services.metadata.read(known, type(None))  # a stranger learns nothing about the content
    except Unauthorized as error:
        raise refuse_join(request, error) from error
    body = await read_json(request, JoinBody)
    call = JoinCall(
        token_id=token_id,
        secret_sha256=secret_sha256,
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
    return json_response(answer)


async def join_coordinator(request: web.Request) -> web.Response:
    """Join as a coordinator.

    The credential is a setup token, which is made with the cluster key. Only coordinators answer this.
    """
    check_join_rate(request)
    services = request.app[API]
    try:
        token_id, secret = split_bearer(bearer(request))
        known = CheckJoinSecret(token_id=token_id, secret_sha256=secret_digest(secret))
        await services.metadata.read(known, type(None))
        if services.bundles is not None:
            await services.bundles.require_of_cluster_key(token_id, secret)
    except Unauthorized as error:
        raise refuse_join(request, error) from error
    body = await read_json(request, JoinCoordinatorBody)
    if services.bundles is None:
        raise NotFound("A node cannot create a bundle. Ask a coordinator.")
    development = services.view.current.development
    call = JoinCoordinatorCall(
        token_id=token_id,
        secret_sha256=known.secret_sha256,
        attempt_sha256=secret_digest(body.attempt),
        record=CoordinatorRecord(
            coordinator_id=check_member_id(body.id),
            address=check_address(body.address, development=development, field="address"),
            peer_port=check_port(body.peer_port, "peer_port"),
            api_port=check_port(body.api_port),
        ),
        is_running=body.running,
    )
    action = "add_coordinator" if body.running else "hand_over_bundle"
    try:
        async with audited(request, action, principal=f"join token {token_id}", target=body.id):
            await services.metadata.join_coordinator(call)
            bundle = b"" if body.running else await services.bundles.new()
    except Unauthorized as error:
        raise refuse_join(request, error) from error
    return json_response(JoinedCoordinator(bundle=bundle))


async def authority(request: web.Request) -> web.Response:
    """Return the root certificate. No credential.

    A joiner compares it with the fingerprint in its token.
    """
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


async def add_intermediate(request: web.Request) -> web.Response:
    """Replace the intermediate certificate. Admins only.

    The leader first checks that the cluster can sign with the new one.
    """
    caller = await authenticate(request)
    body = await read_json(request, IntermediateBody)
    try:
        certificate = certificates_in(body.certificate)[0]
    except UntrustedCertificate as error:
        raise InvalidRequest(f"certificate: {error.details}") from error
    command = AddIntermediate(caller=caller, pem=body.certificate, wrapped=body.wrapped_key)
    target = serial_hex(certificate)
    async with audited(request, "add_intermediate", principal=caller.subject, target=target):
        await request.app[API].metadata.propose(command, type(None))
    answer = Intermediate(expires_at=rfc3339(validity_ms(certificate)[1]))
    return json_response(answer, status=201)


async def create_join_token(request: web.Request) -> web.Response:
    """Create a join token. Admins only.

    The whole token is only in this response.
    """
    caller = await authenticate(request)
    body = await read_json(request, CreateJoinTokenBody)
    services = request.app[API]
    token = new_join_token(root_digest(services.view.current.root_pem))
    token_id, secret_sha256, text = token.token_id, secret_digest(token.secret), token.text
    if body.token_id or body.secret_sha256:
        (token_id, secret_sha256), text = _made_elsewhere(body), ""
    command = CreateJoinToken(
        caller=caller,
        token_id=token_id,
        secret_sha256=secret_sha256,
        node_id=check_member_id(body.node_id, "node_id") if body.node_id else "",
        uses_max=body.max_uses,
        ttl_seconds=body.ttl_seconds,
    )
    async with audited(request, "create_join_token", principal=caller.subject, target=token_id):
        record = await services.metadata.propose(command, JoinTokenRecord)
    answer = MintedJoinToken(
        token_id=token_id,
        token=text,
        expires_at=rfc3339(record.expires_at_ms),
        node_id=record.node_id,
        max_uses=record.uses_max,
    )
    return json_response(answer, status=201, headers={"Location": f"{_TOKENS}/{token_id}"})


def _made_elsewhere(body: CreateJoinTokenBody) -> tuple[str, str]:
    """Id and digest of a token whose secret does not come here. Raises InvalidRequest."""
    if not body.token_id.startswith(ID_PREFIX) or not is_token_id(body.token_id):
        raise InvalidRequest(f"token_id: expected {ID_PREFIX} followed by up to 58 of a-z, 0-9 and '-'")
    if not re.fullmatch(r"[0-9a-f]{64}", body.secret_sha256):
        raise InvalidRequest("secret_sha256: expected 64 of 0-9 and a-f")
    return body.token_id, body.secret_sha256


async def list_join_tokens(request: web.Request) -> web.Response:
    """List the join tokens without their secrets, oldest first. Admins only."""
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
    """Revoke a join token. Nodes that have joined with it stay. Admins only."""
    caller = await authenticate(request)
    token_id = request.match_info["token_id"]
    if not is_token_id(token_id):
        # Not recorded in the audit log: it may be a whole token that was pasted.
        raise NotFound("No such join token.")
    command = DeleteJoinToken(caller=caller, token_id=token_id)
    async with audited(request, "delete_join_token", principal=caller.subject, target=token_id):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(DeletedJoinToken(deleted=True, token_id=token_id))


def url_of(services: ApiServices, record: NodeRecord) -> str:
    """Return the address of a node for clients, or "" if this member's view does not have the node yet."""
    return services.node_url(record.node_id) if services.view.node(record.node_id) is not None else ""


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="join_node",
        tag=_TAG,
        method="POST",
        path=f"{_CLUSTER}/join/filestore",
        handler=join,
        summary="Join as a node",
        body=JoinBody,
        answers={200: Answer(description="The node has joined.", body=JoinResult, headers=NOT_STORED)},
        credential="join token",
        errors=(Conflict,),
        changes=True,
    ),
    Operation(
        name="join_coordinator",
        tag=_TAG,
        method="POST",
        path=f"{_CLUSTER}/join/coordinator",
        handler=join_coordinator,
        summary="Join as a coordinator",
        body=JoinCoordinatorBody,
        answers={
            200: Answer(
                description="The data that the new coordinator starts with.",
                body=JoinedCoordinator,
                headers=NOT_STORED,
            )
        },
        credential="join token",
        errors=(Conflict, NotFound),
        changes=True,
    ),
    Operation(
        name="get_authority",
        tag=_TAG,
        method="GET",
        path=f"{_CLUSTER}/ca",
        handler=authority,
        summary="Show the root certificate and where the coordinators are",
        answers={200: Answer(description="The cluster's authority.", body=ClusterAuthority)},
        credential="none",
    ),
    Operation(
        name="add_intermediate",
        tag=_TAG,
        method="POST",
        path=f"{_CLUSTER}/intermediates",
        handler=add_intermediate,
        summary="Replace the intermediate certificate",
        body=IntermediateBody,
        answers={201: Answer(description="The new certificate signs from now on.", body=Intermediate)},
        changes=True,
    ),
    Operation(
        name="create_join_token",
        tag=_TAG,
        method="POST",
        path=_TOKENS,
        handler=create_join_token,
        summary="Mint a join token",
        body=CreateJoinTokenBody,
        is_body_required=False,
        answers={
            201: Answer(
                description="The token, which is shown only once.",
                body=MintedJoinToken,
                headers={"Location": "The path of the new token.", **NOT_STORED},
            )
        },
        changes=True,
    ),
    Operation(
        name="list_join_tokens",
        tag=_TAG,
        method="GET",
        path=_TOKENS,
        handler=list_join_tokens,
        summary="List the join tokens",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of join tokens.", body=JoinTokenList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="delete_join_token",
        tag=_TAG,
        method="DELETE",
        path=f"{_TOKENS}/{{token_id}}",
        handler=delete_join_token,
        summary="Revoke a join token",
        answers={200: Answer(description="The token is revoked.", body=DeletedJoinToken)},
    ),
)

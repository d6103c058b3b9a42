"""Operations on the cluster: join it, show its certificate authority, manage join tokens.

Tested by tests/cluster/test_join.py.
"""

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
from api.bodies.views import shown
from api.context import API, ApiServices
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    page_response,
    page_wanted,
)
from api.spec.operation import NOT_STORED, Answer, OperationTable
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
OPERATIONS: Final = OperationTable(_TAG)


@OPERATIONS.add(
    f"POST {_CLUSTER}/join/filestore",
    "join_node",
    "Join as a node",
    Answer("The node has joined.", JoinResult, headers=NOT_STORED),
    body=JoinBody,
    credential="join token",
    errors=(Conflict,),
    changes=True,
)
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


@OPERATIONS.add(
    f"POST {_CLUSTER}/join/coordinator",
    "join_coordinator",
    "Join as a coordinator",
    Answer("The data that the new coordinator starts with.", JoinedCoordinator, headers=NOT_STORED),
    body=JoinCoordinatorBody,
    credential="join token",
    errors=(Conflict, NotFound),
    changes=True,
)
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


@OPERATIONS.add(
    f"GET {_CLUSTER}/ca",
    "get_authority",
    "Show the root certificate and where the coordinators are",
    Answer("The cluster's authority.", ClusterAuthority),
    credential="none",
)
async def authority(request: web.Request) -> web.Response:
    """Return the root certificate. No credential.

    A joiner compares it with the fingerprint in its token.
    """
    view = request.app[API].view.current
    coordinators = [shown(CoordinatorAddress, record) for record in view.coordinators]
    return json_response(
        ClusterAuthority(ca_cert=view.root_pem, cluster=view.cluster, coordinators=coordinators)
    )


@OPERATIONS.add(
    f"POST {_CLUSTER}/intermediates",
    "add_intermediate",
    "Replace the intermediate certificate",
    Answer("The new certificate signs from now on.", Intermediate),
    status=201,
    body=IntermediateBody,
    changes=True,
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


@OPERATIONS.add(
    f"POST {_TOKENS}",
    "create_join_token",
    "Mint a join token",
    Answer(
        "The token, which is shown only once.",
        MintedJoinToken,
        headers={"Location": "The path of the new token.", **NOT_STORED},
    ),
    status=201,
    body=CreateJoinTokenBody,
    changes=True,
)
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
    answer = shown(MintedJoinToken, record, token=text, max_uses=record.uses_max)
    return json_response(answer, status=201, headers={"Location": f"{_TOKENS}/{token_id}"})


def _made_elsewhere(body: CreateJoinTokenBody) -> tuple[str, str]:
    """Return the id and digest of a token whose secret the client keeps. Raises InvalidRequest."""
    if not body.token_id.startswith(ID_PREFIX) or not is_token_id(body.token_id):
        raise InvalidRequest(f"token_id: expected {ID_PREFIX} followed by up to 58 of a-z, 0-9 and '-'")
    if not re.fullmatch(r"[0-9a-f]{64}", body.secret_sha256):
        raise InvalidRequest("secret_sha256: expected 64 of 0-9 and a-f")
    return body.token_id, body.secret_sha256


@OPERATIONS.add(
    f"GET {_TOKENS}",
    "list_join_tokens",
    "List the join tokens",
    Answer("A page of join tokens.", JoinTokenList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_join_tokens(request: web.Request) -> web.Response:
    """List the join tokens without their secrets, oldest first. Admins only."""
    caller = await authenticate(request)
    page = await request.app[API].metadata.read(
        ListJoinTokens(caller=caller, **page_wanted(request)), JoinTokenPage
    )
    tokens = [shown(JoinTokenBody, record, max_uses=record.uses_max) for record in page.join_tokens]
    return page_response(request, JoinTokenList, tokens, page.next_cursor)


@OPERATIONS.add(
    f"DELETE {_TOKENS}/{{token_id}}",
    "delete_join_token",
    "Revoke a join token",
    Answer("The token is revoked.", DeletedJoinToken),
)
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

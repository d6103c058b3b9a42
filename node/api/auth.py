"""User tokens: minting them, the keys that sign them, and who the caller is."""

from aiohttp import web

from ca.errors import InvalidRequest, NotFound
from ca.usertoken import TTL_SECONDS_MAX, check_names, check_user_id
from coordinator.queries import GetUser
from coordinator.records import UserRecord
from coordinator.timestamps import rfc3339
from coordinator.web import json_response, read_json
from node.api.access import audited, authenticate
from node.api.bodies import KeySet, MintBody, MintedToken, UserBody
from node.api.services import API

_KEY_SET_AGE_S = 300  # a new key is published for longer than this before it signs


async def mint(request: web.Request) -> web.Response:
    """POST /api/v1/auth/users/{user_id}/token: admins only; a user that does not exist is created."""
    caller = await authenticate(request)
    try:
        user_id = check_user_id(request.match_info["user_id"])
    except InvalidRequest as error:
        raise NotFound("No user has such an id.") from error
    body = await read_json(request, MintBody)
    async with audited(request, "mint_user_token", principal=caller.subject, target=user_id):
        reply = await request.app[API].metadata.mint(
            caller, user_id, _names(body.roles, "roles"), _names(body.groups, "groups"), _ttl_seconds(body)
        )
    answer = MintedToken(
        token=reply.token,
        token_type="Bearer",  # noqa: S106  # the kind of token, not one
        user_id=reply.user_id,
        expires_at=rfc3339(reply.expires_at_ms),
        roles=reply.roles,
        groups=reply.groups,
    )
    return json_response(answer, headers={"Cache-Control": "no-store"})


async def whoami(request: web.Request) -> web.Response:
    """GET /api/v1/auth/whoami: the caller's own record."""
    caller = await authenticate(request)
    user = await request.app[API].metadata.read(GetUser(caller=caller), UserRecord)
    answer = UserBody(
        user_id=user.user_id,
        roles=user.roles,
        groups=user.groups,
        disabled=user.disabled,
        created_at=rfc3339(user.created_at_ms),
        updated_at=rfc3339(user.updated_at_ms),
    )
    return json_response(answer, headers={"Cache-Control": "no-store"})


async def key_set(request: web.Request) -> web.Response:
    """GET /.well-known/jwks.json: the public keys that user tokens verify with. No credential."""
    keys = request.app[API].view.require_fresh().user_token_keys
    return json_response(KeySet(keys=keys), headers={"Cache-Control": f"public, max-age={_KEY_SET_AGE_S}"})


def _names(names: list[str] | None, field: str) -> list[str] | None:
    return None if names is None else list(check_names(names, field))


def _ttl_seconds(body: MintBody) -> int:
    """0 stands for the default."""
    if body.ttl_seconds is None:
        return 0
    if not 1 <= body.ttl_seconds <= TTL_SECONDS_MAX:
        raise InvalidRequest(f"ttl_seconds: expected an integer from 1 to {TTL_SECONDS_MAX}")
    return body.ttl_seconds

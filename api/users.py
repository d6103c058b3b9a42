"""Operations on users: tokens, the keys that verify them, management, revocation, the caller's own record."""

from typing import Final, Literal

from aiohttp import web

from api.access import audited, authenticate
from api.bodies.checks import check_label
from api.bodies.fields import UserId
from api.bodies.users import (
    CallerBody,
    DeletedUser,
    KeySet,
    MintBody,
    MintedToken,
    PutUserBody,
    RenewTokenBody,
    RevokeBody,
    RotatedKey,
    RotateKeyBody,
    UserBody,
    UserList,
)
from api.bodies.views import shown
from api.context import API
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    page_response,
    page_wanted,
    query_flag,
    query_text,
)
from api.spec.operation import NOT_STORED, Answer, OperationTable, Parameter
from ca.errors import Conflict, InvalidRequest, NotFound
from ca.names import check_names, check_user_id
from ca.usertoken import SERVICE_TTL_SECONDS_MAX
from metadata.model.records import Caller, UserPage, UserRecord
from metadata.protocol.commands import DeleteUser, PutUser, RevokeUser
from metadata.protocol.queries import FindUser, GetUser, ListUsers
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_USERS: Final = "/api/v1/auth/users"
_USER: Final = f"{_USERS}/{{user_id}}"
_KEYS: Final = "/api/v1/auth/keys"
EXISTING: Final = Parameter(
    "existing", ("`1`: fail with 404 if there is no such user. Otherwise the user is created.")
)
_KEY_SET_AGE_S: Final = 10  # short: a new key signs immediately, and the old one may end immediately
OPERATIONS: Final = OperationTable("Users")


@OPERATIONS.add(
    f"POST {_USER}/token",
    "mint_user_token",
    "Mint a token for a user",
    Answer("The token, which is shown only once.", MintedToken, headers=NOT_STORED),
    body=MintBody,
    query=(EXISTING,),
    errors=(Conflict,),
    changes=True,
)
async def mint(request: web.Request) -> web.Response:
    """Mint a token for a user, who is created if necessary. Admins only.

    Roles and groups in the body become those of the user. A disabled user is a conflict.
    """
    caller = await authenticate(request)
    user_id = path_user(request)
    body = await read_json(request, MintBody)
    async with audited(request, "mint_user_token", principal=caller.subject, target=user_id):
        await require_existing(request, caller, user_id)
        reply = await request.app[API].metadata.mint(
            caller,
            user_id,
            names_in(body.roles, "roles"),
            names_in(body.groups, "groups"),
            _ttl_seconds(body.ttl_seconds),
            check_label(body.label, "label"),
        )
    return json_response(shown(MintedToken, reply))


@OPERATIONS.add(
    "POST /api/v1/auth/token",
    "renew_user_token",
    "Renew one's own token",
    Answer("The token, which is shown only once.", MintedToken, headers=NOT_STORED),
    body=RenewTokenBody,
)
async def renew(request: web.Request) -> web.Response:
    """Renew the token of the caller, with the user's current roles and groups.

    The old token stays valid until it expires. Revoked or disabled users get no token.
    """
    caller = await authenticate(request)
    body = await read_json(request, RenewTokenBody)
    ttl_seconds = _ttl_seconds(body.ttl_seconds)
    async with audited(request, "renew_user_token", principal=caller.subject, target=caller.subject):
        reply = await request.app[API].metadata.renew_token(caller, ttl_seconds)
    return json_response(shown(MintedToken, reply))


@OPERATIONS.add(
    f"GET {_USERS}",
    "list_users",
    "List users",
    Answer("A page of users.", UserList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_page(request: web.Request) -> web.Response:
    """List all users, oldest first. Admins only."""
    caller = await authenticate(request)
    page = await request.app[API].metadata.read(ListUsers(caller=caller, **page_wanted(request)), UserPage)
    users = [shown(UserBody, user) for user in page.users]
    return page_response(request, UserList, users, page.next_cursor)


@OPERATIONS.add(f"GET {_USER}", "get_user", "Show a user", Answer("The user.", UserBody))
async def get(request: web.Request) -> web.Response:
    """Show a user. Admins only."""
    caller = await authenticate(request)
    query = FindUser(caller=caller, user_id=path_user(request))
    return json_response(shown(UserBody, await request.app[API].metadata.read(query, UserRecord)))


@OPERATIONS.add(
    f"PUT {_USER}",
    "put_user",
    "Create or change a user",
    Answer("The user as it is now.", UserBody),
    body=PutUserBody,
    query=(EXISTING,),
    errors=(Conflict,),
    changes=True,
)
async def put(request: web.Request) -> web.Response:
    """Create a user, or change it. Absent fields keep their values. Admins only.

    Users cannot disable themselves or remove their own role `admin`: both are conflicts.
    """
    caller = await authenticate(request)
    user_id = path_user(request)
    body = await read_json(request, PutUserBody)
    command = PutUser(
        caller=caller,
        user_id=user_id,
        roles=names_in(body.roles, "roles"),
        groups=names_in(body.groups, "groups"),
        disabled=body.disabled,
    )
    async with audited(request, "put_user", principal=caller.subject, target=user_id):
        await require_existing(request, caller, user_id)
        user = await request.app[API].metadata.propose(command, UserRecord)
    return json_response(shown(UserBody, user))


@OPERATIONS.add(
    f"DELETE {_USER}",
    "delete_user",
    "Delete a user",
    Answer("The user is deleted.", DeletedUser),
    errors=(Conflict,),
)
async def delete(request: web.Request) -> web.Response:
    """Delete a user, with all its tokens, permissions and public tokens. Admins only.

    Conflict if the user owns files or buckets, or is the caller.
    """
    caller = await authenticate(request)
    user_id = path_user(request)
    command = DeleteUser(caller=caller, user_id=user_id)
    async with audited(request, "delete_user", principal=caller.subject, target=user_id):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(DeletedUser(deleted=True, user_id=user_id))


@OPERATIONS.add(
    "POST /api/v1/auth/revoke",
    "revoke_user",
    "Revoke all permissions and tokens of a user",
    Answer("Everything was revoked.", Literal["OK"]),
    body=RevokeBody,
    query=(Parameter("user_id", "The user, if the body does not give one.", type=UserId),),
    errors=(NotFound,),
)
async def revoke(request: web.Request) -> web.Response:
    """Revoke all permissions, tokens and public tokens of a user in one change. Admins only.

    The user is given in the body or by `?user_id=`.
    """
    caller = await authenticate(request)
    body = await read_json(request, RevokeBody)
    named = query_text(request, "user_id")
    if body.user_id and named and body.user_id != named:
        raise InvalidRequest("user_id: the body and the query name different users")
    if not body.user_id and not named:
        raise InvalidRequest("user_id: is required, in the body or in the query")
    user_id = check_user_id(body.user_id or named)
    async with audited(request, "revoke_user", principal=caller.subject, target=user_id):
        await request.app[API].metadata.propose(RevokeUser(caller=caller, user_id=user_id), type(None))
    return json_response("OK")


@OPERATIONS.add(
    "GET /api/v1/auth/whoami",
    "whoami",
    "Show the caller's own record",
    Answer("The caller.", CallerBody, headers=NOT_STORED),
)
async def whoami(request: web.Request) -> web.Response:
    """Show the caller's own record, and when its token expires."""
    caller = await authenticate(request)
    services = request.app[API]
    user = await services.metadata.read(GetUser(caller=caller), UserRecord)
    ends_at = rfc3339(services.view.token_ends_at_ms(caller.token))
    return json_response(shown(CallerBody, user, token_expires_at=ends_at, session_id=caller.session))


@OPERATIONS.add(
    f"POST {_KEYS}",
    "rotate_token_key",
    "Replace the key that signs user tokens",
    Answer("The new key signs from now on.", RotatedKey),
    status=201,
    body=RotateKeyBody,
    errors=(Conflict,),
    changes=True,
)
async def rotate_key(request: web.Request) -> web.Response:
    """Replace the key that signs user tokens. Admins only.

    Tokens of the previous keys are rejected at once, or after the grace time. This may include the caller's
    own token: `filestore token admin` creates another.
    """
    caller = await authenticate(request)
    body = await read_json(request, RotateKeyBody)
    async with audited(request, "rotate_token_key", principal=caller.subject, target="user tokens"):
        record = await request.app[API].metadata.rotate_token_key(caller, body.grace_seconds)
    return json_response(shown(RotatedKey, record), status=201)


@OPERATIONS.add(
    "GET /.well-known/jwks.json",
    "key_set",
    "Show the keys that verify user tokens",
    Answer("A JSON Web Key Set.", KeySet, headers={"Cache-Control": "How long the response may be cached."}),
    credential="none",
)
async def key_set(request: web.Request) -> web.Response:
    """Return the public keys that verify user tokens. No credential."""
    keys = request.app[API].view.token_keys()
    return json_response(KeySet(keys=keys), headers={"Cache-Control": f"public, max-age={_KEY_SET_AGE_S}"})


async def require_existing(request: web.Request, caller: Caller, user_id: str) -> None:
    """Raise NotFound if the request wants an existing user and there is none. Admins only.

    If the user is deleted between this check and the change, the change creates it again.
    """
    if query_flag(request, "existing"):
        await request.app[API].metadata.read(FindUser(caller=caller, user_id=user_id), UserRecord)


def path_user(request: web.Request) -> str:
    """Return the id of the user in the path. Raises NotFound for a malformed id."""
    try:
        return check_user_id(request.match_info["user_id"])
    except InvalidRequest as error:
        raise NotFound("There is no user with this id.") from error


def names_in(names: list[str] | None, field: str) -> list[str] | None:
    """Return roles or groups of a body, without repeats. Raises InvalidRequest."""
    return None if names is None else list(check_names(names, field))


def _ttl_seconds(given: int | None) -> int:
    """Return the lifetime of the token in seconds; 0 means the default. Raises InvalidRequest."""
    if given is None:
        return 0
    if not 1 <= given <= SERVICE_TTL_SECONDS_MAX:
        raise InvalidRequest(f"ttl_seconds: expected an integer from 1 to {SERVICE_TTL_SECONDS_MAX}")
    return given

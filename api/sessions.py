"""Sessions of users, and the invitations with which they begin.

The secret of an invitation is in the answer that makes it, behind the `#` of the link, and in the body of the
request that redeems it: so no log, no proxy and no Referer has it. The cluster stores its hash.
"""

import hashlib
import secrets
from typing import Final

from aiohttp import web

from api.access import PRINCIPAL_UNKNOWN, audited, authenticate, record_failed_attempt
from api.bodies.checks import check_label
from api.bodies.sessions import (
    EndedSession,
    EndedSessions,
    Invitation,
    InvitationBody,
    InvitationList,
    InviteBody,
    RedeemBody,
    RevokedInvitation,
    SessionBody,
    SessionList,
)
from api.bodies.users import MintedToken
from api.bodies.views import shown
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, page_response, page_wanted
from api.spec.operation import NOT_STORED, Answer, OperationTable
from api.users import EXISTING, names_in, path_user, require_existing
from ca.errors import Conflict, Gone, NotFound, RateLimited
from metadata.model.listed_records import InvitationPage, InvitationRecord, SessionPage
from metadata.model.records import UserRecord
from metadata.protocol.commands import CreateInvitation, EndSession, EndSessions, RevokeInvitation
from metadata.protocol.people_queries import CheckInvitation, ListInvitations, ListSessions
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_USER: Final = "/api/v1/auth/users/{user_id}"
_SESSIONS: Final = f"{_USER}/sessions"
_INVITATION: Final = f"{_USER}/invitation"
_INVITATIONS: Final = "/api/v1/auth/invitations"
_SECRET_BYTES: Final = 32
_LABEL_DEFAULT: Final = "invitation"
OPERATIONS: Final = OperationTable("Users")


@OPERATIONS.add(
    f"GET {_SESSIONS}",
    "list_sessions",
    "List the sessions of a user",
    Answer("A page of sessions.", SessionList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_page(request: web.Request) -> web.Response:
    """List the live sessions of a user, oldest first. For the user itself, and admins."""
    caller = await authenticate(request)
    query = ListSessions(caller=caller, user_id=path_user(request), **page_wanted(request))
    page = await request.app[API].metadata.read(query, SessionPage)
    sessions = [
        shown(SessionBody, each, is_current=each.session_id == caller.session) for each in page.sessions
    ]
    return page_response(request, SessionList, sessions, page.next_cursor)


@OPERATIONS.add(
    f"DELETE {_SESSIONS}/{{session_id}}",
    "end_session",
    "End a session",
    Answer("It has ended.", EndedSession),
)
async def end(request: web.Request) -> web.Response:
    """End a session: every node rejects its tokens from the next request on. For its user, and admins."""
    caller = await authenticate(request)
    user_id, session_id = path_user(request), request.match_info["session_id"]
    command = EndSession(caller=caller, user_id=user_id, session_id=session_id)
    target = f"{user_id} session {session_id}"
    async with audited(request, "end_session", principal=caller.subject, target=target):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(EndedSession(deleted=True, session_id=session_id))


@OPERATIONS.add(
    f"DELETE {_SESSIONS}", "end_sessions", "End all sessions", Answer("They have ended.", EndedSessions)
)
async def end_all(request: web.Request) -> web.Response:
    """End all sessions of a user: every token made before is rejected. For the user itself, and admins.

    Permissions and public tokens stay, unlike at `POST /auth/revoke`.
    """
    caller = await authenticate(request)
    user_id = path_user(request)
    command = EndSessions(caller=caller, user_id=user_id)
    async with audited(request, "end_sessions", principal=caller.subject, target=user_id):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(EndedSessions(deleted=True, user_id=user_id))


@OPERATIONS.add(
    f"POST {_INVITATION}",
    "invite_user",
    "Make a link for the first token of a user",
    Answer("The link, which is shown only once.", Invitation, headers=NOT_STORED),
    status=201,
    body=InviteBody,
    query=(EXISTING,),
    errors=(Conflict,),
    changes=True,
)
async def invite(request: web.Request) -> web.Response:
    """Make a link with which a user gets a token, once. Admins only.

    It is for a new user, who is created, and for one who has lost the token. An earlier link of the user
    stops working. A disabled user is a conflict.
    """
    caller = await authenticate(request)
    user_id = path_user(request)
    body = await read_json(request, InviteBody)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    command = CreateInvitation(
        caller=caller,
        user_id=user_id,
        roles=names_in(body.roles, "roles"),
        groups=names_in(body.groups, "groups"),
        secret_sha256=_digest(secret),
        ttl_seconds=body.ttl_seconds,
    )
    services = request.app[API]
    async with audited(request, "invite_user", principal=caller.subject, target=user_id):
        await require_existing(request, caller, user_id)
        record = await services.metadata.propose(command, InvitationRecord)
    url = f"{services.link_url(request)}/console/#/invitation/{secret}"
    return json_response(shown(Invitation, record, url=url, token=secret), status=201)


@OPERATIONS.add(
    f"DELETE {_INVITATION}",
    "revoke_invitation",
    "Revoke the invitation of a user",
    Answer("The link does not work any more.", RevokedInvitation),
)
async def revoke(request: web.Request) -> web.Response:
    """Revoke the link of a user that was not used yet. Admins only."""
    caller = await authenticate(request)
    user_id = path_user(request)
    async with audited(request, "revoke_invitation", principal=caller.subject, target=user_id):
        command = RevokeInvitation(caller=caller, user_id=user_id)
        await request.app[API].metadata.propose(command, type(None))
    return json_response(RevokedInvitation(deleted=True, user_id=user_id))


@OPERATIONS.add(
    f"GET {_INVITATIONS}",
    "list_invitations",
    "List invitations",
    Answer("A page of invitations.", InvitationList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_invitations(request: web.Request) -> web.Response:
    """List the newest invitation of each user, without secrets, used and expired ones too. Admins only."""
    caller = await authenticate(request)
    query = ListInvitations(caller=caller, **page_wanted(request))
    page = await request.app[API].metadata.read(query, InvitationPage)
    invitations = [
        shown(InvitationBody, each, used_at=rfc3339(each.used_at_ms or None)) for each in page.invitations
    ]
    return page_response(request, InvitationList, invitations, page.next_cursor)


@OPERATIONS.add(
    f"POST {_INVITATIONS}/redeem",
    "redeem_invitation",
    "Redeem an invitation",
    Answer("The token, which is shown only once.", MintedToken, headers=NOT_STORED),
    body=RedeemBody,
    credential="none",
    errors=(Gone, NotFound, RateLimited),
)
async def redeem(request: web.Request) -> web.Response:
    """Return the token that an invitation is for, and use the invitation up. No credential.

    The token lives for 30 days, or less if the coordinators are configured so, and can be renewed.
    """
    body = await read_json(request, RedeemBody)
    label = check_label(body.label, "label") or _LABEL_DEFAULT
    services, secret_sha256 = request.app[API], _digest(body.token)
    try:
        query = CheckInvitation(secret_sha256=secret_sha256)
        user = await services.metadata.read(query, UserRecord)
    except (NotFound, Gone) as error:
        raise record_failed_attempt(
            request,
            error,
            services.rates.public_tokens,
            action="redeem_invitation",
            principal=PRINCIPAL_UNKNOWN,
            target=f"POST {_INVITATIONS}/redeem",
        ) from error
    async with audited(request, "redeem_invitation", principal=user.user_id, target=user.user_id):
        reply = await services.metadata.redeem(secret_sha256, label)
    return json_response(shown(MintedToken, reply))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()

"""Operations of people who sign in with an identity provider: start, finish, renew, end.

They need no credential: the sealed attempt or renewal is one. The leader does the work; this process builds
the redirect URI, which is never an address that a request has chosen, and records what happened.
"""

from typing import Final

from aiohttp import hdrs, web

from api.access import record_failed_attempt
from api.bodies.sign_in import (
    EndedSignIn,
    FinishSignInBody,
    PendingSignIn,
    RenewSignInBody,
    SignedIn,
    StartedSignIn,
    StartSignInBody,
)
from api.bodies.views import shown
from api.context import API
from api.providers import CONSOLE_PATH, LOOPBACK_PATH, PROVIDER, console_origins
from api.spec.operation import NOT_STORED, Answer, OperationTable
from ca.errors import Forbidden, Gone, InvalidRequest, RateLimited
from metadata.protocol import sign_in_calls as calls
from web.app import json_response, read_json, request_id
from web.web_access import client_address

OPERATIONS: Final = OperationTable("Sign-in")
_REFUSALS: Final = (Forbidden, Gone, RateLimited)


@OPERATIONS.add(
    f"POST {PROVIDER}/sign-in",
    "start_sign_in",
    "Start to sign in with a provider",
    Answer("Where the person signs in.", StartedSignIn, headers=NOT_STORED),
    body=StartSignInBody,
    errors=_REFUSALS,
    credential="none",
)
async def start(request: web.Request) -> web.Response:
    """Start to sign in with an identity provider. No credential.

    In the flow `console` or `command`, the person opens `authorization_url`, and the provider redirects to
    the console or to a loopback port. In the flow `device`, the person opens it anywhere and enters the code,
    while the client asks at the interval whether that was done.
    """
    request.app[API].rates.sign_ins.take(client_address(request))
    name = request.match_info["provider"]
    body = await read_json(request, StartSignInBody)
    call = calls.StartSignInCall(name, body.flow, _redirect_uri(request, body, name))
    started = await request.app[API].metadata.sign_in(call, calls.StartedSignIn)
    return json_response(shown(StartedSignIn, started, interval_seconds=started.interval_s))


@OPERATIONS.add(
    f"POST {PROVIDER}/token",
    "finish_sign_in",
    "Finish to sign in with a provider",
    Answer("The token, which is shown only once.", SignedIn, headers=NOT_STORED),
    others={202: Answer("The person has not confirmed the code yet.", PendingSignIn)},
    body=FinishSignInBody,
    errors=_REFUSALS,
    credential="none",
)
async def finish(request: web.Request) -> web.Response:
    """Finish to sign in: the code of the provider becomes a token of the cluster. No credential.

    Forbidden if the provider, its ID token or the groups of the person do not allow it. At the first sign-in
    the person becomes a new user; groups follow the provider at each.
    """
    request.app[API].rates.sign_ins.take(client_address(request))
    body = await read_json(request, FinishSignInBody)
    name = request.match_info["provider"]
    call = calls.FinishSignInCall(name, body.attempt, body.state, body.code, body.issuer)
    signed_in = await _asked(request, call, "sign_in")
    if signed_in is None:
        return json_response(PendingSignIn(pending=True), status=202)
    return json_response(shown(SignedIn, signed_in))


@OPERATIONS.add(
    f"POST {PROVIDER}/renewal",
    "renew_sign_in",
    "Renew a sign-in",
    Answer("The token, which is shown only once.", SignedIn, headers=NOT_STORED),
    body=RenewSignInBody,
    errors=_REFUSALS,
    credential="none",
)
async def renew(request: web.Request) -> web.Response:
    """Renew the token of a sign-in, while the provider's session lasts. No credential.

    Forbidden if the session has ended, or the person may not sign in any more. If the provider does not
    answer, try again later: the present token stays valid until it expires.
    """
    request.app[API].rates.sign_ins.take(client_address(request))
    body = await read_json(request, RenewSignInBody)
    call = calls.RenewSignInCall(request.match_info["provider"], body.renewal)
    signed_in = await _asked(request, call, "renew_sign_in")
    assert signed_in is not None, "only a device is waited for"
    return json_response(shown(SignedIn, signed_in))


@OPERATIONS.add(
    f"POST {PROVIDER}/sign-out",
    "end_sign_in",
    "Sign out",
    Answer("The provider was told.", EndedSignIn),
    body=RenewSignInBody,
    errors=_REFUSALS,
    credential="none",
)
async def end(request: web.Request) -> web.Response:
    """End what renews a token: the provider is told to forget its refresh token. No credential."""
    request.app[API].rates.sign_ins.take(client_address(request))
    body = await read_json(request, RenewSignInBody)
    call = calls.EndSignInCall(request.match_info["provider"], body.renewal)
    user_id = await request.app[API].metadata.sign_in(call, str)
    _record(request, "end_sign_in", user_id)
    return json_response(EndedSignIn(user_id=user_id))


async def _asked(
    request: web.Request, call: calls.FinishSignInCall | calls.RenewSignInCall, action: str
) -> calls.SignedIn | None:
    """Return the leader's answer, on record. A refusal counts as a failed attempt of its address."""
    api = request.app[API]
    api.audit.check_writable()
    try:
        signed_in = await api.metadata.sign_in(call, calls.SignedIn | None)  # type: ignore[arg-type]
    except (Forbidden, Gone, InvalidRequest) as error:
        raise record_failed_attempt(
            request,
            error,
            api.rates.failed_authentication,
            action=action,
            principal="-",
            target=_target(request, error.details),
        ) from error
    if signed_in is not None:
        _record(request, action, signed_in.user_id)
    return signed_in


def _record(request: web.Request, action: str, user_id: str) -> None:
    request.app[API].audit.record(
        action,
        principal=user_id,
        object=_target(request),
        outcome="ok",
        request_id=request_id(request),
        client_address=client_address(request),
    )


def _target(request: web.Request, why: str = "") -> str:
    name = f"provider {request.match_info['provider']}"
    return f"{name}: {why}" if why else name


def _redirect_uri(request: web.Request, body: StartSignInBody, name: str) -> str:
    """Return where the provider sends the person. Raises InvalidRequest for an address that is not ours."""
    if body.flow == "device":
        return ""
    if body.flow == "command":
        if body.port is None:
            raise InvalidRequest("port: is required for this flow")
        return f"http://127.0.0.1:{body.port}{LOOPBACK_PATH}{name}"  # RFC 8252, 7.3
    # By its own name a browser can only mean the member that it reaches by it.
    asked = f"https://{request.headers.get(hdrs.HOST, '').lower()}"
    if body.origin not in (*console_origins(request), asked):
        raise InvalidRequest("origin: is not an address of this cluster's console")
    return f"{body.origin}{CONSOLE_PATH}{name}"

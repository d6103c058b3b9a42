"""Operations on identity providers, and of people who sign in with them: start, finish, renew, end.

Providers are for admins. Who signs in needs no credential: the sealed attempt or renewal is one. The leader
does the work; this process builds the redirect URI, which is never an address that a request has chosen, and
records what happened.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET

from api.access import audited, authenticate, record_failed_attempt
from api.bodies.checks import check_label
from api.bodies.sign_in import (
    DeletedProvider,
    EndedSignIn,
    FinishSignInBody,
    PendingSignIn,
    ProviderBody,
    ProviderNameBody,
    ProviderNameList,
    ProviderStepBody,
    PutProviderBody,
    RenewSignInBody,
    SignedIn,
    StartedSignIn,
    StartSignInBody,
    TestedProvider,
)
from api.bodies.views import shown
from api.context import API
from api.spec.operation import NOT_STORED, Answer, OperationTable
from ca.errors import Conflict, Forbidden, Gone, InvalidRequest, NotFound, RateLimited
from metadata.model.providers import Provider, ProviderRecord
from metadata.model.records import Caller
from metadata.protocol import sign_in_calls as calls
from metadata.protocol.commands import DeleteProvider
from metadata.protocol.people_queries import FindProvider
from runtime.timestamps import rfc3339
from web.app import json_response, read_json, request_id
from web.web_access import client_address

_PROVIDERS: Final = "/api/v1/auth/providers"
_PROVIDER: Final = f"{_PROVIDERS}/{{provider}}"
_CONSOLE_PATH: Final = "/console/sign-in/"
_LOOPBACK_PATH: Final = "/sign-in/"
_OUTCOMES: Final[Mapping[bool | None, Literal["ok", "failed", "note"]]] = {
    True: "ok",
    False: "failed",
    None: "note",
}
_REFUSALS: Final = (Forbidden, Gone, RateLimited)
OPERATIONS: Final = OperationTable("Sign-in")


@OPERATIONS.add(
    f"GET {_PROVIDERS}",
    "list_providers",
    "List the providers to sign in with",
    Answer("The names of the providers.", ProviderNameList),
    credential="none",
)
async def list_names(request: web.Request) -> web.Response:
    """List the identity providers that people can sign in with. No credential."""
    known = request.app[API].view.require_fresh().providers
    names = [ProviderNameBody(name=each.name, label=each.label) for each in known]
    return json_response(ProviderNameList(count=len(names), providers=names))


@OPERATIONS.add(f"GET {_PROVIDER}", "get_provider", "Show a provider", Answer("The provider.", ProviderBody))
async def get(request: web.Request) -> web.Response:
    """Show the configuration of a provider, without its secrets. Admins only."""
    caller = await authenticate(request)
    record = await _find(request, caller)
    if record is None:
        raise NotFound("There is no such provider.")
    return json_response(_shown(request, record))


@OPERATIONS.add(
    f"PUT {_PROVIDER}",
    "put_provider",
    "Add or change a provider",
    Answer("The provider as it is now.", ProviderBody, headers=NOT_STORED),
    body=PutProviderBody,
    errors=(Conflict,),
    changes=True,
)
async def put(request: web.Request) -> web.Response:
    """Add an identity provider, or change its configuration. Admins only.

    A new provider needs issuer, client and the groups that may sign in. If issuer or client change, the
    secret must be given again. Conflict if another provider has this issuer.
    """
    caller = await authenticate(request)
    name = request.match_info["provider"]
    body = await read_json(request, PutProviderBody)
    async with audited(request, "put_provider", principal=caller.subject, target=f"provider {name}"):
        known = await _find(request, caller)
        new = Provider(name=name, label=name, issuer="", client_id="")
        call = calls.PutProviderCall(
            caller,
            _changed(new if known is None else known.provider, body),
            None if body.client_secret is UNSET else body.client_secret,
            None if body.command_client_secret is UNSET else body.command_client_secret,
        )
        record = await request.app[API].metadata.sign_in(call, ProviderRecord)
    return json_response(_shown(request, record))


@OPERATIONS.add(
    f"DELETE {_PROVIDER}",
    "delete_provider",
    "Remove a provider",
    Answer("The provider is removed.", DeletedProvider),
)
async def delete(request: web.Request) -> web.Response:
    """Remove an identity provider. Admins only.

    Its people stay users. Their tokens are not renewed any more, and expire.
    """
    caller = await authenticate(request)
    name = request.match_info["provider"]
    async with audited(request, "delete_provider", principal=caller.subject, target=f"provider {name}"):
        await request.app[API].metadata.propose(DeleteProvider(caller=caller, name=name), type(None))
    return json_response(DeletedProvider(deleted=True, name=name))


@OPERATIONS.add(
    f"POST {_PROVIDER}/test",
    "test_provider",
    "Test a provider",
    Answer("What was found.", TestedProvider),
)
async def test(request: web.Request) -> web.Response:
    """Have the leading coordinator test a provider, step by step. Admins only.

    It reads configuration and keys of the provider, and finds out whether the provider accepts the client.
    """
    caller = await authenticate(request)
    call = calls.TestProviderCall(caller, request.match_info["provider"])
    steps = await request.app[API].metadata.sign_in(call, list[calls.TestStep])
    found = [
        ProviderStepBody(step=each.step, outcome=_OUTCOMES[each.is_ok], details=each.details)
        for each in steps
    ]
    return json_response(TestedProvider(steps=found))


@OPERATIONS.add(
    f"POST {_PROVIDER}/sign-in",
    "start_sign_in",
    "Start to sign in with a provider",
    Answer("The page at which the person signs in.", StartedSignIn, headers=NOT_STORED),
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
    started = await request.app[API].metadata.sign_in(call, calls.StartSignInReply)
    return json_response(shown(StartedSignIn, started, interval_seconds=started.interval_s))


@OPERATIONS.add(
    f"POST {_PROVIDER}/token",
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
    f"POST {_PROVIDER}/renewal",
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
    f"POST {_PROVIDER}/sign-out",
    "end_sign_in",
    "Sign out",
    Answer("The provider has revoked the session.", EndedSignIn),
    body=RenewSignInBody,
    errors=_REFUSALS,
    credential="none",
)
async def end(request: web.Request) -> web.Response:
    """End a sign-in: the provider revokes the refresh token, and no token is renewed. No credential."""
    request.app[API].rates.sign_ins.take(client_address(request))
    body = await read_json(request, RenewSignInBody)
    call = calls.EndSignInCall(request.match_info["provider"], body.renewal)
    user_id = await request.app[API].metadata.sign_in(call, str)
    _record(request, "end_sign_in", user_id)
    return json_response(EndedSignIn(user_id=user_id))


async def _asked(
    request: web.Request, call: calls.FinishSignInCall | calls.RenewSignInCall, action: str
) -> calls.SignInReply | None:
    """Return the leader's answer, on record. A refusal counts as a failed attempt of its address."""
    api = request.app[API]
    api.audit.check_writable()
    try:
        signed_in = await api.metadata.sign_in(call, calls.SignInReply | None)  # type: ignore[arg-type]
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
        return f"http://127.0.0.1:{body.port}{_LOOPBACK_PATH}{name}"  # RFC 8252, 7.3
    # The browser writes the name of the member that it reaches, and a trusted proxy passes that name on.
    asked = f"https://{request.headers.get(hdrs.HOST, '').lower()}"
    shared = request.app[API].access.shared_url(request)
    if not body.origin or body.origin not in (*_console_origins(request), asked, shared):
        raise InvalidRequest("origin: is not an address of this cluster's console")
    return f"{body.origin}{_CONSOLE_PATH}{name}"


def _redirect_uris(request: web.Request, name: str) -> list[str]:
    """Return what a provider must know as redirect URIs: of the console, then of the command."""
    return [
        *(f"{origin}{_CONSOLE_PATH}{name}" for origin in _console_origins(request)),
        f"http://127.0.0.1{_LOOPBACK_PATH}{name}",
    ]


def _console_origins(request: web.Request) -> list[str]:
    """Return the addresses at which people open the console: the public one, or those of all members."""
    api = request.app[API]
    if api.access.public_url:
        return [api.access.public_url]
    members = api.view.console_members()
    return [*members.nodes, *members.coordinators]


async def _find(request: web.Request, caller: Caller) -> ProviderRecord | None:
    query = FindProvider(caller=caller, name=request.match_info["provider"])
    try:
        return await request.app[API].metadata.read(query, ProviderRecord)
    except NotFound:
        return None


def _changed(provider: Provider, body: PutProviderBody) -> Provider:
    """Return the provider with the fields that were given. Raises InvalidRequest."""
    given = {
        field: value
        for field in Provider.__struct_fields__
        if (value := getattr(body, field, None)) is not None and value is not UNSET
    }
    if "label" in given:
        check_label(str(given["label"]), "label")
    for field in ("allowed_groups", "admin_groups", "taken_groups", "scopes"):
        if any(not each or len(each) > 255 for each in given.get(field, ())):
            raise InvalidRequest(f"{field}: each must have 1 to 255 characters")
    return msgspec.structs.replace(provider, **given)


def _shown(request: web.Request, record: ProviderRecord) -> ProviderBody:
    return shown(
        ProviderBody,
        record.provider,
        has_secret=record.has_secret,
        has_command_secret=record.has_command_secret,
        redirect_uris=_redirect_uris(request, record.provider.name),
        updated_at=rfc3339(record.updated_at_ms),
    )

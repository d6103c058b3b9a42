"""Operations on identity providers, with which people sign in. Admins only, but for their names."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.checks import check_label
from api.bodies.sign_in import (
    DeletedProvider,
    ProviderBody,
    ProviderNameBody,
    ProviderNameList,
    ProviderStepBody,
    PutProviderBody,
    TestedProvider,
)
from api.bodies.views import shown
from api.context import API
from api.spec.operation import NOT_STORED, Answer, OperationTable
from ca.errors import Conflict, InvalidRequest, NotFound
from metadata.model.providers import Provider, ProviderRecord
from metadata.model.records import Caller
from metadata.protocol.commands import DeleteProvider
from metadata.protocol.sign_in_calls import PutProviderCall, TestProviderCall, TestStep
from metadata.protocol.sign_in_queries import FindProvider
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

PROVIDERS: Final = "/api/v1/auth/providers"
PROVIDER: Final = f"{PROVIDERS}/{{provider}}"
CONSOLE_PATH: Final = "/console/sign-in/"
LOOPBACK_PATH: Final = "/sign-in/"
_OUTCOMES: Final[Mapping[bool | None, Literal["ok", "failed", "note"]]] = {
    True: "ok",
    False: "failed",
    None: "note",
}
OPERATIONS: Final = OperationTable("Sign-in")


@OPERATIONS.add(
    f"GET {PROVIDERS}",
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


@OPERATIONS.add(f"GET {PROVIDER}", "get_provider", "Show a provider", Answer("The provider.", ProviderBody))
async def get(request: web.Request) -> web.Response:
    """Show the configuration of a provider, without its secrets. Admins only."""
    caller = await authenticate(request)
    record = await _find(request, caller)
    if record is None:
        raise NotFound("There is no such provider.")
    return json_response(_shown(request, record))


@OPERATIONS.add(
    f"PUT {PROVIDER}",
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
        call = PutProviderCall(
            caller,
            _changed(new if known is None else known.provider, body),
            None if body.client_secret is UNSET else body.client_secret,
            None if body.command_client_secret is UNSET else body.command_client_secret,
        )
        record = await request.app[API].metadata.sign_in(call, ProviderRecord)
    return json_response(_shown(request, record))


@OPERATIONS.add(
    f"DELETE {PROVIDER}",
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
    f"POST {PROVIDER}/test",
    "test_provider",
    "Test a provider",
    Answer("What was found.", TestedProvider),
)
async def test(request: web.Request) -> web.Response:
    """Have the leading coordinator test a provider, step by step. Admins only.

    It reads configuration and keys of the provider, and finds out whether the provider accepts the client.
    """
    caller = await authenticate(request)
    call = TestProviderCall(caller, request.match_info["provider"])
    steps = await request.app[API].metadata.sign_in(call, list[TestStep])
    found = [
        ProviderStepBody(step=each.step, outcome=_OUTCOMES[each.is_ok], details=each.details)
        for each in steps
    ]
    return json_response(TestedProvider(steps=found))


def redirect_uris(request: web.Request, name: str) -> list[str]:
    """Return what a provider must know as redirect URIs: of the console, then of the command."""
    return [
        *(f"{origin}{CONSOLE_PATH}{name}" for origin in console_origins(request)),
        f"http://127.0.0.1{LOOPBACK_PATH}{name}",
    ]


def console_origins(request: web.Request) -> list[str]:
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
        redirect_uris=redirect_uris(request, record.provider.name),
        updated_at=rfc3339(record.updated_at_ms),
    )

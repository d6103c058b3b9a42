"""Secrets of a sign-in go to their own provider with their own client, and nobody else admits a person."""

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from ca.errors import Forbidden, InvalidRequest, Unavailable
from metadata.model.providers import PersonIdentity, Provider, ProviderRecord
from metadata.protocol.calls import ProposeCall
from metadata.protocol.commands import AdmitIdentity
from metadata.protocol.sign_in_calls import (
    EndSignInCall,
    PutProviderCall,
    RenewSignInCall,
    SignInReply,
    StartSignInCall,
    StartSignInReply,
)
from runtime.clock import now_ms
from tests.hostile_provider import SECRET, HostileProvider
from tests.unit.coordinator.sign_in.test_flows import DEADLINE_S, World, world

__all__ = ["world"]
COMMAND_SECRET = "s3cret-of-the-command"
DEVICE_S_MAX = 1800

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


def basic(client_id: str, secret: str) -> str:
    return f"Basic {b64encode(f'{client_id}:{secret}'.encode()).decode()}"


async def test_what_one_issuer_gave_is_sent_to_no_other(world: World) -> None:
    started, signed_in = await world.start(), await world.sign_in()
    async with HostileProvider() as moved:
        moved.metadata = {"revocation_endpoint": f"{moved.issuer}/revoke"}
        await world.put(secret="another", issuer=moved.issuer)
        finishing = world.finishing(started, issuer=moved.issuer)
        assert (await world.refused(finishing))[0] == Forbidden.code
        assert (await world.refused(RenewSignInCall("uni", signed_in.renewal)))[0] == Forbidden.code
        assert await world.told(EndSignInCall("uni", signed_in.renewal), str) == "uni:alice"
        assert not {"/token", "/revoke"}.intersection(moved.asked)


async def test_node_admits_nobody_by_itself(world: World) -> None:
    """Else a stolen node would sign in whom it likes, with the role admin."""
    forged = PersonIdentity(
        provider="uni",
        issuer=world.provider.issuer,
        subject="7f3a",
        name="uni:mallory",
        groups=[],
        is_admin=True,
        is_allowed=True,
    )
    command = AdmitIdentity(identity=forged, user_id="")
    assert (await world.refused(ProposeCall(0, 0, 0, command)))[0] == Forbidden.code


async def test_command_has_a_client_and_a_secret_of_its_own(world: World) -> None:
    provider = Provider(
        name="uni",
        label="University",
        issuer=world.provider.issuer,
        client_id="filestore",
        command_client_id="cli",
        allowed_groups=["netlab"],
    )
    await world.told(PutProviderCall(world.admin, provider, SECRET, COMMAND_SECRET), ProviderRecord)
    await world.sign_in()
    call = StartSignInCall("uni", "command", "http://127.0.0.1:1/sign-in/uni")
    started = await world.told(call, StartSignInReply)
    world.provider.note(started.authorization_url)
    world.provider.claims = {"aud": "cli"}
    signed_in = await world.told(world.finishing(started), SignInReply)
    await world.renew(signed_in)
    ours = [basic("filestore", SECRET), *[basic("cli", COMMAND_SECRET)] * 2]
    assert world.provider.authorizations == ours
    for field, secret in (("client_id", "client_secret"), ("command_client_id", "command_client_secret")):
        changed = msgspec.structs.replace(provider, **{field: "of-another"})
        status, details = await world.refused(PutProviderCall(world.admin, changed, None, None))
        assert (status, details.startswith(f"{secret}: is required")) == (InvalidRequest.code, True)


@pytest.mark.parametrize("field", ["verification_uri", "verification_uri_complete"])
async def test_person_is_sent_to_a_page_with_a_code_for_half_an_hour(world: World, field: str) -> None:
    issuer = world.provider.issuer
    told: dict[str, Any] = {
        "device_code": "d",
        "user_code": "ABCD",
        "verification_uri": f"{issuer}/device",
        "expires_in": 86_400,
    }
    world.provider.metadata = {"device_authorization_endpoint": f"{issuer}/device"}
    world.provider.answers["/device"] = 200, json.dumps(told).encode()
    call = StartSignInCall("uni", "device", "")
    started = await world.told(call, StartSignInReply)
    assert (started.user_code, started.authorization_url) == ("ABCD", f"{issuer}/device")
    assert 0 < started.expires_at_ms - now_ms() <= DEVICE_S_MAX * 1000
    for address in ("javascript:alert(1)", "http://login.evil.example/device"):
        world.provider.answers["/device"] = 200, json.dumps(told | {field: address}).encode()
        status, details = await world.refused(call)
        assert (status, f"{field}: an https URL" in details) == (Unavailable.code, True)

"""Signing in at the leading coordinator, with a provider that lies: what is believed, recorded and sealed."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from ca.errors import Conflict, Forbidden, Gone, InvalidRequest, NotFound, Unauthorized, Unavailable
from coordinator.sign_in import flows
from metadata.model.providers import Provider, ProviderRecord
from metadata.model.records import Caller, UserRecord
from metadata.protocol.calls import AnyCall, ProposeCall, ReadCall, RenewTokenCall
from metadata.protocol.commands import DeleteProvider, DeleteUser, PutUser, RevokeUser
from metadata.protocol.people_queries import FindProvider
from metadata.protocol.queries import FindUser, GetUser
from metadata.protocol.sign_in_calls import (
    EndSignInCall,
    FinishSignInCall,
    PutProviderCall,
    RenewSignInCall,
    SignInReply,
    StartSignInCall,
    StartSignInReply,
    TestProviderCall,
    TestStep,
)
from metadata.rpc import wire
from runtime.clock import now_ms
from tests.hostile_provider import CODE, SECRET, HostileProvider, new_key
from tests.unit.coordinator_group import Coordinator, Spoken, group_in, speaking

DEADLINE_S = 30.0
BACK = "https://127.0.0.1:7443/console/sign-in/uni"
T = TypeVar("T")

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


@dataclass
class World:
    """A coordinator that leads, a node that speaks to it, and a provider."""

    leader: Coordinator
    node: Spoken
    provider: HostileProvider

    @property
    def admin(self) -> Caller:
        token = self.leader.member.authority.sign_user_token(
            subject="admin", generation=1, roles=(), groups=(), at_ms=now_ms(), ttl_seconds=300, token_id="t"
        )
        return Caller("admin", 1, token)

    async def told(self, call: AnyCall, answer_type: type[T]) -> T:
        answer = await self.node.ask(call)
        assert answer is not None
        assert answer.status == wire.OK, answer
        return msgspec.msgpack.decode(answer.value, type=answer_type)

    async def refused(self, call: AnyCall) -> tuple[str, str]:
        answer = await self.node.ask(call)
        assert answer is not None
        assert answer.status != wire.OK
        return answer.status, answer.details

    async def put(self, secret: str | None = SECRET, **changes: Any) -> ProviderRecord:
        fields = {
            "name": "uni",
            "label": "University",
            "issuer": self.provider.issuer,
            "client_id": "filestore",
            "allowed_groups": ["netlab"],
            "admin_groups": ["staff"],
        }
        provider = Provider(**(fields | changes))
        return await self.told(PutProviderCall(self.admin, provider, secret, None), ProviderRecord)

    async def start(self) -> StartSignInReply:
        started = await self.told(StartSignInCall("uni", "console", BACK), StartSignInReply)
        self.provider.note(started.authorization_url)
        return started

    def finishing(self, started: StartSignInReply, **changes: str) -> FinishSignInCall:
        values = {
            "provider": "uni",
            "attempt": started.attempt,
            "state": started.state,
            "code": CODE,
            "issuer": self.provider.issuer,
        } | changes
        return FinishSignInCall(**values)

    async def sign_in(self) -> SignInReply:
        return await self.told(self.finishing(await self.start()), SignInReply)

    async def renew(self, signed_in: SignInReply) -> SignInReply:
        return await self.told(RenewSignInCall("uni", signed_in.renewal), SignInReply)

    async def user(self, user_id: str) -> UserRecord:
        return await self.told(ReadCall(FindUser(caller=self.admin, user_id=user_id)), UserRecord)

    async def status_of(self, signed_in: SignInReply) -> str:
        """Whether the token is valid: "" if so."""
        claims = self.leader.member.view().user_token_keys
        assert claims
        payload = jwt_payload(signed_in.token)
        caller = Caller(payload["sub"], payload["gen"], signed_in.token, payload.get("sid", payload["jti"]))
        answer = await self.node.ask(ReadCall(GetUser(caller=caller)))
        assert answer is not None
        return answer.status

    async def change(self, command: Any) -> None:
        answer = await self.node.ask(ProposeCall(0, 0, 0, command))
        assert answer is not None
        assert answer.status == wire.OK, answer


def jwt_payload(token: str) -> Any:
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (leader,) = group_in(tmp_path, "c1")
    async with asyncio.timeout(DEADLINE_S), leader.run(), HostileProvider() as provider:
        await leader.leads()
        contexts = await leader.joined("n1", tmp_path)
        async with speaking(leader.record, "/rpc", contexts) as node:
            made = World(leader, node, provider)
            await made.put()
            yield made


async def test_first_sign_in_makes_a_user_and_the_next_is_the_same(world: World) -> None:
    world.provider.groups = ["netlab", "staff", "/top", "not a name", "/deep/er"]
    first = await world.sign_in()
    assert (first.user_id, first.roles) == ("uni:alice", ["admin"])
    assert first.groups == ["netlab", "staff", "top"]
    assert await world.status_of(first) == ""
    life_ms = first.expires_at_ms - now_ms()
    assert 3_500_000 < life_ms <= 3_600_000
    assert 1_700_000 < first.renew_at_ms - now_ms() <= 1_800_000
    world.provider.groups = ["netlab"]
    world.provider.claims = {"preferred_username": "renamed"}
    second = await world.sign_in()
    assert (second.user_id, second.roles, second.groups) == ("uni:alice", [], ["netlab"])


async def test_request_has_pkce_nonce_state_and_the_own_redirect(world: World) -> None:
    started = await world.start()
    query = world.provider.note(started.authorization_url)
    assert query["redirect_uri"] == BACK
    assert query["code_challenge_method"] == "S256"
    assert (query["response_type"], query["scope"]) == ("code", "openid profile email")
    again = world.provider.note((await world.start()).authorization_url)
    for name in ("state", "nonce", "code_challenge"):
        assert len(query[name]) >= 43
        assert query[name] != again[name]
    world.provider.nonce = query["nonce"]
    await world.told(world.finishing(started), SignInReply)
    (form,) = world.provider.forms
    assert form["redirect_uri"] == BACK
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert encoded == query["code_challenge"]


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"nonce": "of another"}, "its nonce differs"),
        ({"nonce": ...}, "its nonce differs"),
        ({"aud": "another"}, "for another audience"),
        ({"iss": "https://evil.example"}, "from another issuer"),
        ({"exp": 1000}, "expired"),
        ({"iat": 9_000_000_000, "exp": 9_000_000_600}, "not valid yet"),
    ],
)
async def test_token_that_is_not_for_this_sign_in_is_rejected(
    world: World, claims: dict[str, Any], why: str
) -> None:
    world.provider.claims = claims
    status, details = await world.refused(world.finishing(await world.start()))
    assert status == Forbidden.code
    assert why in details
    assert (await world.refused(ReadCall(FindUser(caller=world.admin, user_id="uni:alice"))))[
        0
    ] == NotFound.code


async def test_forged_signature_and_unknown_key_are_rejected(world: World) -> None:
    world.provider.key = new_key()
    assert (await world.refused(world.finishing(await world.start())))[0] == Forbidden.code
    world.provider.kid = "made up"
    _, details = await world.refused(world.finishing(await world.start()))
    assert "a key that the provider does not publish" in details


async def test_replaced_key_is_fetched_and_invented_ones_do_not_flood_the_provider(world: World) -> None:
    await world.sign_in()
    provider = world.provider
    provider.key, provider.kid = new_key(), "k2"
    provider.published = {"k2": provider.key}
    assert (await world.sign_in()).user_id == "uni:alice"
    provider.kid = "made up"
    for _ in range(12):
        await world.refused(world.finishing(await world.start()))
    assert provider.asked.count("/jwks") <= 6


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"state": "another"}, Forbidden.code),
        ({"state": ""}, Forbidden.code),
        ({"issuer": "https://evil.example"}, Forbidden.code),
        ({"issuer": ""}, Forbidden.code),  # this provider names itself
        ({"provider": "other"}, Forbidden.code),
        ({"provider": "nobody"}, NotFound.code),
        ({"attempt": "AAAA"}, InvalidRequest.code),
        ({"attempt": ""}, InvalidRequest.code),
        ({"code": ""}, InvalidRequest.code),
        ({"code": "another"}, Forbidden.code),
    ],
)
async def test_answer_of_another_sign_in_is_rejected(
    world: World, changes: dict[str, str], status: str
) -> None:
    async with HostileProvider() as other:
        await world.put(name="other", issuer=other.issuer)
        started = await world.start()
        assert (await world.refused(world.finishing(started, **changes)))[0] == status
        assert other.forms == []  # the code goes to nobody else


async def test_altered_attempt_and_a_renewal_in_its_place_are_rejected(world: World) -> None:
    started, signed_in = await world.start(), await world.sign_in()
    flipped = ("B" if started.attempt[60] == "A" else "A").join((started.attempt[:60], started.attempt[61:]))
    for attempt in (flipped, signed_in.renewal):
        assert (await world.refused(world.finishing(started, attempt=attempt)))[0] == InvalidRequest.code
    call = RenewSignInCall("uni", started.attempt)
    assert (await world.refused(call))[0] == InvalidRequest.code


async def test_late_answer_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "ATTEMPT_MS", 0)
    assert (await world.refused(world.finishing(await world.start())))[0] == Gone.code


async def test_provider_without_an_allowed_group_admits_nobody_new(world: World) -> None:
    world.provider.groups = ["other"]
    assert (await world.refused(world.finishing(await world.start())))[0] == Forbidden.code
    assert (await world.refused(ReadCall(FindUser(caller=world.admin, user_id="uni:alice"))))[
        0
    ] == NotFound.code
    await world.put(secret=None, allowed_groups=["*"])
    assert (await world.sign_in()).groups == ["other"]


async def test_renewal_follows_the_claims_and_rotates(world: World) -> None:
    first = await world.sign_in()
    world.provider.groups = ["netlab", "staff"]
    second = await world.renew(first)
    assert (second.user_id, second.roles, second.groups) == ("uni:alice", ["admin"], ["netlab", "staff"])
    assert second.token != first.token
    assert second.renewal != first.renewal
    assert (
        await world.renew(first) == second
    )  # whose answer may have been lost: each refresh token is good once
    world.provider.has_id_token = (
        False  # some providers give none with a renewal: what they tell is beside it
    )
    third = await world.renew(second)
    assert third.groups == ["netlab", "staff"]
    assert jwt_payload(third.token)["sid"] == jwt_payload(first.token)["sid"]
    assert await world.status_of(first) == await world.status_of(third) == ""


async def test_lost_group_ends_every_token_with_the_next_renewal(world: World) -> None:
    world.provider.groups = ["netlab", "staff"]
    first, other = await world.sign_in(), await world.sign_in()
    world.provider.groups = ["staff"]
    assert (await world.refused(RenewSignInCall("uni", first.renewal)))[0] == Forbidden.code
    assert await world.status_of(first) == await world.status_of(other) == Unauthorized.code
    user = await world.user("uni:alice")
    assert (user.roles, user.groups) == ([], [])
    world.provider.groups = ["netlab"]
    assert (await world.refused(RenewSignInCall("uni", other.renewal)))[0] == Forbidden.code  # it was revoked
    assert (await world.sign_in()).groups == ["netlab"]


@pytest.mark.parametrize(
    "end",
    [
        lambda admin: PutUser(caller=admin, user_id="uni:alice", roles=None, groups=None, disabled=True),
        lambda admin: RevokeUser(caller=admin, user_id="uni:alice"),
        lambda admin: DeleteProvider(caller=admin, name="uni"),
    ],
)
async def test_who_is_disabled_or_revoked_renews_nothing(world: World, end: Any) -> None:
    first = await world.sign_in()
    await world.change(end(world.admin))
    assert (await world.refused(RenewSignInCall("uni", first.renewal)))[0] in (Forbidden.code, NotFound.code)


async def test_provider_that_does_not_answer_ends_no_session(world: World) -> None:
    first = await world.sign_in()
    await world.provider.stop()
    status, details = await world.refused(RenewSignInCall("uni", first.renewal))
    assert status == Unavailable.code
    assert "cannot be reached" in details
    assert await world.status_of(first) == ""


async def test_session_that_the_provider_ended_renews_nothing(world: World) -> None:
    first = await world.sign_in()
    world.provider.answers["/token"] = 400, b'{"error": "invalid_grant"}'
    assert (await world.refused(RenewSignInCall("uni", first.renewal)))[0] == Forbidden.code
    assert await world.status_of(first) == ""  # until it expires
    world.provider.answers["/token"] = 500, b""
    assert (await world.refused(RenewSignInCall("uni", first.renewal)))[0] == Unavailable.code


async def test_token_of_a_sign_in_is_renewed_by_the_provider_alone(world: World) -> None:
    first = await world.sign_in()
    payload = jwt_payload(first.token)
    caller = Caller("uni:alice", payload["gen"], first.token, payload["sid"])
    status, details = await world.refused(RenewTokenCall(caller, 0))
    assert (status, details) == (Forbidden.code, "You sign in with uni, which also renews your tokens.")


async def test_another_person_in_the_renewal_is_rejected(world: World) -> None:
    first = await world.sign_in()
    world.provider.subject = "mallory"
    assert (await world.refused(RenewSignInCall("uni", first.renewal)))[0] == Forbidden.code
    world.provider.has_id_token = False
    world.provider.answers["/token"] = 200, b'{"access_token": "a", "refresh_token": "r"}'
    second = await world.refused(RenewSignInCall("uni", first.renewal))
    assert second == (Forbidden.code, "The provider told of another person than the one who signs in.")


async def test_name_leads_to_no_user_that_was_there_before(world: World) -> None:
    await world.change(
        PutUser(caller=world.admin, user_id="uni:alice", roles=["admin"], groups=[], disabled=False)
    )
    await world.change(
        PutUser(caller=world.admin, user_id="alice", roles=["admin"], groups=[], disabled=False)
    )
    assert (await world.sign_in()).user_id == "uni:alice-2"
    world.provider.subject = "another"
    third = await world.sign_in()
    assert (third.user_id, third.roles) == ("uni:alice-3", [])
    await world.change(DeleteUser(caller=world.admin, user_id="uni:alice-3"))
    assert await world.status_of(third) == Unauthorized.code
    assert (await world.sign_in()).user_id == "uni:alice-3"  # a new user of this name


async def test_secret_is_sealed_kept_and_never_sent_to_another_issuer(world: World) -> None:
    assert (await world.put(secret=None, label="New")).has_secret
    await world.sign_in()
    assert world.provider.authorizations[-1].startswith("Basic ")
    async with HostileProvider() as evil:
        moved = Provider(
            name="uni", label="x", issuer=evil.issuer, client_id="filestore", allowed_groups=["*"]
        )
        status, details = await world.refused(PutProviderCall(world.admin, moved, None, None))
        assert status == InvalidRequest.code
        assert details.startswith("client_secret: is required")
        await world.told(PutProviderCall(world.admin, moved, "", None), ProviderRecord)
    ledger = world.leader.files
    held = [ledger.state, *ledger.data.glob("state.sqlite*"), *ledger.log.rglob("*")]
    for path in held:
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
            assert b"refresh-" not in path.read_bytes()
            assert b"the-access-token" not in path.read_bytes()


async def test_issuer_belongs_to_one_provider_and_admins_configure_alone(world: World) -> None:
    fields: dict[str, Any] = {
        "label": "x",
        "issuer": world.provider.issuer,
        "client_id": "c",
        "allowed_groups": ["*"],
    }
    call = PutProviderCall(world.admin, Provider(name="twin", **fields), None, None)
    assert (await world.refused(call))[0] == Conflict.code
    signed_in = await world.sign_in()
    payload = jwt_payload(signed_in.token)
    person = Caller("uni:alice", payload["gen"], signed_in.token, payload["sid"])
    for asked in (
        PutProviderCall(person, Provider(name="mine", **fields), None, None),
        TestProviderCall(person, "uni"),
        ReadCall(FindProvider(caller=person, name="uni")),
    ):
        assert (await world.refused(asked))[0] == Forbidden.code


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"issuer": "https://evil.example"}, "which is not the issuer"),
        ({"token_endpoint": "http://evil.example/token"}, "token_endpoint: an https URL"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri: an https URL"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint: an https URL"),
        ({"userinfo_endpoint": 5}, ""),
        ({"jwks_uri": ""}, "jwks_uri: an https URL"),
    ],
)
async def test_provider_with_unusable_metadata_is_not_used(
    world: World, metadata: dict[str, Any], why: str
) -> None:
    world.provider.metadata = metadata
    answer = await world.node.ask(StartSignInCall("uni", "console", BACK))
    assert answer is not None
    assert answer.status == (Unavailable.code if why else wire.OK)
    assert why in answer.details


@pytest.mark.parametrize(
    "told",
    [
        (200, b"[" * 100_000),
        (200, b"x" * (600 << 10)),
        (200, b""),
        (302, b"{}"),
        (200, b"\xff"),
        (500, b"{}"),
    ],
)
@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/jwks", "/token"])
async def test_hostile_answers_are_refused(world: World, path: str, told: tuple[int, bytes]) -> None:
    started = await world.start() if path != "/.well-known/openid-configuration" else None
    world.provider.answers[path] = told
    call = world.finishing(started) if started else StartSignInCall("uni", "console", BACK)
    assert (await world.refused(call))[0] in (Unavailable.code, Forbidden.code)


async def test_steps_of_a_test_say_what_works_and_what_does_not(world: World) -> None:
    steps = await world.told(TestProviderCall(world.admin, "uni"), list[TestStep])
    assert {step.step: step.is_ok for step in steps} == {
        "configuration": True,
        "keys": True,
        "signatures": True,
        "PKCE": True,
        "renewal": True,
        "device grant": None,
        "client filestore": True,
        "groups": True,
    }
    world.provider.answers["/token"] = 401, b'{"error": "invalid_client"}'
    steps = await world.told(TestProviderCall(world.admin, "uni"), list[TestStep])
    assert [step.step for step in steps if step.is_ok is False] == ["client filestore"]
    world.provider.answers["/jwks"] = 404, b""
    steps = await world.told(TestProviderCall(world.admin, "uni"), list[TestStep])
    assert [(step.step, step.is_ok) for step in steps] == [("configuration", True), ("keys", False)]


async def test_calls_and_seals_show_no_secret(world: World) -> None:
    signed_in = await world.sign_in()
    call = RenewSignInCall("uni", signed_in.renewal)
    assert signed_in.renewal not in repr(call)
    assert SECRET not in repr(
        PutProviderCall(world.admin, Provider(name="x", label="x", issuer="x", client_id="x"), SECRET, None)
    )
    assert "refresh" not in signed_in.renewal
    assert await world.told(EndSignInCall("uni", signed_in.renewal), str) == "uni:alice"

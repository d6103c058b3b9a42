"""Renewed tokens and tickets at the coordinator that leads: who gets one, and what each is good for there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from ca.errors import Forbidden, Gone, InvalidRequest, NotAvailable, NotFound, Unauthorized, Unavailable
from ca.usertoken import SERVICE_TTL_SECONDS_MAX, TTL_SECONDS_MAX
from coordinator.rpc.server import value_of
from coordinator.user_tokens import UserTokens
from metadata.model.listed_records import SessionPage
from metadata.model.records import Caller, ContentRecord, UserRecord
from metadata.model.rules import LONG_SERVICE_TOKENS
from metadata.protocol.calls import (
    AnyCall,
    MintCall,
    MintReply,
    ProposeCall,
    ReadCall,
    RenewTokenCall,
    StatusCall,
    StatusReply,
    TicketCall,
    TicketReply,
)
from metadata.protocol.commands import (
    AnyCommand,
    DeleteUser,
    EndSession,
    PutUser,
    RevokeUser,
    WithdrawPermission,
)
from metadata.protocol.people_queries import ListSessions
from metadata.protocol.queries import CheckAdmin, GetContent, GetTicketContent, GetUser
from metadata.rpc import wire
from runtime.clock import now_ms
from tests.unit.coordinator_group import Coordinator, Spoken, group_in, speaking
from tests.unit.state import ADMIN, complete, create, grant

DEADLINE_S = 30.0
LIFE_S = 300
_T = TypeVar("_T")

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


class Leading:
    """The coordinator that leads, and a node that asks it. `ann` may read the file f1, nobody f2."""

    def __init__(self, leader: Coordinator, node: Spoken) -> None:
        self.leader = leader
        self._node = node
        self.admin = self.caller("admin", 1)
        self.generation = 0  # that of ann

    @property
    def ann(self) -> Caller:
        return self.caller("ann", self.generation)

    def caller(self, user_id: str, generation: int, *, ago_s: int = 0, token_id: str = "t") -> Caller:
        token = self.leader.member.authority.sign_user_token(
            subject=user_id,
            generation=generation,
            roles=("admin",),  # which nobody believes
            groups=(),
            at_ms=now_ms() - ago_s * 1000,
            ttl_seconds=LIFE_S,
            token_id=token_id,
        )
        return Caller(user_id, generation, token)

    async def ask(self, call: AnyCall) -> wire.AnswerFrame:
        answer = await self._node.ask(call)
        assert answer is not None
        return answer

    async def told(self, call: AnyCall, answer_type: type[_T]) -> _T:
        answer = await self.ask(call)
        assert answer.status == wire.OK, answer
        return msgspec.msgpack.decode(answer.value, type=answer_type)

    async def status(self, call: AnyCall) -> str:
        return (await self.ask(call)).status

    async def change(self, command: AnyCommand) -> None:
        answer = await self.ask(ProposeCall(0, 0, 0, command))
        assert answer.status == wire.OK, answer

    async def renewed(self, caller: Caller, ttl_seconds: int = 60) -> MintReply:
        return await self.told(RenewTokenCall(caller, ttl_seconds), MintReply)

    async def ticket(self, caller: Caller, file_uuid: str = "f1") -> Caller:
        """The caller with a ticket in place of a token."""
        reply = await self.told(TicketCall(caller, file_uuid, 60), TicketReply)
        return Caller(caller.subject, caller.generation, reply.ticket)


@pytest.fixture
async def leading(tmp_path: Path) -> AsyncIterator[Leading]:
    (leader,) = group_in(tmp_path, "c1")
    async with asyncio.timeout(DEADLINE_S), leader.run():
        await leader.leads()
        await leader.joined("n2", tmp_path)
        contexts = await leader.joined("n1", tmp_path)
        async with speaking(leader.record, "/rpc", contexts) as node:
            led = Leading(leader, node)
            ann = PutUser(caller=led.admin, user_id="ann", roles=["r"], groups=["g"], disabled=False)
            led.generation = (await led.told(ProposeCall(0, 0, 0, ann), UserRecord)).generation
            for name in ("f1", "f2"):
                value_of(await leader.member.driver.propose(create(ADMIN, name, placement=["n1", "n2"])))
            value_of(await leader.member.driver.propose(complete(ADMIN, "f1", "aa", ["n1", "n2"])))
            await led.change(grant(led.admin, "file:f1", "user:ann", "read"))
            yield led


Make = Callable[[UserRecord, int], Awaitable[MintReply]]


def minting(tokens: UserTokens) -> Make:
    return lambda found, ttl_seconds: tokens.mint(found, ttl_seconds, created_by="admin", label="token")


def renewing(tokens: UserTokens) -> Make:
    return lambda found, ttl_seconds: tokens.issue(
        found, ttl_seconds=ttl_seconds, created_by="ann", label="token", session_id="s1"
    )


def user(*roles: str, generation: int = 1) -> UserRecord:
    return UserRecord(
        user_id="ann",
        roles=list(roles),
        groups=[],
        generation=generation,
        disabled=False,
        created_at_ms=0,
        updated_at_ms=0,
    )


def read(caller: Caller, file_uuid: str = "f1") -> ReadCall:
    return ReadCall(GetTicketContent(caller=caller, file_uuid=file_uuid))


async def test_renewed_token_is_good_and_has_the_rights_of_the_record(leading: Leading) -> None:
    reply = await leading.renewed(leading.ann)
    assert (reply.user_id, reply.roles, reply.groups) == ("ann", ["r"], ["g"])
    assert reply.expires_at_ms == pytest.approx(now_ms() + 60_000, abs=10_000)
    again = Caller("ann", leading.generation, reply.token)
    assert (await leading.told(ReadCall(GetUser(caller=again)), UserRecord)).user_id == "ann"
    assert await leading.status(ReadCall(CheckAdmin(caller=again))) == Forbidden.code
    assert (await leading.renewed(again)).user_id == "ann"


@pytest.mark.parametrize(
    "end",
    [
        lambda admin: RevokeUser(caller=admin, user_id="ann"),
        lambda admin: DeleteUser(caller=admin, user_id="ann"),
        lambda admin: PutUser(caller=admin, user_id="ann", roles=None, groups=None, disabled=True),
    ],
)
async def test_who_was_revoked_deleted_or_disabled_renews_nothing(leading: Leading, end: Any) -> None:
    ann = leading.ann
    before = await leading.renewed(ann)
    ticket = await leading.ticket(ann)
    await leading.change(end(leading.admin))
    for caller in (ann, Caller("ann", leading.generation, before.token)):
        assert await leading.status(RenewTokenCall(caller, 60)) == Unauthorized.code
        assert await leading.status(ReadCall(GetUser(caller=caller))) == Unauthorized.code
        assert await leading.status(TicketCall(caller, "f1", 60)) == Unauthorized.code
    assert await leading.status(read(ticket)) == Unauthorized.code


async def test_caller_that_its_token_does_not_name_renews_nothing(leading: Leading) -> None:
    ann = leading.ann
    generation = leading.generation
    strangers = [
        leading.caller("ann", generation, ago_s=LIFE_S + 60),
        leading.caller("ann", generation - 1),
        leading.caller("ann", generation + 1),
        leading.caller("nobody", 1),
        Caller("admin", 1, ann.token),
        Caller("ann", generation + 1, ann.token),
        Caller("ann", generation),
        Caller("ann", generation, "x"),
        await leading.ticket(ann),
    ]
    for caller in strangers:
        assert await leading.status(RenewTokenCall(caller, 60)) == Unauthorized.code
        assert await leading.status(TicketCall(caller, "f1", 60)) == Unauthorized.code


async def test_life_of_a_renewed_token_is_bounded(leading: Leading) -> None:
    ann = leading.ann
    assert await leading.status(RenewTokenCall(ann, TTL_SECONDS_MAX + 1)) == InvalidRequest.code
    assert (await leading.renewed(ann, TTL_SECONDS_MAX)).token
    assert await leading.status(MintCall(leading.admin, "ann", None, None, TTL_SECONDS_MAX + 1, 0, 0, 0)) == (
        InvalidRequest.code
    )
    for ttl_seconds in (0, 59, 3601):
        assert await leading.status(TicketCall(ann, "f1", ttl_seconds)) == InvalidRequest.code


async def test_renewal_without_a_life_gets_30_days(leading: Leading) -> None:
    reply = await leading.renewed(leading.ann, 0)
    assert reply.expires_at_ms == pytest.approx(now_ms() + TTL_SECONDS_MAX * 1000, abs=10_000)


async def test_service_gets_a_longer_life(leading: Leading) -> None:
    ann, year = leading.ann, SERVICE_TTL_SECONDS_MAX
    service = PutUser(caller=leading.admin, user_id="ann", roles=["service"], groups=None, disabled=None)
    await leading.change(service)
    again = await leading.renewed(ann, year)
    assert again.expires_at_ms == pytest.approx(now_ms() + year * 1000, abs=10_000)
    caller = Caller("ann", leading.generation, again.token)
    assert (await leading.told(ReadCall(GetUser(caller=caller)), UserRecord)).user_id == "ann"
    assert await leading.status(RenewTokenCall(ann, year + 1)) == InvalidRequest.code
    minted = await leading.told(MintCall(leading.admin, "bob", ["service"], [], year, 0, 0, 0), MintReply)
    assert minted.roles == ["service"]


async def test_life_that_older_members_would_refuse_is_not_given(leading: Leading) -> None:
    member = leading.leader.member
    tokens = UserTokens(
        member.authority,
        member.clocks,
        member.driver,
        ttl_s_max=TTL_SECONDS_MAX,
        service_ttl_s_max=SERVICE_TTL_SECONDS_MAX,
        rules=lambda: LONG_SERVICE_TOKENS - 1,
    )
    for make in (minting(tokens), renewing(tokens)):
        assert (await make(user("service"), TTL_SECONDS_MAX)).token
        with pytest.raises(Unavailable, match="Upgrade members that run an older version"):
            await make(user("service"), TTL_SECONDS_MAX + 1)


async def test_operator_may_allow_less(leading: Leading) -> None:
    files = leading.leader.files
    config = msgspec.json.decode(files.config.read_bytes())
    less = {"token_ttl_s_max": 3600, "service_token_ttl_s_max": TTL_SECONDS_MAX}
    files.config.write_bytes(msgspec.json.encode(config | less))
    config = files.read_config()
    member = leading.leader.member
    tokens = UserTokens(
        member.authority,
        member.clocks,
        member.driver,
        ttl_s_max=config.token_ttl_s_max,
        service_ttl_s_max=config.service_token_ttl_s_max,
        rules=lambda: LONG_SERVICE_TOKENS,
    )
    for make in (minting(tokens), renewing(tokens)):
        ann, service = (user(*roles, generation=leading.generation) for roles in ((), ("service",)))
        made = await make(ann, 0)
        assert made.expires_at_ms == pytest.approx(now_ms() + 3_600_000, abs=10_000)
        with pytest.raises(InvalidRequest, match="at most 3600 for this user"):
            await make(ann, 3601)
        assert (await make(service, TTL_SECONDS_MAX)).token
        with pytest.raises(InvalidRequest):
            await make(service, TTL_SECONDS_MAX + 1)


async def test_ticket_opens_the_file_that_it_is_for_and_nothing_else(leading: Leading) -> None:
    ann = leading.ann
    ticket = await leading.ticket(ann)
    found = await leading.told(read(ticket), ContentRecord)
    assert (found.file.file_uuid, found.replicas) == ("f1", ["n1", "n2"])
    assert await leading.status(read(ann)) == Unauthorized.code  # a user token is no ticket
    assert await leading.status(read(ticket, "f2")) == Unauthorized.code
    assert await leading.status(read(Caller("admin", 1, ticket.token))) == Unauthorized.code
    assert await leading.status(read(Caller("ann", 1, ticket.token))) == Unauthorized.code
    for query in (GetContent(caller=ticket, file_uuid="f1"), GetUser(caller=ticket)):
        assert await leading.status(ReadCall(query)) == Unauthorized.code
    rename = PutUser(caller=ticket, user_id="ann", roles=["admin"], groups=None, disabled=None)
    assert await leading.status(ProposeCall(0, 0, 0, rename)) == Unauthorized.code


async def test_ticket_is_for_what_may_be_read_now(leading: Leading) -> None:
    ann = leading.ann
    for file_uuid, code in (("f2", Forbidden.code), ("f3", NotFound.code)):
        assert await leading.status(TicketCall(ann, file_uuid, 60)) == code
    assert await leading.status(TicketCall(leading.admin, "f2", 60)) == NotAvailable.code
    ticket = await leading.ticket(ann)
    assert await leading.status(read(ticket)) == wire.OK
    given = WithdrawPermission(
        caller=leading.admin, target="file", target_id="f1", permission_id="file:f1 user:ann read"
    )
    await leading.change(given)
    assert await leading.status(read(ticket)) == Forbidden.code


async def test_ticket_that_has_ended_is_told_as_such(leading: Leading) -> None:
    ended = leading.leader.member.authority.sign_ticket(
        subject="ann",
        generation=leading.generation,
        file_uuid="f1",
        at_ms=now_ms() - 61_000,
        ttl_seconds=60,
    )
    assert await leading.status(read(Caller("ann", leading.generation, ended))) == Gone.code


async def test_session_is_recorded_and_a_ticket_is_not(leading: Leading) -> None:
    ann, status = leading.ann, StatusCall(leading.admin)
    before = await leading.told(status, StatusReply)
    await leading.ticket(ann)
    between = await leading.told(status, StatusReply)
    assert between.coordinator.last_index == before.coordinator.last_index
    await leading.renewed(ann)
    await leading.renewed(ann)
    after = await leading.told(status, StatusReply)
    assert after.coordinator.last_index == before.coordinator.last_index + 2
    sessions = await leading.told(ReadCall(ListSessions(caller=ann, user_id="ann")), SessionPage)
    assert [each.session_id for each in sessions.sessions] == ["t"]


async def test_tokens_and_tickets_of_an_ended_session_are_rejected(leading: Leading) -> None:
    ann = leading.ann
    reply = await leading.renewed(ann)
    again = Caller("ann", leading.generation, reply.token)
    other = Caller("ann", leading.generation, "", "t")  # a node's word for the session counts for nothing
    ticket = await leading.ticket(again)
    assert await leading.status(read(ticket)) == wire.OK
    await leading.change(EndSession(caller=again, user_id="ann", session_id="t"))
    for caller in (ann, again):
        assert await leading.status(ReadCall(GetUser(caller=caller))) == Unauthorized.code
        assert await leading.status(RenewTokenCall(caller, 60)) == Unauthorized.code
    assert await leading.status(read(ticket)) == Unauthorized.code
    assert await leading.status(ReadCall(GetUser(caller=other))) == Unauthorized.code
    lone = leading.caller("ann", leading.generation, token_id="t2")
    assert await leading.status(ReadCall(GetUser(caller=lone))) == wire.OK

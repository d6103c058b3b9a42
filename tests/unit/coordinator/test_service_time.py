"""By which time a leader whose clock is an hour ahead of all nodes' dates, judges and signs: by theirs."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from ca.errors import Forbidden, Gone, Unauthorized
from ca.identity import Identity, Role
from coordinator.raft.membership import decode_membership
from coordinator.raft.messages import EntryKind
from coordinator.rpc.server import value_of
from metadata.model.records import DEFAULT_BUCKET_ID, Caller, UserRecord
from metadata.model.rules import RULES
from metadata.protocol.calls import (
    AnyCall,
    HeartbeatCall,
    HeartbeatReply,
    MintCall,
    MintReply,
    ProposeCall,
    ReadCall,
)
from metadata.protocol.commands import (
    AdmitUser,
    AnyCommand,
    Collect,
    CollectOverQuota,
    DeleteFile,
    Expire,
    PutUser,
    RecordCoordinators,
    decode_envelope,
)
from metadata.protocol.queries import CheckAdmin, CountCollectable, GetProjectFile, GetPublicContent
from metadata.rpc import wire
from runtime.clock import now_ms
from tests.unit.coordinator_group import CLUSTER, Coordinator, Spoken, group_in, speaking
from tests.unit.state import HOUR_MS, complete, coordinator, create, create_bucket, grant, public_token

DEADLINE_S = 30.0
ABOUT_MS = 60_000  # a test takes less
HALF_MS, DAY_MS = HOUR_MS // 2, 24 * HOUR_MS
_T = TypeVar("_T")

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


class Ahead:
    """The leader whose clock is an hour ahead, as the nodes n1 and n2 tell it; n1 asks."""

    def __init__(self, leader: Coordinator, node: Spoken) -> None:
        self.leader = leader
        self._node = node
        self.admin = self.caller("admin", at_ms=now_ms() - HOUR_MS)

    def caller(self, user_id: str, generation: int = 1, *, at_ms: int) -> Caller:
        """With a token of five minutes."""
        token = self.leader.member.authority.sign_user_token(
            subject=user_id,
            generation=generation,
            roles=(),
            groups=(),
            at_ms=at_ms,
            ttl_seconds=300,
            token_id="t",
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


def clocks_show(leader: Coordinator, behind_ms: int) -> None:
    """What all nodes say of the time, from now on."""
    for name in ("n1", "n2"):
        leader.member.clocks.receive(Identity(CLUSTER, Role.NODE, name), now_ms() - behind_ms)


@pytest.fixture
async def ahead(tmp_path: Path) -> AsyncIterator[Ahead]:
    (leader,) = group_in(tmp_path, "c1")
    async with asyncio.timeout(DEADLINE_S), leader.run():
        await leader.leads()
        clocks_show(leader, HOUR_MS)
        await leader.joined("n2", tmp_path)
        contexts = await leader.joined("n1", tmp_path)
        async with speaking(leader.record, "/rpc", contexts) as node:
            yield Ahead(leader, node)


def about(at_ms: int) -> Any:
    return pytest.approx(at_ms, abs=ABOUT_MS)


async def test_nodes_are_told_the_time_of_most_clocks(ahead: Ahead) -> None:
    beat = HeartbeatCall(0, 0, 0, at_ms=now_ms() - HOUR_MS, rules=RULES)
    assert (await ahead.told(beat, HeartbeatReply)).at_ms == about(now_ms() - HOUR_MS)


async def test_records_and_tokens_are_dated_by_most_clocks(ahead: Ahead) -> None:
    made = await ahead.told(
        ProposeCall(
            0, 0, 0, PutUser(caller=ahead.admin, user_id="alice", roles=[], groups=[], disabled=False)
        ),
        UserRecord,
    )
    assert made.created_at_ms == about(now_ms() - HOUR_MS)
    minted = await ahead.told(MintCall(ahead.admin, "bob", None, None, 300, 0, 0, 0), MintReply)
    assert minted.expires_at_ms == about(now_ms() - HOUR_MS + 300_000)


async def test_token_is_good_by_most_clocks_alone(ahead: Ahead) -> None:
    assert await ahead.status(ReadCall(CheckAdmin(caller=ahead.admin))) == wire.OK
    for at_ms in (now_ms(), now_ms() - 2 * HOUR_MS):
        late = ahead.caller("admin", at_ms=at_ms)
        assert await ahead.status(ReadCall(CheckAdmin(caller=late))) == Unauthorized.code


async def test_permissions_and_links_are_judged_by_most_clocks(ahead: Ahead) -> None:
    """They end in half an hour; by our own clock that was half an hour ago."""
    ends_ms, admin = now_ms() - HALF_MS, ahead.admin.unsigned()
    admit = AdmitUser(caller=admin, user_id="bob", roles=None, groups=None)
    reply = value_of(await ahead.leader.member.driver.propose(admit))
    generation = msgspec.msgpack.decode(reply, type=UserRecord).generation
    for command in (
        create(admin, "f1", placement=["n1", "n2"]),
        complete(admin, "f1", "a" * 64, ["n1", "n2"]),
        grant(admin, "file:f1", "user:bob", expires_at_ms=ends_ms),
        public_token(admin, "f1", "t1", expires_at_ms=ends_ms, bucket_id=DEFAULT_BUCKET_ID),
    ):
        value_of(await ahead.leader.member.driver.propose(command))
    link = ReadCall(GetPublicContent(bucket_id=DEFAULT_BUCKET_ID, token_sha256="sha-t1"))

    def read(at_ms: int) -> ReadCall:
        bob = ahead.caller("bob", generation, at_ms=at_ms)
        return ReadCall(GetProjectFile(caller=bob, file_uuid="f1"))

    assert await ahead.status(read(now_ms() - HOUR_MS)) == wire.OK
    assert await ahead.status(link) == wire.OK
    clocks_show(ahead.leader, HALF_MS - ABOUT_MS)
    assert await ahead.status(read(now_ms() - HALF_MS + ABOUT_MS)) == Forbidden.code
    assert await ahead.status(link) == Gone.code


async def test_certificates_are_signed_by_most_clocks(ahead: Ahead) -> None:
    begins_ms = []
    for behind_ms in (HOUR_MS, 0, 72 * HOUR_MS):
        clocks_show(ahead.leader, behind_ms)
        contexts = ahead.leader.contexts_for("c9", ahead.leader.files.data)
        begins_ms.append(contexts.credential.renewal().not_before_ms)
    assert begins_ms[1] - begins_ms[0] == about(HOUR_MS)
    assert begins_ms[1] - begins_ms[2] == about(72 * HOUR_MS)  # the machines' clocks, by which TLS goes
    beat = HeartbeatCall(0, 0, 0, at_ms=now_ms() - 72 * HOUR_MS, rules=RULES)
    assert await ahead.status(beat) == wire.OK  # with a certificate that is not valid yet by those


async def test_change_of_the_group_is_dated_by_most_clocks_and_an_end_by_the_earliest(ahead: Ahead) -> None:
    """Clocks that show a later time than before have yet to show it for a day."""
    driver, log = ahead.leader.member.driver, ahead.leader.member.driver._log
    await ahead.leader.let_in(ahead.leader.record, coordinator("c2", role="learner"))
    (change,) = log.entries(driver.applied_index, driver.applied_index + 1, 1 << 20)
    assert change.kind is EntryKind.MEMBERSHIP
    envelope = decode_envelope(decode_membership(change.data).payload)
    assert isinstance(envelope.command, RecordCoordinators)
    assert envelope.at_ms == about(now_ms() - HOUR_MS)
    ends: list[AnyCommand] = [Expire(), Collect(), CollectOverQuota(rows_max=1, grace_ms=DAY_MS)]
    for behind_ms, end in itertools.product((HOUR_MS, -HOUR_MS), ends):
        clocks_show(ahead.leader, behind_ms)
        await driver.propose(end)
        (entry,) = log.entries(driver.applied_index, driver.applied_index + 1, 1 << 20)
        assert decode_envelope(entry.data).at_ms == about(now_ms() - HOUR_MS)


async def test_clocks_that_jump_ahead_make_nothing_due_before_they_are_believed(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, admin = ahead.leader.member, ahead.admin.unsigned()
    for command in (
        create_bucket(admin, "b1", quota_bytes=5),
        create(admin, "f1", bucket_id="b1", placement=["n1", "n2"]),
        complete(admin, "f1", "a" * 64, ["n1", "n2"]),
        DeleteFile(caller=admin, file_uuid="f1", kind=""),
        create(admin, "f2", bucket_id="b1", placement=["n1", "n2"], retention_hours=24),
        complete(admin, "f2", "b" * 64, ["n1", "n2"]),
    ):
        value_of(await member.driver.propose(command))
    beat = HeartbeatCall(0, 0, 0, at_ms=now_ms() + 3 * DAY_MS, rules=RULES)
    await ahead.told(beat, HeartbeatReply)
    clocks_show(ahead.leader, -3 * DAY_MS)
    monkeypatch.setattr(member.clocks, "_wall_ms", lambda: now_ms() + 3 * DAY_MS)
    context, expire = member.quotas._context, member.job_runs._jobs["expire"]

    def due() -> tuple[bool, bool, int]:
        collectable = context.ask_applied(CountCollectable(grace_ms=DAY_MS, limit=10), int)
        return expire.is_due(), bool(member.quotas._due()), collectable

    assert due() == (False, False, 0)
    member.clocks.follow(member.clocks.shown_ms())
    assert due() == (True, True, 1)

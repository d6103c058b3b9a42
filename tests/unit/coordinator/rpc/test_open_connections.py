"""Connections to a coordinator's peer port that are open when who made them loses the right to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ca.errors import Gone
from ca.identity import Identity, Role
from coordinator.raft.messages import Message, MessageKind
from metadata.model.rules import RULES
from metadata.protocol.calls import (
    AnyCall,
    FollowCall,
    HeartbeatCall,
    ReadCall,
    RenewCall,
    RulesCall,
    SnapshotCall,
    SnapshotChunkCall,
)
from metadata.protocol.queries import GetView
from metadata.rpc import wire
from metadata.rpc.instances import Instance
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.websocket import dialling
from runtime.clock import now_ms
from tests.unit.coordinator_group import CLUSTER, Coordinator, Spoken, group_in, speaking
from tests.unit.state import HOUR_MS, coordinator

DEADLINE_S = 30.0
CALLS: list[AnyCall] = [
    ReadCall(GetView()),
    HeartbeatCall(0, 0, 0),
    FollowCall("s", 0, 0),
    RenewCall("csr"),
    RulesCall(),
    SnapshotCall(1),
    SnapshotChunkCall(1, 1, 0),
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


@asynccontextmanager
async def leader_in(directory: Path) -> AsyncIterator[Coordinator]:
    """The only one with a vote."""
    (leader,) = group_in(directory, "c1")
    async with asyncio.timeout(DEADLINE_S), leader.run():
        await leader.leads()
        yield leader


async def test_call_of_a_removed_node_ends_its_open_connection(tmp_path: Path) -> None:
    async with leader_in(tmp_path) as leader, AsyncExitStack() as stack:
        contexts = await leader.joined("n1", tmp_path)
        spoken = await dialled(stack, leader, contexts)
        for node in spoken:
            await is_answered(node)
        await leader.remove_node("n1")
        for call, node in zip(CALLS, spoken, strict=True):
            assert await node.ask(call) is None, call


async def test_call_of_a_removed_coordinator_ends_its_open_connection(tmp_path: Path) -> None:
    async with leader_in(tmp_path) as leader, AsyncExitStack() as stack:
        await leader.let_in(leader.record, coordinator("c2", role="learner"))
        contexts = leader.contexts_for("c2", tmp_path)
        spoken = await dialled(stack, leader, contexts)
        for removed in spoken:
            await is_answered(removed)
        await leader.let_in(leader.record)
        for call, removed in zip(CALLS, spoken, strict=True):
            assert await removed.ask(call) is None, call


async def dialled(stack: AsyncExitStack, to: Coordinator, contexts: MemberContexts) -> list[Spoken]:
    """As many connections as there are calls."""
    http = await stack.enter_async_context(dialling())
    return [await stack.enter_async_context(speaking(to.record, "/rpc", contexts, http=http)) for _ in CALLS]


async def is_answered(member: Spoken) -> None:
    answer = await member.ask(ReadCall(GetView()))
    assert answer is not None
    assert answer.status == wire.OK


async def test_message_of_a_removed_coordinator_reaches_no_core(tmp_path: Path) -> None:
    async with leader_in(tmp_path) as leader:
        await leader.let_in(leader.record, coordinator("c2", role="learner"))
        contexts = leader.contexts_for("c2", tmp_path)
        async with speaking(leader.record, "/raft", contexts) as removed:
            before = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1)
            await removed.say(before)
            await leader.has_heard(before)
            await leader.let_in(leader.record)
            after = Message(MessageKind.VOTE, "c2", "c1", 1000, log_index=1000, log_term=999, transfer=True)
            await removed.say(after)
            assert await removed.is_closed()
            assert after not in leader.heard
            assert leader.member.driver.is_leader


async def test_certificate_that_ends_ends_the_connections_that_it_opened(tmp_path: Path) -> None:
    """By the time that most clocks show: a week goes by at once."""
    async with leader_in(tmp_path) as leader, AsyncExitStack() as stack:
        await leader.let_in(leader.record, coordinator("c2", role="learner"))
        contexts = leader.contexts_for("c2", tmp_path)
        sender, caller = [
            await stack.enter_async_context(speaking(leader.record, path, contexts))
            for path in ("/raft", "/rpc")
        ]
        before = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1)
        await sender.say(before)
        await leader.has_heard(before)
        await is_answered(caller)
        for name in ("n1", "n2"):
            leader.member.clocks.receive(Identity(CLUSTER, Role.NODE, name), now_ms() + 8 * 24 * HOUR_MS)
        late = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1, round=7)
        await sender.say(late)
        assert await sender.is_closed()
        assert late not in leader.heard
        assert await caller.ask(RulesCall()) is None


async def test_message_of_an_earlier_instance_reaches_no_core(tmp_path: Path) -> None:
    """Two processes of one name, a machine and its copy: only the one that came last counts."""
    first = Instance("a" * 16, 1, "1" * 16)
    second = msgspec.structs.replace(first, start=2, process="2" * 16)
    async with leader_in(tmp_path) as leader:
        await leader.let_in(leader.record, coordinator("c2", role="learner"))
        contexts = leader.contexts_for("c2", tmp_path)
        async with speaking(leader.record, "/raft", contexts, instance=first) as earlier:
            before = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1)
            await earlier.say(before)
            await leader.has_heard(before)
            async with speaking(leader.record, "/raft", contexts, instance=second) as later:
                late = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1, round=7)
                await earlier.say(late)
                assert await earlier.is_closed()
                assert late not in leader.heard
                new = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1, round=8)
                await later.say(new)
                await leader.has_heard(new)


async def test_subscription_of_a_removed_node_is_refused_when_it_is_answered(tmp_path: Path) -> None:
    """It may wait for news when its node is removed: it gets none, and no leave to keep anything."""
    async with leader_in(tmp_path) as leader:
        contexts = await leader.joined("n1", tmp_path)
        async with speaking(leader.record, "/rpc", contexts) as node:
            term = leader.member.driver.status().term
            call = FollowCall("s", term, leader.member.driver.following._leases.version)
            await node.begin(call)
            await leader.remove_node("n1")
            answer = await node.answer()
            assert answer is not None
            assert answer.status == Gone.code


class Held:
    """The reads of one follower, whose leader does not answer until the test says so."""

    def __init__(self, leader: Coordinator) -> None:
        self.asked = asyncio.Event()
        self._leader = leader
        leader.transport.loses = self._is_answer

    def _is_answer(self, message: Message) -> bool:
        is_answer = message.kind is MessageKind.READ_INDEX_REPLY
        if is_answer:
            self.asked.set()
        return is_answer

    def let_go(self) -> None:
        self._leader.transport.loses = lambda _: False


@asynccontextmanager
async def leader_and_follower_in(directory: Path) -> AsyncIterator[tuple[Coordinator, Coordinator]]:
    leader, follower = group_in(directory, "c1", "c2")
    async with asyncio.timeout(DEADLINE_S), leader.run() as first, follower.run():
        while not first.driver.leader:
            await asyncio.sleep(0.01)
        if not first.driver.is_leader:
            leader, follower = follower, leader
        await leader.leads()
        yield leader, follower


@pytest.mark.parametrize(
    "call", [ReadCall(GetView()), HeartbeatCall(0, 0, 0, rules=RULES)], ids=lambda call: type(call).__name__
)
async def test_read_that_was_asked_before_its_node_was_removed_is_refused(
    tmp_path: Path, call: AnyCall
) -> None:
    async with leader_and_follower_in(tmp_path) as (leader, follower):
        contexts = await leader.joined("n1", tmp_path)
        await applied_at(leader, follower)
        async with speaking(follower.record, "/rpc", contexts) as node:
            await is_answered(node)
            held = Held(leader)
            await node.begin(call)
            await held.asked.wait()
            await leader.remove_node("n1")
            await applied_at(leader, follower)
            held.let_go()
            answer = await node.answer()
            assert answer is not None
            assert answer.status == Gone.code


async def test_read_that_was_asked_before_the_state_was_found_to_be_wrong_is_asked_of_another(
    tmp_path: Path,
) -> None:
    async with (
        leader_and_follower_in(tmp_path) as (leader, follower),
        speaking(follower.record, "/rpc", leader.contexts) as other,
    ):
        held = Held(leader)
        await other.begin(ReadCall(GetView()))
        await held.asked.wait()
        follower.member.digests._be_odd()
        held.let_go()
        answer = await other.answer()
        assert answer is not None
        assert (answer.status, answer.value) == (wire.RETRY, b"")


async def applied_at(leader: Coordinator, follower: Coordinator) -> None:
    """What the leader has applied, the follower has as well."""
    index = leader.member.driver.applied_index
    while follower.member.driver.applied_index < index:
        await asyncio.sleep(0.01)

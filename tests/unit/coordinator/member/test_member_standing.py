"""What a coordinator does for others while its state is wrong, or may be: no reads, and no copy of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ca.errors import Conflict
from ca.identity import Identity, Role
from coordinator.raft.messages import SnapshotMeta
from coordinator.storage.pinned_state import PinnedState
from coordinator.storage.snapshot_origins import UNKNOWN, read_origin, write_origin
from coordinator.storage.snapshot_store import UnpublishedSnapshot
from metadata.protocol.calls import (
    AnyCall,
    HeartbeatCall,
    ReadCall,
    RenewCall,
    SnapshotCall,
    SnapshotChunkCall,
)
from metadata.protocol.queries import GetView
from metadata.rpc import wire
from runtime.clock import now_ms
from tests.unit.coordinator_group import CLUSTER, Coordinator, Spoken, group_in, speaking
from tests.unit.state import HOUR_MS, coordinator

DEADLINE_S = 30.0

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


class Asked:
    """The leader, and another coordinator that asks it."""

    def __init__(self, leader: Coordinator, other: Spoken) -> None:
        self.leader = leader
        self.digests = leader.member.digests
        self._other = other

    async def ask(self, call: AnyCall) -> wire.AnswerFrame:
        answer = await self._other.ask(call)
        assert answer is not None
        return answer

    async def snapshot(self) -> SnapshotMeta:
        """The one that is handed out, as soon as there is one."""
        while True:
            answer = await self.ask(SnapshotCall(1))
            assert answer.status == wire.OK, answer
            if (meta := msgspec.msgpack.decode(answer.value, type=SnapshotMeta | None)) is not None:
                return meta
            await asyncio.sleep(0.01)


@asynccontextmanager
async def asked_in(directory: Path) -> AsyncIterator[Asked]:
    (leader,) = group_in(directory, "c1")
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
        await stack.enter_async_context(leader.run())
        await leader.leads()
        await leader.let_in(leader.record, coordinator("c2", role="learner"))
        contexts = leader.contexts_for("c2", directory)
        yield Asked(leader, await stack.enter_async_context(speaking(leader.record, "/rpc", contexts)))


async def test_member_whose_state_is_wrong_answers_no_reads_and_gives_no_copy(tmp_path: Path) -> None:
    async with asked_in(tmp_path) as asked:
        meta = await asked.snapshot()
        assert (await asked.ask(ReadCall(GetView()))).status == wire.OK
        asked.digests._be_odd()
        answer = await asked.ask(ReadCall(GetView()))
        assert (answer.status, answer.value) == (wire.RETRY, b"")
        for call in (SnapshotCall(1), SnapshotChunkCall(meta.index, meta.term, 0)):
            answer = await asked.ask(call)
            assert (answer.status, answer.value) == (Conflict.code, b""), call
            assert "the state of c1 is wrong" in answer.details


async def test_no_copy_is_given_while_members_differ_of_which_none_is_known_to_be_odd(tmp_path: Path) -> None:
    async with asked_in(tmp_path) as asked:
        meta = await asked.snapshot()
        group = [asked.leader.record, coordinator("c2", role="learner")]
        await asked.leader.let_in(*group, coordinator("c3", role="learner"))
        asked.digests._watch.recall(1, {"c1": "a", "c3": "b"})
        for call in (SnapshotCall(1), SnapshotChunkCall(meta.index, meta.term, 0)):
            answer = await asked.ask(call)
            assert (answer.status, answer.value) == (Conflict.code, b""), call
        assert (await asked.ask(ReadCall(GetView()))).status == wire.OK  # somebody has to
        await asked.leader.let_in(*group)  # and the one that differs is gone
        assert asked.digests.forbids == ""


class Doubting:
    """Witnesses of whom one has doubts while the snapshot is made."""

    def __init__(self, *, doubts_after: str = "", vouches: bool = False) -> None:
        self.forbids = "in doubt" if not doubts_after else ""
        self._doubts_after = doubts_after
        self._vouches = vouches
        self.was_called = False

    async def call(self) -> int:
        self.was_called = True
        self._doubt("call")
        return 0

    def hash_pinned(self, pinned: PinnedState) -> None:
        pinned.close()

    async def confirm(self, made: UnpublishedSnapshot) -> bool:
        self._doubt("vouch")
        return self._vouches

    def _doubt(self, step: str) -> None:
        if step == self._doubts_after:
            self.forbids = "in doubt"


@pytest.mark.parametrize("doubts_after", ["", "call"])
async def test_snapshot_that_is_made_while_doubts_come_up_is_not_handed_out(
    tmp_path: Path, doubts_after: str
) -> None:
    async with asked_in(tmp_path) as asked:
        making = asked.leader.member.driver.making
        making.witnesses = witnesses = Doubting(doubts_after=doubts_after)
        making.begin()
        while making.is_busy:
            await asyncio.sleep(0.01)
        assert making._snapshots.newest() is None
        assert witnesses.was_called == bool(doubts_after), "who may not hand it out makes none"


async def test_snapshot_that_nobody_vouches_for_says_whose_state_it_is(tmp_path: Path) -> None:
    async with asked_in(tmp_path) as asked:
        making = asked.leader.member.driver.making
        making.witnesses = Doubting(doubts_after="never")
        meta = await asked.snapshot()
        assert making._snapshots.chunk(meta.index, meta.term, 0).origin == "c1"


async def test_certificate_is_renewed_by_the_leader_alone_as_others_may_not_know_where_the_node_is(
    tmp_path: Path,
) -> None:
    group = group_in(tmp_path, "c1", "c2")
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
        for each in group:
            await stack.enter_async_context(each.run())
        while not (leading := [each for each in group if each.member.driver.is_leader]):
            await asyncio.sleep(0.01)
        (leader,) = leading
        (follower,) = (each for each in group if each is not leader)
        contexts = await leader.joined("n1", tmp_path)
        while not follower.member.view().nodes:
            await asyncio.sleep(0.01)
        node = await stack.enter_async_context(speaking(follower.record, "/rpc", contexts))
        answer = await node.ask(RenewCall("no request"))
        assert answer is not None
        assert (answer.status, answer.details) == (wire.NOT_LEADER, leader.record.coordinator_id)


async def test_own_clock_is_told_by_nobody_else(tmp_path: Path) -> None:
    """A coordinator beats for itself as well: then its own clock would count twice."""
    async with asked_in(tmp_path) as asked:
        clocks, at_ms = asked.leader.member.clocks, now_ms() + HOUR_MS
        clocks.receive(Identity(CLUSTER, Role.COORDINATOR, "c3"), at_ms)
        async with speaking(asked.leader.record, "/rpc", asked.leader.contexts) as own:
            answer = await own.ask(HeartbeatCall(0, 0, 0, at_ms=now_ms()))
            assert answer is not None
            assert answer.status == wire.OK
        assert len(clocks.offsets_ms()) == 1
        await asked.ask(HeartbeatCall(0, 0, 0, is_primary=False, at_ms=at_ms))
        assert len(clocks.offsets_ms()) == 1, "of a node with several processes one speaks"
        await asked.ask(HeartbeatCall(0, 0, 0, at_ms=at_ms))
        assert len(clocks.offsets_ms()) == 2


@pytest.mark.parametrize("content", [b"", b"c1", b"\xff\xfe", b'{"sum": 1}'])
def test_origin_that_cannot_be_read_is_no_state_of_ones_own(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.sqlite.origin"
    assert read_origin(path) == ""
    write_origin(path, "c2")
    assert read_origin(path) == "c2"
    path.write_bytes(content)
    assert read_origin(path) == UNKNOWN

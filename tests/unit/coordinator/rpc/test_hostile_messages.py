"""What comes to a real peer port from a coordinator that has a certificate, and speaks as it likes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from ca.errors import Forbidden, InvalidRequest
from coordinator.raft.core import TERM_LEAP_MAX
from coordinator.raft.messages import APPEND_ENTRIES_LIMIT, Entry, EntryKind, Members, Message, MessageKind
from metadata.protocol.calls import (
    JoinCoordinatorCall,
    ProposeCall,
    RulesCall,
    SnapshotCall,
    SnapshotChunkCall,
)
from metadata.protocol.commands import (
    AdmitCoordinator,
    AnyCommand,
    Expire,
    HashState,
    RecordCoordinators,
    ReportHash,
    ReportLost,
)
from metadata.rpc import wire
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.websocket import dialling
from tests.unit.coordinator_group import Coordinator, group_in, speaking
from tests.unit.state import coordinator

DEADLINE_S = 30.0
RAFT, RPC = "/raft", "/rpc"
OWN = Message(MessageKind.HEARTBEAT_REPLY, "c2", "c1", 1)
ADMISSION = AdmitCoordinator(token_id="t", secret_sha256="", coordinator_id="c3", attempt_sha256="")
ENTRY = Entry(1, 1, EntryKind.COMMAND, b"")

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


@asynccontextmanager
async def leader_and_liar_in(directory: Path) -> AsyncIterator[tuple[Coordinator, MemberContexts]]:
    """The leader, and the certificate of a learner that is known to it."""
    (leader,) = group_in(directory, "c1")
    async with asyncio.timeout(DEADLINE_S), leader.run():
        await leader.leads()
        await leader.let_in(leader.record, coordinator("c2", role="learner"))
        yield leader, leader.contexts_for("c2", directory)


def parcel(*frames: object, version: int = wire.WIRE_VERSION) -> bytes:
    return msgspec.msgpack.encode([version, list(frames)])


def raft(**changes: object) -> list[object]:
    fields = msgspec.structs.asdict(OWN) | changes
    return [3, list(fields.values())]


CALL = [1, 1, 1000, wire.encode_call(RulesCall()), ""]
NONSENSE: dict[str, tuple[str, bytes]] = {
    "another's name": (RAFT, parcel(raft(source="c3"))),
    "the receiver's name": (RAFT, parcel(raft(source="c1"))),
    "no name": (RAFT, parcel(raft(source=""))),
    "its own message and another's": (RAFT, parcel(raft(), raft(source="c3"))),
    "call among messages": (RAFT, parcel(CALL)),
    "message among calls": (RPC, parcel(raft())),
    "answer to nothing": (RPC, parcel([2, 1, "", "", b""])),
    "answer among messages": (RAFT, parcel([2, 1, "", "", b""])),
    "another version": (RAFT, parcel(raft(), version=2)),
    "no MessagePack": (RAFT, b"\xc1" * 100),
    "random bytes": (RPC, os.urandom(1000)),
    "nothing at all": (RAFT, b""),
    "kind that is none": (RAFT, parcel(raft(kind=99))),
    "index below 0": (RAFT, parcel(raft(log_index=-1))),
    "term that is no number": (RAFT, parcel(raft(term=2**62 + 1))),
    "too many frames": (RAFT, parcel(*([raft()] * (wire.FRAMES_MAX + 1)))),
    "too many entries": (RAFT, parcel(raft(entries=[ENTRY] * (APPEND_ENTRIES_LIMIT + 1)))),
    "an entry that is too large": (
        RAFT,
        parcel(raft(entries=[Entry(1, 1, EntryKind.COMMAND, bytes(9 << 20))])),
    ),
    "more than any parcel": (RAFT, bytes(wire.MESSAGE_BYTES_MAX + 1)),
    "a caller that waits for ever": (RPC, parcel([1, 1, 2**40, CALL[3], ""])),
}


async def test_what_no_member_says_ends_its_connection_and_nothing_else(tmp_path: Path) -> None:
    async with leader_and_liar_in(tmp_path) as (leader, contexts), dialling() as http:
        for what, (path, data) in NONSENSE.items():
            term = leader.member.driver.status().term
            async with speaking(leader.record, path, contexts, http=http) as liar:
                await liar.send_raw(data)
                assert await liar.is_closed(), what
            assert all(message.source == "c2" for message in leader.heard), what
            assert leader.member.driver.is_leader, what
            assert leader.member.driver.status().term == term, what
        async with speaking(leader.record, RPC, contexts) as honest:
            answer = await honest.ask(RulesCall())
            assert answer is not None
            assert answer.status == wire.OK


async def test_node_sends_no_raft_messages(tmp_path: Path) -> None:
    async with leader_and_liar_in(tmp_path) as (leader, _):
        contexts = await leader.joined("n1", tmp_path)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with speaking(leader.record, RAFT, contexts):
                pass
        assert refused.value.status == 401


async def test_term_beyond_reach_is_dropped_and_the_leader_leads_on(tmp_path: Path) -> None:
    async with leader_and_liar_in(tmp_path) as (leader, contexts):
        term = leader.member.driver.status().term
        async with speaking(leader.record, RAFT, contexts) as liar:
            await liar.say(
                Message(MessageKind.VOTE, "c2", "c1", term + TERM_LEAP_MAX + 1, transfer=True),
                Message(MessageKind.HEARTBEAT, "c2", "c1", 2**62),
                OWN,
            )
            await leader.has_heard(OWN)
        assert (leader.member.driver.status().term, leader.member.driver.is_leader) == (term, True)


async def test_leader_of_a_later_term_takes_the_lead_and_no_change(tmp_path: Path) -> None:
    """It can claim to lead, and keep others from it while it is believed; what was committed stays."""
    async with leader_and_liar_in(tmp_path) as (leader, contexts):
        driver = leader.member.driver
        before = driver.status()
        async with speaking(leader.record, RAFT, contexts) as liar:
            said = Message(MessageKind.HEARTBEAT, "c2", "c1", before.term + 1)
            await liar.say(said)
            await leader.has_heard(said)
            while driver.status().term == before.term:
                await asyncio.sleep(0.01)
        await leader.leads()
        after = driver.status()
        assert after.term > before.term + 1
        assert after.commit > before.commit
        assert driver._member.members == Members(("c1",), ("c2",))


def report(**changes: object) -> ReportHash:
    return msgspec.structs.replace(ReportHash(coordinator_id="c2", log_index=1, digest="x"), **changes)


MISTAKEN: list[AnyCommand] = [
    report(coordinator_id="c1"),
    report(coordinator_id="c3"),
    ReportLost(node_id="n1", sha256s=[], reason="missing"),
    HashState(),
    Expire(),
    RecordCoordinators(coordinators=[coordinator("c2")]),
]


async def test_coordinator_speaks_for_itself_and_proposes_nothing_else(tmp_path: Path) -> None:
    async with leader_and_liar_in(tmp_path) as (leader, contexts):
        async with speaking(leader.record, RPC, contexts) as liar:
            for command in MISTAKEN:
                answer = await liar.ask(ProposeCall(0, 0, 0, command))
                assert answer is not None
                assert answer.status == Forbidden.code, command
            answer = await liar.ask(ProposeCall(0, 0, 0, report(log_index=2**40)))
            assert answer is not None
            assert answer.status == InvalidRequest.code
        assert leader.member.driver._member.members == Members(("c1",), ("c2",))


async def test_node_speaks_for_itself_and_is_given_no_state(tmp_path: Path) -> None:
    async with leader_and_liar_in(tmp_path) as (leader, _):
        await leader.joined("n2", tmp_path)
        contexts = await leader.joined("n1", tmp_path)
        async with speaking(leader.record, RPC, contexts) as node:
            for call in (
                ProposeCall(0, 0, 0, ReportLost(node_id="n2", sha256s=[], reason="missing")),
                ProposeCall(0, 0, 0, report()),
                ProposeCall(0, 0, 0, Expire()),
                ProposeCall(0, 0, 0, ADMISSION),
                JoinCoordinatorCall("t", "0" * 64, "0" * 64, leader.record, is_running=False),
                SnapshotCall(1),
                SnapshotChunkCall(1, 1, 0),
            ):
                answer = await node.ask(call)
                assert answer is not None
                assert answer.status == Forbidden.code, call

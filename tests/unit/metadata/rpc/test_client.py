"""The client of the coordinators over real peer ports: deadlines, retries elsewhere, calls given up."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import InvalidRequest, Unauthorized, Unavailable
from ca.identity import Identity, Role
from ca.tls import Peer
from coordinator.raft.core import NotLeader
from coordinator.rpc.server import Refused
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import AnyCall, HeartbeatCall, HeartbeatReply, ProposeCall, ReadCall
from metadata.protocol.commands import SESSION_ENDED, SESSION_NUMBER_MIN, OpenSession
from metadata.protocol.queries import CountSoleReplicas, GetView
from metadata.rpc import client as client_module
from metadata.rpc import connection, wire
from metadata.rpc.client import MetadataClient
from metadata.rpc.connection import LinkDown, PeerLink
from metadata.rpc.websocket import dialling, peer_url
from tests.unit.peer_ports import CLUSTER, connected, contexts_of, serving

DEADLINE_S = 20.0
LONG_S = 50.0  # longer than a test waits, shorter than what the wire allows
OWN = Identity(CLUSTER, Role.COORDINATOR, "c9")
CALL = ReadCall(GetView())


@dataclass
class Answering:
    """A coordinator's answers: its own id to reads and changes, unless it hangs or refuses."""

    coordinator_id: str
    record: CoordinatorRecord = field(init=False)
    refusal: Callable[[AnyCall], Exception | None] = lambda _: None
    hangs_at: Callable[[AnyCall], bool] = lambda _: False
    calls: list[AnyCall] = field(default_factory=list)
    sessions: int = 0
    rules: int = 0  # as heartbeats tell
    released: asyncio.Event = field(default_factory=asyncio.Event)
    hanging: "asyncio.Queue[AnyCall]" = field(default_factory=asyncio.Queue)
    given_up: "asyncio.Queue[AnyCall]" = field(default_factory=asyncio.Queue)

    async def __call__(self, peer: Peer, call: AnyCall) -> bytes:
        self.calls.append(call)
        if self.hangs_at(call):
            await self._hang(call)
        if (refusal := self.refusal(call)) is not None:
            raise refusal
        if is_of(0, call):
            self.sessions += 1
            return msgspec.msgpack.encode(self.sessions)
        if isinstance(call, HeartbeatCall):
            return msgspec.msgpack.encode(HeartbeatReply(0, "c1", 0, self.rules))
        return msgspec.msgpack.encode(self.coordinator_id)

    async def _hang(self, call: AnyCall) -> None:
        self.hanging.put_nowait(call)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.given_up.put_nowait(call)
            raise


@pytest.fixture
async def coordinators(tmp_path: Path, peer_authority: Authority) -> AsyncIterator[list[Answering]]:
    async with AsyncExitStack() as stack:
        made = [Answering("c1"), Answering("c2")]
        for one in made:
            context = serving(one.coordinator_id, one, tmp_path, peer_authority)
            one.record = await stack.enter_async_context(context)
        yield made


@pytest.fixture
async def client(
    coordinators: list[Answering], tmp_path: Path, peer_authority: Authority
) -> AsyncIterator[MetadataClient]:
    """It knows the leader, which is c1, and is connected to both."""
    coordinators[1].refusal = lambda call: NotLeader("c1") if isinstance(call, ProposeCall) else None
    records = [one.record for one in coordinators]
    async with connected("c9", records, tmp_path, peer_authority) as made:
        await until_up(*made._links.values())
        assert await change(made) == "c1"
        for one in coordinators:
            one.calls.clear()
        yield made


@asynccontextmanager
async def linked(
    one: Answering, directory: Path, authority: Authority, record: CoordinatorRecord | None = None
) -> AsyncIterator[PeerLink]:
    contexts = contexts_of("c9", directory, authority)
    link = PeerLink(OWN, record or one.record, contexts.client)
    async with dialling() as http:
        running = asyncio.create_task(link.run(http))
        try:
            await until_up(link)
            yield link
        finally:
            running.cancel()
            await asyncio.wait([running])


async def until_up(*links: PeerLink) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not all(link._is_up for link in links):
            await asyncio.sleep(0.01)


async def soon(what: Awaitable[AnyCall]) -> AnyCall:
    return await asyncio.wait_for(what, DEADLINE_S)


async def change(client: MetadataClient, timeout_s: float = DEADLINE_S) -> str:
    return await client.propose(OpenSession(nonce="x"), str, timeout_s=timeout_s)


async def read(client: MetadataClient, timeout_s: float = DEADLINE_S) -> str:
    return await client.read(GetView(), str, timeout_s=timeout_s)


def always(_: AnyCall) -> bool:
    return True


def is_of(session: int, call: AnyCall) -> bool:
    return isinstance(call, ProposeCall) and call.session == session


def drawn(calls: list[AnyCall]) -> list[int]:
    """The numbers that sessions were asked for with."""
    opening = [call.command for call in calls if isinstance(call, ProposeCall) and call.session == 0]
    return [command.number for command in opening if isinstance(command, OpenSession)]


async def test_coordinator_that_is_silent_for_a_try_is_left_for_another(
    client: MetadataClient, coordinators: list[Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TRY_TIMEOUT_S", 0.1)
    silent = next(one for one in coordinators if one.coordinator_id == client._reader)
    silent.hangs_at = always
    assert {await read(client), silent.coordinator_id} == {"c1", "c2"}
    assert silent.calls
    assert await soon(silent.given_up.get()) == CALL


async def test_read_is_not_asked_of_a_coordinator_that_leaves_another_call_unanswered(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    """As when the leader hangs: the others know no better for a while, but to ask it takes a whole try."""
    silent, other = coordinators
    silent.hangs_at = always
    refusals = iter([Unavailable("no leader")] * 4)
    other.refusal = lambda call: next(refusals, None) if isinstance(call, ReadCall) else NotLeader("c1")
    client._reader = "c2"
    changing = asyncio.create_task(change(client))
    while client._links["c1"].silent_s < client_module.SILENT_S:  # bounded by the test's own deadline
        await asyncio.sleep(0.01)
    assert await read(client) == "c2"
    assert CALL not in silent.calls
    silent.released.set()
    assert await changing == "c1"


async def test_coordinator_that_was_silent_for_a_try_is_asked_last_for_a_while(
    client: MetadataClient, coordinators: list[Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = coordinators
    silent.hangs_at = always
    client._reader = "c1"
    monkeypatch.setattr(client_module, "TRY_TIMEOUT_S", client_module.SILENT_S)
    refusals = iter([Unavailable("no leader")] * 4)
    other.refusal = lambda _: next(refusals, None)
    assert await read(client) == "c2"
    assert len(silent.calls) == 1
    silent.hangs_at = lambda _: False
    other.refusal = lambda _: Unavailable("no leader")
    assert await read(client) == "c1"


@pytest.mark.parametrize("ask", [read, change])
async def test_caller_is_told_unavailable_at_its_own_deadline(
    client: MetadataClient,
    coordinators: list[Answering],
    ask: Callable[[MetadataClient, float], Awaitable[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "TRY_TIMEOUT_S", LONG_S)
    for one in coordinators:
        one.hangs_at = always
    with pytest.raises(Unavailable):
        await asyncio.wait_for(ask(client, 0.1), DEADLINE_S)


@pytest.mark.parametrize("ask", [read, change])
async def test_deadline_passes_between_tries_too(
    client: MetadataClient,
    coordinators: list[Answering],
    ask: Callable[[MetadataClient, float], Awaitable[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "RETRY_S_MIN", LONG_S)
    monkeypatch.setattr(client_module, "RETRY_S_MAX", LONG_S)
    for one in coordinators:
        one.refusal = lambda _: Unavailable("not now")
    with pytest.raises(Unavailable):
        await asyncio.wait_for(ask(client, 0.1), DEADLINE_S)


async def test_impatient_caller_does_not_make_the_client_forget_the_leader(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    leader, other = coordinators
    leader.hangs_at = always
    with pytest.raises(Unavailable):
        await change(client, 0.05)
    leader.hangs_at = lambda _: False
    assert await change(client) == "c1"
    assert not other.calls


async def test_change_at_a_member_that_the_leader_does_not_hear_is_refused_soon(
    client: MetadataClient, coordinators: list[Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others still say who leads; they hear the member, and go on answering its reads."""
    monkeypatch.setattr(client_module, "TRY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(client_module, "UNLED_S", 0.3)
    leader, other = coordinators
    leader.hangs_at = always
    beat = HeartbeatCall(0, 0, 0)
    async with asyncio.timeout(DEADLINE_S):
        led_at_s = client._led_at_s
        while client._beaten_at_s - led_at_s <= client_module.UNLED_S:
            assert await client.heartbeat("c1", beat) is None
        began_s = time.monotonic()
        with pytest.raises(Unavailable):
            await change(client, LONG_S)
        assert time.monotonic() - began_s < 5 * client_module.UNLED_TRY_S
        assert await read(client) == "c2"
        leader.hangs_at = lambda _: False
        assert await change(client, LONG_S) == "c1"  # the leader is tried all the same
    assert other.calls


async def test_caller_that_waits_for_the_session_of_another_has_its_own_deadline(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    client._session = None
    coordinators[0].hangs_at = always
    patient = asyncio.create_task(change(client))
    await soon(coordinators[0].hanging.get())
    with pytest.raises(Unavailable):
        await asyncio.wait_for(change(client, 0.05), DEADLINE_S)
    coordinators[0].released.set()
    assert await patient == "c1"


async def test_changes_whose_session_has_ended_share_one_new_session(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    leader = coordinators[0]
    ended = leader.sessions
    leader.refusal = lambda call: Refused(SESSION_ENDED, "") if is_of(ended, call) else None
    leader.hangs_at = lambda call: is_of(ended, call)
    slow = asyncio.create_task(change(client))
    await soon(leader.hanging.get())
    leader.hangs_at = lambda _: False
    assert await change(client) == "c1"
    leader.released.set()
    assert await slow == "c1"
    assert len([call for call in leader.calls if is_of(0, call)]) == 1


async def test_reads_begin_at_a_random_coordinator(tmp_path: Path, peer_authority: Authority) -> None:
    context = contexts_of("c9", tmp_path, peer_authority).client
    records = [
        CoordinatorRecord(coordinator_id=name, address="127.0.0.1", peer_port=1, api_port=2)
        for name in ("c1", "c2", "c3")
    ]
    readers = {MetadataClient(OWN, records, context)._reader for _ in range(100)}
    assert readers == {"c1", "c2", "c3"}


async def test_call_without_answer_times_out_alone_and_its_late_answer_is_ignored(
    coordinators: list[Answering], tmp_path: Path, peer_authority: Authority
) -> None:
    one = coordinators[0]
    async with linked(one, tmp_path, peer_authority) as link:
        one.hangs_at = always
        patient = asyncio.create_task(link.call(CALL, DEADLINE_S))
        with pytest.raises(TimeoutError):
            await link.call(CALL, 0.05)
        one.hangs_at = lambda _: False
        one.released.set()
        assert (await patient).status == wire.OK
        assert (await link.call(CALL, DEADLINE_S)).status == wire.OK
        assert not link._calls


async def test_cancelled_call_is_forgotten(
    coordinators: list[Answering], tmp_path: Path, peer_authority: Authority
) -> None:
    one = coordinators[0]
    async with linked(one, tmp_path, peer_authority) as link:
        one.hangs_at = always
        caller = asyncio.create_task(link.call(CALL, DEADLINE_S))
        await soon(one.hanging.get())
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert not link._calls
        assert not link._deadlines._ends_at


async def test_calls_under_way_fail_at_once_when_the_connection_ends(
    tmp_path: Path, peer_authority: Authority
) -> None:
    one = Answering("c1", hangs_at=always)
    async with AsyncExitStack() as stack:
        async with serving("c1", one, tmp_path, peer_authority) as record:
            link = await stack.enter_async_context(linked(one, tmp_path, peer_authority, record))
            caller = asyncio.create_task(link.call(CALL, LONG_S))
            call = await soon(one.hanging.get())
        with pytest.raises(LinkDown):
            await asyncio.wait_for(caller, DEADLINE_S)
        assert await soon(one.given_up.get()) == call
        assert link._deadlines._timer is None


async def test_overdue_call_is_given_up_and_answered_with_retry_while_others_go_on(
    coordinators: list[Answering], tmp_path: Path, peer_authority: Authority
) -> None:
    one = coordinators[0]
    one.hangs_at = always
    context = contexts_of("c9", tmp_path, peer_authority).client()
    name = Identity(CLUSTER, Role.COORDINATOR, "c1").dns_name
    frames = [
        wire.CallFrame(number, timeout_ms, wire.encode_call(CALL))
        for number, timeout_ms in ((1, 50), (2, 20_000), (3, 0))
    ]
    async with (
        dialling() as http,
        http.ws_connect(
            peer_url("127.0.0.1", one.record.peer_port, "/rpc"), ssl=context, server_hostname=name
        ) as socket,
    ):
        await socket.send_bytes(wire.encode_parcel([wire.encode_frame(frame) for frame in frames]))
        statuses: dict[int, str] = {}
        while len(statuses) < 2:
            statuses |= await answers_on(socket)
        assert statuses == {1: wire.RETRY, 3: wire.RETRY}
        one.released.set()
        assert await answers_on(socket) == {2: wire.OK}
    assert one.given_up.qsize() >= 1


async def answers_on(socket: aiohttp.ClientWebSocketResponse[bool]) -> dict[int, str]:
    frames = wire.decode(await socket.receive_bytes(timeout=DEADLINE_S))
    return {frame.number: frame.status for frame in frames if isinstance(frame, wire.AnswerFrame)}


async def test_member_that_coordinators_refuse_says_so_once_for_each(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    dialled, often = 0, asyncio.Event()

    def refuse(peer: Peer) -> None:
        nonlocal dialled
        dialled += 1
        if dialled > 2:
            often.set()
        raise Unauthorized(f"{peer.identity.uri} was removed")

    async with (
        asyncio.timeout(DEADLINE_S),
        serving("c1", Answering("c1"), tmp_path, peer_authority, check=refuse) as record,
        connected("n1", [record], tmp_path, peer_authority, role=Role.NODE),
    ):
        await often.wait()
    said = [each for each in caplog.records if "refuses this member" in each.message]
    assert [each.levelname for each in said] == ["WARNING"]
    assert "coordinator c1" in said[0].message


async def test_coordinator_that_was_reached_for_long_is_not_called_unreachable_at_once(
    tmp_path: Path,
    peer_authority: Authority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "UNREACHABLE_S", 0.5)
    caplog.set_level("DEBUG", connection.__name__)

    def told(level: str) -> list[float]:
        return [
            each.created
            for each in caplog.records
            if (each.name, each.levelname) == (connection.__name__, level)
        ]

    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
        async with AsyncExitStack() as down:
            record = await down.enter_async_context(serving("c1", Answering("c1"), tmp_path, peer_authority))
            client = connected("n1", [record], tmp_path, peer_authority, role=Role.NODE)
            reading = await stack.enter_async_context(client)
            await reading.read(GetView(), str)
            await asyncio.sleep(2 * connection.UNREACHABLE_S)
        while not told("WARNING"):
            await asyncio.sleep(0.05)
    assert told("WARNING")[0] - told("DEBUG")[0] > connection.UNREACHABLE_S / 2


async def test_one_session_with_a_drawn_number_is_opened_for_all_changes(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    client._session = None
    for _ in range(3):
        assert await change(client) == "c1"
    [number] = drawn(coordinators[0].calls)
    assert number >= SESSION_NUMBER_MIN


async def test_what_is_beyond_a_bound_is_invalid_and_asked_of_nobody_else(
    client: MetadataClient, coordinators: list[Answering]
) -> None:
    with pytest.raises(InvalidRequest, match="length <= 1024"):
        await client.read(CountSoleReplicas(node_id="n" * 1025, others=[]), str, timeout_s=LONG_S)
    assert not any(one.calls for one in coordinators)

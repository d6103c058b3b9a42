"""A snapshot comes over a real peer port, piece by piece: lost answers, restarts, newer offers included."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import FilestoreError, NotFound, Unavailable
from ca.tls import Peer
from coordinator.member import snapshot_fetch
from coordinator.member.snapshot_fetch import Fetcher
from coordinator.raft.messages import SnapshotMeta, SnapshotOffer
from coordinator.storage.snapshot_store import Chunk, IncomingSnapshot, SnapshotStore
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import AnyCall, SnapshotChunkCall
from metadata.rpc.websocket import end
from runtime.stopping import Stop
from tests.unit.peer_ports import connected, serving
from tests.unit.snapshot_files import taken
from tests.unit.state import State

DEADLINE_S = 30.0
USERS = 300  # with long names: rows enough for several pieces


@dataclass
class Source:
    """A coordinator that hands out a snapshot; `before` may refuse, or wait, as the test likes."""

    snapshots: SnapshotStore
    record: CoordinatorRecord = field(init=False)
    before: Callable[[SnapshotChunkCall], None] = lambda _: None
    asked: list[int] = field(default_factory=list)

    async def handle(self, peer: Peer, call: AnyCall) -> bytes:
        assert isinstance(call, SnapshotChunkCall)
        self.asked.append(call.offset)
        self.before(call)
        chunk = self.snapshots.chunk(call.index, call.term, call.offset)
        # Smaller pieces than the product's, so that there are several.
        data = chunk.data[:50_000]
        return msgspec.msgpack.encode(msgspec.structs.replace(chunk, data=data, crc=zlib.crc32(data)))


@dataclass
class Target:
    """The member that lags."""

    snapshots: SnapshotStore
    fetcher: Fetcher
    fetched: "asyncio.Queue[SnapshotMeta]"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "source.sqlite")
    for number in range(USERS):
        made.user(f"user-{number}-{'x' * 500}")
    yield made
    made.store.close()


@asynccontextmanager
async def offering(directory: Path, authority: Authority) -> AsyncIterator[Source]:
    source = Source(SnapshotStore(directory / "outgoing", directory / "source.sqlite"))
    async with serving("c1", source.handle, directory, authority) as source.record:
        yield source


@asynccontextmanager
async def lagging(source: Source, directory: Path, authority: Authority) -> AsyncIterator[Target]:
    fetched: asyncio.Queue[SnapshotMeta] = asyncio.Queue()
    snapshots = SnapshotStore(directory / "incoming", directory / "target.sqlite")
    async with connected("c2", [source.record], directory, authority) as client:
        fetcher = Fetcher(client, snapshots, fetched.put_nowait)
        fetching = asyncio.create_task(fetcher.run())
        try:
            yield Target(snapshots, fetcher, fetched)
        finally:
            await end(fetching)


async def test_snapshot_comes_whole_though_answers_are_lost(
    state: State, tmp_path: Path, peer_authority: Authority
) -> None:
    def lose_every_other(call: SnapshotChunkCall) -> None:
        if source.asked.count(call.offset) == 1:
            raise Unavailable("lost")

    async with (
        offering(tmp_path, peer_authority) as source,
        lagging(source, tmp_path, peer_authority) as target,
    ):
        meta = taken(source.snapshots, origin="")
        source.before = lose_every_other
        target.fetcher.offer(SnapshotOffer("c1", meta))
        async with asyncio.timeout(DEADLINE_S):
            assert await target.fetched.get() == meta
        assert len(set(source.asked)) >= 3
        target.fetcher.offer(SnapshotOffer("c1", meta))  # an echo of what is being installed
        await asyncio.sleep(0)
        assert target.fetched.empty()
        assert target.snapshots.begin_incoming(meta).is_complete


async def test_transfer_goes_on_where_it_ended_after_a_restart(
    state: State, tmp_path: Path, peer_authority: Authority
) -> None:
    reached = asyncio.Event()

    def stop_at_the_third(call: SnapshotChunkCall) -> None:
        if call.offset >= 100_000:
            reached.set()
            raise Unavailable("hangs")

    async with offering(tmp_path, peer_authority) as source:
        meta = taken(source.snapshots, origin="")
        source.before = stop_at_the_third
        async with lagging(source, tmp_path, peer_authority) as target, asyncio.timeout(DEADLINE_S):
            target.fetcher.offer(SnapshotOffer("c1", meta))
            await reached.wait()
        source.before = lambda _: None
        source.asked.clear()
        async with lagging(source, tmp_path, peer_authority) as target, asyncio.timeout(DEADLINE_S):
            target.fetcher.offer(SnapshotOffer("c1", meta))
            assert await target.fetched.get() == meta
        assert min(source.asked) in (50_000, 100_000)  # the second piece may have been on its way to the disk


async def test_next_piece_is_on_its_way_while_one_is_written(
    state: State, tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_before_written: list[bool] = []
    add = IncomingSnapshot.add

    async with offering(tmp_path, peer_authority) as source:
        meta = taken(source.snapshots, origin="")

        def add_late(incoming: IncomingSnapshot, chunk: Chunk) -> None:
            stop = chunk.offset + len(chunk.data)
            if stop < chunk.size_bytes:
                ends_at_s = time.monotonic() + DEADLINE_S
                while stop not in source.asked and time.monotonic() < ends_at_s:
                    time.sleep(0.001)
                asked_before_written.append(stop in source.asked)
            add(incoming, chunk)

        monkeypatch.setattr(IncomingSnapshot, "add", add_late)
        async with lagging(source, tmp_path, peer_authority) as target, asyncio.timeout(DEADLINE_S):
            target.fetcher.offer(SnapshotOffer("c1", meta))
            assert await target.fetched.get() == meta
        assert len(asked_before_written) > 2
        assert all(asked_before_written)
        assert sorted(source.asked) == sorted(set(source.asked))


@pytest.mark.parametrize("refused", [None, NotFound("gone"), Unavailable("lost")])
async def test_source_hears_of_a_member_for_as_long_as_it_verifies(
    state: State,
    tmp_path: Path,
    peer_authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    refused: FilestoreError | None,
) -> None:
    heard: list[float] = []  # when the source was last asked, as it knows it, before and while
    finish = IncomingSnapshot.finish

    def refuse(call: SnapshotChunkCall) -> None:
        if heard and refused is not None:
            raise refused

    async with offering(tmp_path, peer_authority) as source:
        meta = taken(source.snapshots, origin="")
        source.before = refuse

        def finish_late(incoming: IncomingSnapshot, stop: Stop) -> None:
            heard.append(source.snapshots.served_at_s)
            asked, ends_at_s = len(source.asked), time.monotonic() + DEADLINE_S
            while len(source.asked) < asked + 3 and time.monotonic() < ends_at_s:
                time.sleep(0.001)
            heard.append(source.snapshots.served_at_s)
            finish(incoming, stop)

        monkeypatch.setattr(snapshot_fetch, "HEARD_S", 0.01)
        monkeypatch.setattr(IncomingSnapshot, "finish", finish_late)
        async with lagging(source, tmp_path, peer_authority) as target, asyncio.timeout(DEADLINE_S):
            target.fetcher.offer(SnapshotOffer("c1", meta))
            assert await target.fetched.get() == meta
            if refused is None:
                assert heard[0] < heard[1]
            asked = len(source.asked)
            await asyncio.sleep(0.05)
            assert len(source.asked) <= asked + 1, "nothing is asked for once it is verified"


async def test_newer_offer_takes_the_place_of_one_that_is_gone(
    state: State, tmp_path: Path, peer_authority: Authority
) -> None:
    gone = asyncio.Event()

    def is_gone(call: SnapshotChunkCall) -> None:
        if call.index == old.index and call.offset:
            gone.set()
            raise NotFound("gone")

    async with (
        offering(tmp_path, peer_authority) as source,
        lagging(source, tmp_path, peer_authority) as target,
    ):
        old = taken(source.snapshots, origin="")
        source.before = is_gone
        async with asyncio.timeout(DEADLINE_S):
            target.fetcher.offer(SnapshotOffer("c1", old))
            await gone.wait()
            state.user("later")
            new = taken(source.snapshots, origin="")
            target.fetcher.offer(SnapshotOffer("c9", new))  # nobody whom this member knows
            target.fetcher.offer(SnapshotOffer("c1", new))
            assert await target.fetched.get() == new
        assert new.index > old.index


@pytest.mark.parametrize(("origin", "is_taken"), [("", True), ("c1", False)])
async def test_state_that_may_be_right_is_given_up_for_one_that_a_majority_has_alone(
    state: State, tmp_path: Path, peer_authority: Authority, origin: str, is_taken: bool
) -> None:
    async with (
        offering(tmp_path, peer_authority) as source,
        lagging(source, tmp_path, peer_authority) as target,
        asyncio.timeout(DEADLINE_S),
    ):
        asked: asyncio.Queue[None] = asyncio.Queue()

        def forbids() -> str:
            asked.put_nowait(None)
            return "members differ"

        target.fetcher._forbids = forbids
        meta = taken(source.snapshots, origin=origin)
        target.fetcher.offer(SnapshotOffer("c1", meta))
        if is_taken:
            assert await target.fetched.get() == meta
        else:
            await asked.get()
            while target.fetcher._offer is not None:
                await asyncio.sleep(0.01)
            assert target.fetched.empty()

"""Raft messages to coordinators that are not known where they are to go, and to some that refuse them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Gone
from ca.identity import Identity, Role
from ca.tls import Peer
from coordinator.raft.messages import Message, MessageKind
from coordinator.rpc import raft_transport as transport_module
from coordinator.rpc.raft_transport import Transport
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import AnyCall
from metadata.rpc.instances import Displaced, Instance, KnownInstances
from tests.unit.peer_ports import CLUSTER, contexts_of, serving
from tests.unit.state import coordinator


def test_stranger_that_stays_one_is_told_once(
    tmp_path_factory: pytest.TempPathFactory,
    peer_authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    contexts = contexts_of("c1", tmp_path_factory.mktemp("own"), peer_authority)
    transport = Transport(Identity(CLUSTER, Role.COORDINATOR, "c1"), [coordinator("c2")], contexts.client)
    answers = [Message(MessageKind.HEARTBEAT_REPLY, "c1", target, 1) for target in ("c2", "c9")]
    transport.send(answers)
    assert not caplog.records
    monkeypatch.setattr(transport_module, "STRANGER_S", 0.0)
    for _ in range(3):
        transport.send(answers)
    assert [each.args for each in caplog.records] == [("c9",)]


OWN = Instance("a" * 16, 5, "1" * 16)
OTHER = msgspec.structs.replace(OWN, directory="b" * 16)
DEADLINE_S = 20.0


async def nothing(_peer: Peer, _call: AnyCall) -> bytes:
    return b""


@asynccontextmanager
async def dialling_out(
    known_as: Sequence[Instance], directory: Path, authority: Authority
) -> AsyncIterator[tuple[list[KnownInstances], "asyncio.Task[None]"]]:
    """The transport of c0, among coordinators of which each has seen it as one of `known_as`."""
    async with AsyncExitStack() as stack:
        memories, records = [], []
        for number, instance in enumerate(known_as, 1):
            memory = KnownInstances(directory / f"instances-{number}.json", f"c{number}")
            await memory.admit("c0", instance)
            serving_it = serving(f"c{number}", nothing, directory, authority, admit=memory.admit)
            records.append(await stack.enter_async_context(serving_it))
            memories.append(memory)
        contexts = contexts_of("c0", directory, authority)
        transport = Transport(
            Identity(CLUSTER, Role.COORDINATOR, "c0"), records, contexts.client, instance=OWN
        )
        transport.open()
        running = asyncio.create_task(transport.run())
        try:
            yield memories, running
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_only_most_coordinators_can_say_that_a_member_was_removed(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_peer: Peer) -> None:
        raise Gone("This coordinator was removed from the cluster.")

    caplog.set_level("INFO")
    removed = asyncio.Event()
    async with AsyncExitStack() as stack:

        async def serve(name: str, check: Callable[[Peer], None] = lambda _: None) -> CoordinatorRecord:
            serving_it = serving(name, nothing, tmp_path, peer_authority, check=check)
            return await stack.enter_async_context(serving_it)

        records = [await serve("c1", refuse), await serve("c2")]
        contexts = contexts_of("c0", tmp_path, peer_authority)
        identity = Identity(CLUSTER, Role.COORDINATOR, "c0")
        transport = Transport(identity, records, contexts.client, removed.set)
        transport.open()
        running = asyncio.create_task(transport.run())
        try:
            await until_logged(caplog, "coordinator c1 reports that this one was removed")
            await until_logged(caplog, "connected to coordinator c2")
            assert not removed.is_set()
            transport.update([records[0], await serve("c3", refuse)])
            async with asyncio.timeout(DEADLINE_S):
                await removed.wait()
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_member_that_is_told_to_be_removed_asks_those_that_it_is_connected_to_as_well(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """They look at who it is when it connects, and may have nothing to tell it for long."""
    is_removed = False

    def refuse(_peer: Peer) -> None:
        if is_removed:
            raise Gone("This coordinator was removed from the cluster.")

    caplog.set_level("INFO")
    removed = asyncio.Event()
    async with AsyncExitStack() as stack:
        records = [
            await stack.enter_async_context(serving(name, nothing, tmp_path, peer_authority, check=refuse))
            for name in ("c1", "c2")
        ]
        contexts = contexts_of("c0", tmp_path, peer_authority)
        identity = Identity(CLUSTER, Role.COORDINATOR, "c0")
        transport = Transport(identity, records[:1], contexts.client, removed.set)
        transport.open()
        running = asyncio.create_task(transport.run())
        try:
            await until_logged(caplog, "connected to coordinator c1")
            is_removed = True
            transport.update(records)
            async with asyncio.timeout(DEADLINE_S):
                await removed.wait()
        finally:
            running.cancel()
            await asyncio.wait([running])


async def until_logged(caplog: pytest.LogCaptureFixture, *words: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not any(all(word in record.getMessage() for word in words) for record in caplog.records):
            await asyncio.sleep(0.01)


async def test_word_of_one_coordinator_of_two_ends_nobody(
    tmp_path: Path, peer_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with dialling_out([OTHER, OWN], tmp_path, peer_authority) as (_, running):
        await until_logged(caplog, "coordinator c1 knows this one by another directory", "instances.json")
        await until_logged(caplog, "connected to coordinator c2")
        await until_logged(caplog, "coordinator c0 is known here by another directory", "remove")
        assert not running.done()


@pytest.mark.parametrize("known_as", [[OTHER], [OTHER, OTHER], [OTHER, OWN, OTHER]])
async def test_word_of_most_coordinators_ends_a_member(
    tmp_path: Path, peer_authority: Authority, known_as: list[Instance]
) -> None:
    async with dialling_out(known_as, tmp_path, peer_authority) as (_, running):
        await asyncio.wait([running], timeout=DEADLINE_S)
        assert running.done()
        group = running.exception()
        assert isinstance(group, BaseExceptionGroup)
        assert group.subgroup(Displaced) is not None
        assert "filestore coordinator rebuild" in str(group.exceptions[0])

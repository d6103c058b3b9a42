"""One bound for all that a request waits for: what waits one after the other does not add up."""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ca.errors import Unavailable
from node.peer.client import PeerFailed
from node.storage.segments import FinishedBlob
from node.uploads import forwarding
from node.uploads.forwarding import HolderAddress, _while_reachable
from runtime import time_limits
from runtime.time_limits import (
    bounded_s,
    client_sends,
    is_client_waiting,
    note_failure,
    note_progress,
    patient,
)
from tests.unit.node.peer.test_silence import hung
from tests.unit.peer_nodes import CONTENT, Node
from tests.unit.upload_records import UUID, chain_of_all, store_upload

OWN_S = 60.0  # a bound of a wait by itself
PATIENCE_S = 0.4
LOAD_S = 3.0  # less than any bound of a wait by itself, and more than the machine's load adds
DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "PATIENCE_S", PATIENCE_S)


@contextmanager
def soon() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < PATIENCE_S + LOAD_S


async def test_waits_share_one_bound_which_begins_anew_with_progress_only() -> None:
    assert bounded_s(OWN_S) == OWN_S
    async with patient():
        assert bounded_s(OWN_S) <= PATIENCE_S
        await asyncio.sleep(PATIENCE_S / 2)
        assert bounded_s(OWN_S) <= PATIENCE_S / 2
        assert bounded_s(0.01) == 0.01, "no wait becomes longer by it"
        note_progress()
        assert bounded_s(OWN_S) > PATIENCE_S / 2
        await asyncio.sleep(PATIENCE_S)
        assert bounded_s(OWN_S) == 0
    assert bounded_s(OWN_S) == OWN_S


async def test_nothing_on_the_way_to_an_error_is_progress() -> None:
    async with patient():
        note_failure(ConnectionResetError())
        assert bounded_s(OWN_S) > 0
        note_progress()
        note_failure(Unavailable("no"))
        await asyncio.sleep(PATIENCE_S)
        note_progress()
        assert bounded_s(OWN_S) == 0


async def test_no_time_passes_while_the_client_is_waited_for() -> None:
    async with patient():
        with client_sends():
            await asyncio.sleep(1.5 * PATIENCE_S)
            assert bounded_s(OWN_S) == OWN_S
            assert not is_client_waiting()
        assert bounded_s(OWN_S) > 0
        assert is_client_waiting()


async def test_what_a_request_leaves_behind_has_bounds_of_its_own() -> None:
    goes_on = asyncio.Event()

    async def left() -> float:
        await goes_on.wait()
        return bounded_s(OWN_S)

    async with patient():
        task = asyncio.create_task(left())
        await asyncio.sleep(1.5 * PATIENCE_S)
    goes_on.set()
    assert await task == OWN_S


async def test_copy_beyond_the_write_quorum_is_not_waited_for_when_its_node_hangs(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.uploads.replicate.SPARE_S", PATIENCE_S)
    nodes[0].store(CONTENT[:1000])
    blob = FinishedBlob(hashlib.sha256(CONTENT[:1000]).hexdigest(), 1000)
    async with hung(nodes, "n2"), asyncio.timeout(DEADLINE_S):
        async with patient():
            with soon():
                assert await nodes[0].services.replication._copy_to(["n2", "n3"], blob, needed=1) == ["n3"]
        assert "n2" in nodes[0].services.peers.silent


async def test_copies_that_nobody_takes_are_waited_for_no_longer_than_one(nodes: list[Node]) -> None:
    nodes[0].store(CONTENT[:1000])
    blob = FinishedBlob(hashlib.sha256(CONTENT[:1000]).hexdigest(), 1000)
    replication = nodes[0].services.replication
    async with hung(nodes, "n2", "n3"), asyncio.timeout(DEADLINE_S), patient():
        with soon():
            assert await replication._copy_to(["n2"], blob) == []
            assert await replication._copy_to(["n3"], blob, is_last=True) == []


async def test_members_that_hang_keep_a_client_waiting_no_longer_than_one_and_are_known_then(
    nodes: list[Node],
) -> None:
    store_upload(nodes[0])
    services = nodes[0].services
    async with hung(nodes, "n2", "n3"), asyncio.timeout(DEADLINE_S):
        with services.uploads.open(UUID, None) as upload:
            async with patient():
                chain = chain_of_all(nodes[0], upload)
                try:
                    with soon(), pytest.raises(Unavailable):
                        await chain.reach(upload.offset)
                finally:
                    await chain.close()
        assert "n2" in services.peers.silent


async def test_holder_that_nobody_reaches_is_given_up_and_one_that_answers_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(forwarding, "_WATCH_S", PATIENCE_S / 4)
    answers = True

    async def is_reachable() -> bool:
        return answers

    holder = HolderAddress("Node n2", "x", lambda: None, is_reachable)  # type: ignore[arg-type, return-value]
    async with asyncio.timeout(DEADLINE_S):
        async with patient(), _while_reachable(holder):
            await asyncio.sleep(3 * PATIENCE_S)
            assert bounded_s(OWN_S) > 0, "that it lives is progress"
        answers = False
        with soon(), pytest.raises(PeerFailed):
            async with _while_reachable(holder):
                await asyncio.Event().wait()

"""Peers that accept and never answer: they are waited for once, for a bounded time, whatever the size."""

import asyncio
import dataclasses
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from node.peer import client
from node.peer.client import PeerFailed, SilentPeers
from node.storage.segments import FinishedBlob
from node.uploads.chain import Chain
from node.uploads.chain_link import END_S, Link, LinkSource, LinkTerms
from node.uploads.succession import has_prefix, who_has_prefix
from tests.unit.peer_nodes import Node, impostor, introduce
from tests.unit.upload_records import CONTENT, UUID, chain_of_all, record_of, store_upload

LARGE_BYTES = 20_000_000_000  # that a slow disk takes minutes to read
DEADLINE_S = 60.0


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
    del reader, writer
    await over.wait()


@asynccontextmanager
async def hung(nodes: list[Node], *names: str) -> AsyncIterator[None]:
    """These nodes accept connections and never answer."""
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        over, ports = asyncio.Event(), {}
        ready = [asyncio.Event() for _ in names]

        async def stand_in(name: str, is_ready: asyncio.Event) -> None:
            node = next(node for node in nodes if node.services.node_id == name)
            async with impostor(node, never) as port:
                ports[name] = port
                is_ready.set()
                await over.wait()

        for name, is_ready in zip(names, ready, strict=True):
            group.create_task(stand_in(name, is_ready))
        for is_ready in ready:
            await is_ready.wait()
        introduce(nodes, ports=ports)
        try:
            yield
        finally:
            introduce(nodes)
            over.set()


async def until_back(node: Node, name: str) -> None:
    while name in node.services.peers.silent:
        await asyncio.sleep(0.01)


async def test_peer_that_does_not_answer_is_silent_until_it_does(nodes: list[Node]) -> None:
    peers = nodes[0].services.peers
    async with hung(nodes, "n2"):
        with pytest.raises(PeerFailed) as caught:
            async with peers.ask("n2", "HEAD", "/room", within_s=0.2):
                pass
        assert caught.value.is_silent
        assert "n2" in peers.silent
        assert "n3" not in peers.silent
    await asyncio.wait_for(until_back(nodes[0], "n2"), DEADLINE_S)
    async with peers.ask("n2", "HEAD", "/room", within_s=DEADLINE_S) as answer:
        assert answer.status == 204


async def test_peer_that_refuses_connections_is_not_silent(nodes: list[Node]) -> None:
    await nodes[1].listener.close()
    with pytest.raises(PeerFailed) as caught:
        async with nodes[0].services.peers.ask("n2", "HEAD", "/room", within_s=DEADLINE_S):
            pass
    assert not caught.value.is_silent
    assert "n2" not in nodes[0].services.peers.silent


async def test_peer_whose_disk_hangs_stays_silent_though_it_answers(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, peers = threading.Event(), nodes[0].services.peers

    def hang(_descriptor: int) -> None:
        goes_on.wait()

    hanging = dataclasses.replace(nodes[1].services.blobs.disk, fsync=hang, fdatasync=hang)
    monkeypatch.setattr(nodes[1].services.blobs, "disk", hanging)
    try:
        with pytest.raises(PeerFailed):
            async with peers.ask("n2", "HEAD", "/room", within_s=0.5):
                pass
        assert not await peers._is_back("n2")
        async with peers.ask("n2", "HEAD", f"/uploads/{UUID}?stop=0", within_s=DEADLINE_S) as answer:
            assert answer.status in (200, 404, 503)
        assert "n2" in peers.silent
    finally:
        goes_on.set()
    await asyncio.wait_for(until_back(nodes[0], "n2"), DEADLINE_S)


async def test_one_that_falls_silent_again_is_left_out_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    slept = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        rests.append(delay_s)
        await slept(0)

    monkeypatch.setattr("node.peer.client.asyncio.sleep", sleep)
    answers = iter([True, False, True, True])

    async def ask(_name: str) -> bool:
        return next(answers)

    silent = SilentPeers(ask)
    for _ in range(3):
        silent.note("n2")
        silent.note("n2")  # known already
        while "n2" in silent:
            await slept(0)
    first = client.REST_S
    assert rests == [first, 2 * first, 2 * first, 4 * first]
    await silent.close()


async def linked(node: Node, member: str) -> None:
    with node.services.uploads.open(UUID, None) as upload:
        source = LinkSource(node.services.disk, upload)
        terms = LinkTerms(UUID, 0, with_md5=False, proposed_offset=LARGE_BYTES)
        sent = node.services.metrics.replica_bytes.labels("sent")
        link = Link(node.services.peers, source, terms, [member], on_change=lambda: None, sent=sent)
        try:
            with pytest.raises(PeerFailed):
                await link.run()
        finally:
            source.close()


async def asked_for_a_prefix(node: Node, member: str) -> None:
    record = record_of("n1", member, offset_bytes=0)
    record = msgspec.structs.replace(record, offset_bytes=LARGE_BYTES, prefix_sha256="0" * 64)
    assert await has_prefix(node.services, member, record) is None


async def finished(node: Node, member: str) -> None:
    blob = FinishedBlob("0" * 64, LARGE_BYTES)
    assert await node.services.replication.finish(LinkTerms(UUID, 0, with_md5=False), blob, [member]) == []


@pytest.mark.parametrize("wait", [linked, asked_for_a_prefix, finished], ids=lambda wait: str(wait.__name__))
async def test_no_wait_for_a_peer_grows_with_the_size(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, wait: Callable[[Node, str], Awaitable[None]]
) -> None:
    monkeypatch.setattr("node.uploads.replicate.FINISH_S", 2.0)
    async with hung(nodes, "n2"):
        await wait(nodes[0], "n2")


async def test_request_after_one_that_met_a_hung_member_is_not_held_up_by_it(nodes: list[Node]) -> None:
    store_upload(nodes[0])
    async with hung(nodes, "n2"):
        assert await sent_along_a_chain(nodes[0]) == {"n2"}
        assert await sent_along_a_chain(nodes[0]) == set()


async def sent_along_a_chain(node: Node) -> set[str]:
    """The members that were given up before the write quorum had all bytes."""
    async with reaching_all(node) as chain:
        return set(chain._failed_at_s)


@asynccontextmanager
async def reaching_all(node: Node) -> AsyncIterator[Chain]:
    """From n1 to n2 and n3, once the write quorum has all that lies on n1."""
    with node.services.uploads.open(UUID, None) as upload:
        chain = chain_of_all(node, upload)
        await chain.reach(len(CONTENT))
        yield chain
        await chain.close()


async def test_one_behind_which_a_member_hangs_is_not_taken_for_silent(nodes: list[Node]) -> None:
    silent = nodes[0].services.peers.silent
    store_upload(nodes[0])
    async with hung(nodes, "n3"), reaching_all(nodes[0]) as chain:
        await chain.linger()
        assert "n3" in silent
        assert "n2" not in silent


async def test_member_whose_disk_hangs_keeps_nothing_from_those_behind_it(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, member = threading.Event(), nodes[1].services.blobs
    fdatasync = member.disk.fdatasync

    def hang(descriptor: int) -> None:
        if os.fstat(descriptor).st_size >= len(CONTENT):
            goes_on.wait()
        fdatasync(descriptor)

    monkeypatch.setattr(member, "disk", dataclasses.replace(member.disk, fdatasync=hang))
    store_upload(nodes[0])
    try:
        async with asyncio.timeout(END_S / 2):  # of the member in the middle
            assert await sent_along_a_chain(nodes[0]) == set()
    finally:
        goes_on.set()


async def test_successor_is_found_beside_one_that_does_not_answer(nodes: list[Node]) -> None:
    store_upload(nodes[2])
    async with hung(nodes, "n2"):
        asked = who_has_prefix(
            nodes[0].services, ["n2", "n3"], record_of("n1", "n2", "n3", offset_bytes=len(CONTENT))
        )
        successor, do_all_say = await asked
        assert (successor, do_all_say) == ("n3", False)
        assert "n2" not in nodes[0].services.peers.silent  # it was not waited for


async def test_prefix_that_takes_long_to_read_is_told_to_who_comes_back_for_it(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    store_upload(nodes[1])
    monkeypatch.setattr("node.staging.resumed_hash.ANSWER_S", 0.1)
    uploads, goes_on, reads = nodes[1].services.uploads, threading.Event(), []
    hash_prefix = uploads.hash_prefix

    def slow(*known: object) -> None:
        reads.append(known)
        goes_on.wait()
        hash_prefix(*known)  # type: ignore[arg-type]

    monkeypatch.setattr(uploads, "hash_prefix", slow)
    record = record_of("n1", "n2", offset_bytes=len(CONTENT))
    try:
        assert await has_prefix(nodes[0].services, "n2", record) is None  # 503: ask again
    finally:
        goes_on.set()
    async with asyncio.timeout(DEADLINE_S):
        while await has_prefix(nodes[0].services, "n2", record) is None:
            pass
    assert len(reads) == 1

"""Cold replicas that a node fetches from others: over real TLS between listeners in this process."""

import asyncio
import hashlib
import os
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from ca.errors import InsufficientStorage, Unavailable
from deploy.processes import free_ports
from node.cold.manifest import CHUNK_BYTES_MAX, ContentChunk, ManifestInvalid, decode_list, encode_chunks
from node.custody.freezing import freeze
from node.diskio.executor import DISK_THREADS
from node.peer import cold_fetch, range_fetch, salvage
from node.peer.cold_fetch import RANGE_BYTES, ColdFetches, ranges_of
from node.peer.range_fetch import Fetch, FetchContext, SourcesFailed
from node.storage.segments import FinishedBlob
from tests.unit.cold_store import collect_all, no_pace, put_file, read, version
from tests.unit.node.peer.test_blob_fetching import counted
from tests.unit.peer_nodes import Answering, Node, impostor, introduce

MIB = 1 << 20


@cache
def old_image() -> bytes:
    return random.Random(11).randbytes(24 * MIB)


@cache
def new_image() -> bytes:
    """1 % of it."""
    return old_image()[: 7 * MIB] + os.urandom(240 << 10) + old_image()[7 * MIB + (240 << 10) :]


@cache
def new_sha256() -> str:
    return hashlib.sha256(new_image()).hexdigest()


async def keep(node: Node, *contents: bytes) -> None:
    """Store these, cold."""
    for content in contents:
        name = put_file(node.services.blobs, content)
        await freeze(node.services.disk, node.services.blobs, name, pace=no_pace)


async def fetch(node: Node, sources: Sequence[str], content: bytes = new_image()) -> list[str]:
    name = hashlib.sha256(content).hexdigest()
    return await node.services.fetches.fetch_blob(name, len(content), sources)


def is_cold(node: Node, sha256: str = new_sha256()) -> bool:
    return node.services.blobs.cold.has_name(sha256) and not node.services.blobs.has_file(sha256)


def received_bytes(node: Node) -> float:
    return counted(node, "received")


def notes(directory: Path) -> list[str]:
    return os.listdir(directory / "unclaimed")


async def test_chunks_that_are_here_are_not_sent(nodes: list[Node]) -> None:
    await keep(nodes[0], old_image())
    await keep(nodes[1], new_image())
    assert await fetch(nodes[0], ["n2"]) == []
    assert is_cold(nodes[0])
    assert read(nodes[0].services.blobs, new_sha256()) == new_image()
    assert received_bytes(nodes[0]) < 2 * MIB
    assert new_sha256() in notes(nodes[0].directory)  # orphans ask the log whether it is needed
    assert nodes[0].services.blobs.affirm(new_sha256())
    assert collect_all(nodes[0].services.blobs).removed == 0
    assert os.listdir(nodes[0].directory / "drafts") == []


async def test_node_without_chunks_gets_all_of_them_from_hot_and_cold_sources(nodes: list[Node]) -> None:
    nodes[1].store(new_image())
    await keep(nodes[2], new_image())
    assert await fetch(nodes[0], ["n2", "n3"]) == []
    assert is_cold(nodes[0])
    assert read(nodes[0].services.blobs, new_sha256()) == new_image()
    assert counted(nodes[1], "sent")
    assert counted(nodes[2], "sent")


async def test_chunks_that_two_fetches_lack_are_sent_once(nodes: list[Node]) -> None:
    await keep(nodes[1], old_image(), new_image())
    async with asyncio.TaskGroup() as group:
        for content in (old_image(), new_image()):
            group.create_task(fetch(nodes[0], ["n2"], content))
    assert received_bytes(nodes[0]) < len(old_image()) + 2 * MIB
    for content in (old_image(), new_image()):
        name = hashlib.sha256(content).hexdigest()
        assert is_cold(nodes[0], name)
        assert read(nodes[0].services.blobs, name) == content


async def test_fetch_brings_the_chunks_of_another_that_is_given_up(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "BATCH_CHUNKS", 8)
    await keep(nodes[1], old_image(), new_image())
    began = asyncio.Event()

    async def stand_still(_bytes: int) -> None:
        began.set()
        await asyncio.Event().wait()

    name = hashlib.sha256(old_image()).hexdigest()
    stuck = asyncio.create_task(
        nodes[0].services.fetches.fetch_blob(name, len(old_image()), ["n2"], pace=stand_still)
    )
    await began.wait()
    other = asyncio.create_task(fetch(nodes[0], ["n2"]))
    done, _ = await asyncio.wait({other}, timeout=0.5)
    assert not done
    stuck.cancel()
    assert await other == []
    assert is_cold(nodes[0])


async def test_fetch_brings_the_chunks_of_another_that_is_stuck(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(nodes[1], old_image(), new_image())
    began = asyncio.Event()

    async def stand_still(_bytes: int) -> None:
        began.set()
        await asyncio.Event().wait()

    name = hashlib.sha256(old_image()).hexdigest()
    stuck = asyncio.create_task(
        nodes[0].services.fetches.fetch_blob(name, len(old_image()), ["n2"], pace=stand_still)
    )
    await began.wait()
    monkeypatch.setattr(cold_fetch, "RANGE_S_MAX", 1.0)
    assert await fetch(nodes[0], ["n2"]) == []
    assert is_cold(nodes[0])
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck


@asynccontextmanager
async def busy_disk(node: Node) -> AsyncIterator[threading.Event]:
    """The node's disk does nothing until the event is set."""
    over = threading.Event()
    jobs = [node.services.disk.begin(over.wait) for _ in range(DISK_THREADS)]
    try:
        yield over
    finally:
        over.set()
        for job in jobs:
            await asyncio.wrap_future(job)


async def test_source_whose_disk_is_slow_is_waited_for(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "STALL_S", 0.5)
    monkeypatch.setattr(salvage, "SUMS_TIMEOUT_S", 0.5)
    await keep(nodes[0], old_image())
    await keep(nodes[1], new_image())
    async with busy_disk(nodes[1]) as over:
        asyncio.get_running_loop().call_later(2.0, over.set)
        assert await fetch(nodes[0], ["n2"]) == []
    assert is_cold(nodes[0])
    assert received_bytes(nodes[0]) < 2 * MIB


async def test_slow_list_of_one_source_is_waited_for_while_another_cannot_be_reached(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "LIST_GRACE_S", 0.5)
    await keep(nodes[0], old_image())
    await keep(nodes[1], new_image())
    introduce(nodes, ports={"n3": free_ports(1)[0]})
    async with busy_disk(nodes[1]) as over:
        asyncio.get_running_loop().call_later(2.0, over.set)
        await fetch(nodes[0], ["n3", "n2"])
    assert is_cold(nodes[0])
    assert received_bytes(nodes[0]) < 2 * MIB


async def test_sources_that_are_too_slow_send_no_file_instead(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "LIST_STALL_S", 0.5)
    await keep(nodes[0], old_image())
    await keep(nodes[1], new_image())
    async with busy_disk(nodes[1]) as over:
        with pytest.raises(SourcesFailed) as failed:
            await fetch(nodes[0], ["n2"])
        assert failed.value.sources == ["n2"]
        assert received_bytes(nodes[0]) == 0
        over.set()
        await fetch(nodes[0], ["n2"])
    assert is_cold(nodes[0])


async def test_source_that_never_answers_is_waited_for_once(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "LIST_GRACE_S", 0.5)
    silent = nodes[0].services.peers.silent

    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter, over: asyncio.Event) -> None:
        await over.wait()

    for content in (old_image(), new_image()):
        nodes[1].store(content)
    async with impostor(nodes[2], say_nothing) as port:
        introduce(nodes, ports={"n3": port})
        await fetch(nodes[0], ["n3", "n2"], old_image())
        assert "n3" in silent
        monkeypatch.setattr(cold_fetch, "LIST_GRACE_S", 60.0)
        async with asyncio.timeout(30):
            await fetch(nodes[0], ["n3", "n2"])
    assert nodes[0].services.blobs.has_file(new_sha256())


async def test_cold_list_is_told_while_hot_blobs_are_cut_for_others(nodes: list[Node]) -> None:
    await keep(nodes[1], new_image())
    async with nodes[1].services.cuttings, nodes[1].services.cuttings:
        assert nodes[1].services.cuttings.locked()
        await fetch(nodes[0], ["n2"])
    assert is_cold(nodes[0])


async def test_hot_blob_comes_as_a_file(nodes: list[Node]) -> None:
    nodes[1].store(new_image())
    await keep(nodes[0], old_image())
    await fetch(nodes[0], ["n2"])
    assert nodes[0].services.blobs.has_file(new_sha256())
    assert not is_cold(nodes[0])


async def test_content_that_repeats_a_chunk_asks_for_it_once(nodes: list[Node]) -> None:
    content = bytes(8 * MIB) + b"end"
    await keep(nodes[1], content)
    await fetch(nodes[0], ["n2"], content)
    name = hashlib.sha256(content).hexdigest()
    assert read(nodes[0].services.blobs, name) == content
    assert received_bytes(nodes[0]) < 2 * CHUNK_BYTES_MAX


async def test_source_that_thaws_in_the_middle_goes_on_sending(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "BATCH_CHUNKS", 8)
    await keep(nodes[1], new_image())
    changed = False

    async def pace(_bytes: int) -> None:
        nonlocal changed
        if not changed:
            changed = True
            blobs = nodes[1].services.blobs
            await nodes[1].services.disk.run(put_file, blobs, new_image())
            assert blobs.has_file(new_sha256())

    await nodes[0].services.fetches.fetch_blob(new_sha256(), len(new_image()), ["n2"], pace=pace)
    assert changed
    assert is_cold(nodes[0])
    assert read(nodes[0].services.blobs, new_sha256()) == new_image()


async def test_source_that_loses_the_blob_is_replaced_by_another(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "BATCH_CHUNKS", 8)
    await keep(nodes[1], new_image())
    await keep(nodes[2], new_image())
    lost = False

    async def pace(_bytes: int) -> None:
        nonlocal lost
        if not lost:
            lost = True
            assert await nodes[1].services.disk.run(nodes[1].services.blobs.delete, new_sha256())

    failed = await nodes[0].services.fetches.fetch_blob(
        new_sha256(), len(new_image()), ["n2", "n3"], pace=pace
    )
    assert failed == ["n2"]
    assert is_cold(nodes[0])
    assert read(nodes[0].services.blobs, new_sha256()) == new_image()


async def test_attempt_after_an_interruption_fetches_the_rest(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "BATCH_CHUNKS", 8)
    monkeypatch.setattr(cold_fetch, "RANGES_AT_ONCE", 1)
    await keep(nodes[1], new_image())
    reached, paced_bytes = asyncio.Event(), 0

    async def pace(size_bytes: int) -> None:
        nonlocal paced_bytes
        paced_bytes += size_bytes
        if paced_bytes > 12 * MIB:
            reached.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(
        nodes[0].services.fetches.fetch_blob(new_sha256(), len(new_image()), ["n2"], pace=pace)
    )
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not nodes[0].services.blobs.has_name(new_sha256())
    assert os.listdir(nodes[0].directory / "drafts") == []
    before = received_bytes(nodes[0])
    await fetch(nodes[0], ["n2"])
    assert is_cold(nodes[0])
    assert received_bytes(nodes[0]) - before < len(new_image()) - 8 * MIB


async def test_chunk_here_that_is_rotten_makes_it_come_as_a_file(nodes: list[Node]) -> None:
    await keep(nodes[0], old_image())
    await keep(nodes[1], new_image())
    (pack,) = (nodes[0].directory / "chunks").glob("*.pack")
    with pack.open("r+b") as file:
        file.seek(3 * MIB)
        file.write(b"rotten")
    await fetch(nodes[0], ["n2"])
    assert nodes[0].services.blobs.has_file(new_sha256())
    assert read(nodes[0].services.blobs, new_sha256()) == new_image()
    assert len(nodes[0].services.blobs.cold.damaged_chunks(10)) == 1


async def test_file_that_arrives_meanwhile_stays(nodes: list[Node]) -> None:
    await keep(nodes[1], new_image())
    blobs = nodes[0].services.blobs

    def arrive(_read_bytes: int) -> None:
        if not blobs.has_file(new_sha256()):
            put_file(blobs, new_image())

    await nodes[0].services.fetches.fetch_blob(new_sha256(), len(new_image()), ["n2"], moved=arrive)
    assert blobs.has_file(new_sha256())
    assert not blobs.cold.has_name(new_sha256())
    assert read(blobs, new_sha256()) == new_image()


async def test_full_disk_refuses_and_leaves_no_draft(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(nodes[1], new_image())
    blobs = nodes[0].services.blobs
    monkeypatch.setattr(blobs, "room_bytes", lambda: MIB)
    with pytest.raises(InsufficientStorage):
        await fetch(nodes[0], ["n2"])
    assert os.listdir(nodes[0].directory / "drafts") == []
    assert not blobs.has_name(new_sha256())


def telling(raw: bytes) -> Answering:
    """A peer that lists these chunks, and answers nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        while b"/chunks" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
        await over.wait()

    return serve


def wrong_lists() -> list[bytes]:
    size, chunk = len(new_image()), 512 << 10
    stops = [*range(chunk, size, chunk), size]
    other = [ContentChunk(bytes([n % 256]) * 32, stop - 1, stop) for n, stop in enumerate(stops)]
    own = [ContentChunk(hashlib.sha256(old_image()[:chunk]).digest(), stop - 1, stop) for stop in stops]
    too_many, cut_off = b"\0" * (size // 50), encode_chunks(other)[:-40]
    return [b"", b"x" * 39, encode_chunks(other), encode_chunks(own), cut_off, too_many]


@pytest.mark.parametrize("raw", wrong_lists(), ids=range(6))
async def test_wrong_list_costs_time_only(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    for module in (cold_fetch, range_fetch):
        monkeypatch.setattr(module, "STALL_S", 0.5)
    nodes[1].store(new_image())
    async with impostor(nodes[2], telling(raw)) as port:
        introduce(nodes, ports={"n3": port})
        await fetch(nodes[0], ["n3", "n2"])
    assert nodes[0].services.blobs.has_file(new_sha256())
    assert read(nodes[0].services.blobs, new_sha256()) == new_image()


@pytest.mark.long
async def test_sources_that_are_silent_end_the_attempt(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cold_fetch, range_fetch):
        monkeypatch.setattr(module, "STALL_S", 0.3)
    await keep(nodes[1], new_image())
    raw = nodes[1].services.blobs.cold.open(new_sha256()).manifest.entries
    async with impostor(nodes[2], telling(raw)) as port:
        introduce(nodes, ports={"n3": port})
        with pytest.raises(Unavailable):
            await fetch(nodes[0], ["n3"])
    assert os.listdir(nodes[0].directory / "drafts") == []


def test_lists_are_bounded_by_the_size() -> None:
    for raw in wrong_lists()[:2] + wrong_lists()[4:]:
        with pytest.raises(ManifestInvalid):
            decode_list(raw, new_sha256(), len(new_image()))
    tiny = encode_chunks([ContentChunk(b"i" * 32, at, at + 1) for at in range(len(version(0)) // 1000)])
    with pytest.raises(ManifestInvalid):
        decode_list(tiny, new_sha256(), len(version(0)) // 1000)


def test_ranges_join_chunks_that_follow_each_other_up_to_their_limit() -> None:
    chunks = [ContentChunk(bytes([n]) * 32, n * MIB, (n + 1) * MIB) for n in range(20)]
    wanted = {chunk.id for chunk in chunks if chunk.start != 4 * MIB}
    found = ranges_of([*chunks, chunks[0]], wanted)
    assert [(group[0].start // MIB, group[-1].stop // MIB) for group in found] == [(0, 4), (5, 13), (13, 20)]
    assert all(group[-1].stop - group[0].start <= RANGE_BYTES for group in found)


async def test_custody_notes_that_there_may_be_cold_replicas_before_one_is_placed(nodes: list[Node]) -> None:
    await keep(nodes[1], new_image())
    services, told = nodes[0].services, list[bool]()

    @asynccontextmanager
    async def placing() -> AsyncIterator[None]:
        told.append(services.blobs.cold.has_name(new_sha256()))
        yield
        told.append(services.blobs.cold.has_name(new_sha256()))

    context = FetchContext(services.peers, services.disk, services.metrics)
    fetches = ColdFetches(services.blobs, context, placing)
    assert await fetches.fetch(
        FinishedBlob(new_sha256(), len(new_image())), ["n2"], Fetch(None, lambda _: None)
    )
    assert told == [False, True]


async def test_attempt_that_fails_is_noticed_by_the_next_collection(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_fetch, "BATCH_CHUNKS", 8)
    await keep(nodes[1], new_image())
    manifests, lost = nodes[0].services.blobs.cold.manifests, False
    before = manifests.state()

    async def pace(_bytes: int) -> None:
        nonlocal lost
        if not lost:
            lost = True
            assert nodes[1].services.blobs.delete(new_sha256())

    with pytest.raises(Unavailable):
        await nodes[0].services.fetches.fetch_blob(new_sha256(), len(new_image()), ["n2"], pace=pace)
    assert lost
    assert manifests.state() != before

"""Blobs brought here from peers: over real TLS between listeners in this process, no coordinators."""

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ca.errors import InsufficientStorage, Unavailable
from node.peer import range_fetch
from node.peer.range_fetch import Pace
from node.storage.partial_blob import Partial
from node.storage.quarantine import Quarantine
from node.storage.segments import (
    SEGMENT_BYTES,
    FinishedBlob,
    SegmentHasher,
    SegmentSums,
    encode_sidecar,
)
from node.storage.verified_segments import FileIdentity
from tests.unit.peer_nodes import Answering, Node, impostor, introduce

CONTENT = os.urandom(9 * SEGMENT_BYTES + 12_345)  # three ranges, the last one short
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def blob_path(node: Node) -> Path:
    return node.directory / "blobs" / SHA256[:2] / SHA256[2:4] / SHA256


def rewrite(path: Path, at: int, content: bytes) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def counted(node: Node, direction: str) -> float:
    value = node.registry.get_sample_value("filestore_replica_bytes_total", {"direction": direction})
    assert value is not None
    return value


async def fetch(node: Node, sources: Sequence[str], *, pace: Pace | None = None) -> None:
    await node.services.fetches.fetch_blob(SHA256, len(CONTENT), sources, pace=pace)


async def pull(node: Node, target: str, body: object) -> int:
    content = json.dumps(body).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    async with node.services.peers.request(
        target, "POST", f"/blobs/{SHA256}/pull", headers=headers, body=pieces()
    ) as answer:
        return answer.status


def trust(node: Node, index: int) -> None:
    """As after a rot of the medium within the hour: the file looks as it did when it was found sound."""
    with node.services.blobs.open(SHA256) as blob:
        blob._trusted.add(SHA256, index, FileIdentity.of(blob.fd))


def left_over(node: Node) -> list[str]:
    return [path.name for path in (node.directory / "partials").iterdir()]


def silent_after(sums: bytes) -> Answering:
    """Tells its checksums, and answers nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        while b"/sums" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(sums) + sums)
        await over.wait()

    return serve


async def test_blob_comes_whole_and_from_two_sources_at_once(nodes: list[Node]) -> None:
    for node in nodes[1:]:
        node.store(CONTENT)
    await fetch(nodes[0], ["n2", "n3"])
    assert blob_path(nodes[0]).read_bytes() == CONTENT
    assert [counted(node, "sent") > 0 for node in nodes[1:]] == [True, True]
    assert counted(nodes[0], "received") == len(CONTENT)
    assert left_over(nodes[0]) == []


async def test_blob_that_is_here_is_not_asked_for(nodes: list[Node]) -> None:
    nodes[0].store(CONTENT)
    await fetch(nodes[0], ["n2"])
    assert counted(nodes[0], "received") == 0


async def test_damaged_blob_that_is_here_is_fetched_anew(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.store(CONTENT)
    rewrite(blob_path(nodes[0]), 5, b"rotten")
    await fetch(nodes[0], ["n2"])
    assert blob_path(nodes[0]).read_bytes() == CONTENT


async def test_empty_blob_is_fetched(nodes: list[Node]) -> None:
    nodes[1].store(b"")
    sha256 = hashlib.sha256().hexdigest()
    await nodes[0].services.fetches.fetch_blob(sha256, 0, ["n2"])
    assert nodes[0].services.blobs.size_bytes(sha256) == 0


async def test_source_that_finds_damage_is_followed_by_another(nodes: list[Node]) -> None:
    for node in nodes[1:]:
        node.store(CONTENT)
    rewrite(blob_path(nodes[1]), 6 * SEGMENT_BYTES, b"rotten")
    await fetch(nodes[0], ["n2", "n3"])
    assert blob_path(nodes[0]).read_bytes() == CONTENT


async def test_source_that_sends_damage_unawares_is_told_and_gives_its_copy_up(nodes: list[Node]) -> None:
    for node in nodes[1:]:
        node.store(CONTENT)
    for index in (0, 4, 8):  # one in each range: whichever it is asked for
        rewrite(blob_path(nodes[1]), index * SEGMENT_BYTES + 7, b"rotten")
    for index in (0, 4, 8):
        trust(nodes[1], index)
    await fetch(nodes[0], ["n2", "n3"])
    assert blob_path(nodes[0]).read_bytes() == CONTENT
    assert not blob_path(nodes[1]).exists()


async def test_only_source_with_damage_is_an_error_and_nothing_is_installed(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    rewrite(blob_path(nodes[1]), 4 * SEGMENT_BYTES + 7, b"rotten")
    trust(nodes[1], 4)
    with pytest.raises(Unavailable):
        await fetch(nodes[0], ["n2", "n3"])
    assert not nodes[0].services.blobs.has(SHA256)
    assert not blob_path(nodes[1]).exists()
    assert [name for name, _ in Quarantine(nodes[1].services.blobs).names()] == [SHA256]


async def test_what_came_before_the_sources_failed_need_not_come_again(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_fetch, "RANGES_AT_ONCE", 1)  # else the damage may come first
    nodes[1].store(CONTENT)
    rewrite(blob_path(nodes[1]), 8 * SEGMENT_BYTES + 7, b"rotten")
    with pytest.raises(Unavailable):
        await fetch(nodes[0], ["n2"])
    assert left_over(nodes[0]) == [SHA256]
    nodes[2].store(CONTENT)
    before = counted(nodes[0], "received")
    await fetch(nodes[0], ["n3"])
    assert counted(nodes[0], "received") - before == SEGMENT_BYTES  # the rotten one: the rest was salvaged
    assert blob_path(nodes[0]).read_bytes() == CONTENT
    assert left_over(nodes[0]) == []


async def test_checksums_that_lie_are_found_out_by_the_sha256(nodes: list[Node]) -> None:
    """A replica with matching wrong checksums is a party of its own; the other party is asked next."""
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    hasher = SegmentHasher()
    hasher.update(wrong)
    for node in nodes[1:]:
        node.store(CONTENT)
    blob_path(nodes[1]).with_name(f"{SHA256}.sums").chmod(0o600)
    blob_path(nodes[1]).with_name(f"{SHA256}.sums").write_bytes(encode_sidecar(hasher.sums()))
    rewrite(blob_path(nodes[1]), len(CONTENT) - 1, wrong[-1:])
    await fetch(nodes[0], ["n2", "n3"])
    assert blob_path(nodes[0]).read_bytes() == CONTENT


async def test_no_source_is_an_error(nodes: list[Node]) -> None:
    with pytest.raises(Unavailable):
        await fetch(nodes[0], ["n1", "n2", "n3"])
    assert left_over(nodes[0]) == []


async def test_source_that_falls_silent_is_replaced(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_fetch, "STALL_S", 0.3)
    nodes[1].store(CONTENT)
    hasher = SegmentHasher()
    hasher.update(CONTENT)
    sums = encode_sidecar(hasher.sums())
    async with impostor(nodes[2], silent_after(sums)) as port:
        introduce(nodes, ports={"n3": port})
        await fetch(nodes[0], ["n3", "n2"])
    assert blob_path(nodes[0]).read_bytes() == CONTENT


async def test_range_that_waits_while_the_last_source_is_denounced_finds_no_source(nodes: list[Node]) -> None:
    hasher = SegmentHasher()
    hasher.update(CONTENT)
    sums, dropped = encode_sidecar(hasher.sums()), asyncio.Event()
    paces = iter([True])  # for the first range; the others wait

    async def pace(_: int) -> None:
        if not next(paces, False):
            await dropped.wait()

    async def send_rot(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event
    ) -> None:
        while not (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HEAD "):
            if b"/sums" in head:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(sums) + sums)
            else:
                start, stop = 0, 4 * SEGMENT_BYTES
                span = b"bytes %d-%d/%d" % (start, stop - 1, len(CONTENT))
                writer.write(b"HTTP/1.1 206 Partial Content\r\nContent-Range: %s\r\n" % span)
                writer.write(b"Content-Length: %d\r\n\r\n" % (stop - start) + bytes(stop - start))
        dropped.set()
        await over.wait()

    async with impostor(nodes[2], send_rot) as port:
        introduce(nodes, ports={"n3": port})
        with pytest.raises(Unavailable):
            await fetch(nodes[0], ["n3"], pace=pace)


async def test_pace_is_awaited_for_every_byte(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    asked: list[int] = []

    async def pace(size_bytes: int) -> None:
        asked.append(size_bytes)

    await fetch(nodes[0], ["n2"], pace=pace)
    assert sum(asked) == len(CONTENT)
    assert max(asked) < SEGMENT_BYTES  # in small steps, which clients of either node do not feel


async def test_blob_larger_than_the_disk_is_refused(nodes: list[Node]) -> None:
    with pytest.raises(InsufficientStorage):
        await nodes[0].services.fetches.fetch_blob(SHA256, 2**53 - 1, ["n2"])


async def test_pull_brings_the_blob_and_may_be_repeated(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    order = {"size_bytes": len(CONTENT), "sources": ["n2"]}
    assert await asyncio.gather(*(pull(nodes[2], "n1", order) for _ in range(3))) == [200, 200, 200]
    assert blob_path(nodes[0]).read_bytes() == CONTENT
    assert counted(nodes[0], "received") == len(CONTENT)
    assert await pull(nodes[2], "n1", order) == 200
    assert counted(nodes[0], "received") == len(CONTENT)


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"size_bytes": len(CONTENT), "sources": ["n3"]}, 503),
        ({"size_bytes": len(CONTENT) - 1, "sources": ["n2"]}, 503),
        ({"size_bytes": 2**53 - 1, "sources": ["n2"]}, 507),
        ({"size_bytes": -1, "sources": ["n2"]}, 400),
        ({"size_bytes": 2**53, "sources": ["n2"]}, 400),
        ({"size_bytes": 1, "sources": []}, 400),
        ({"size_bytes": 1, "sources": ["n2"] * 17}, 400),
        ({"size_bytes": 1, "sources": ["n2"], "more": 1}, 400),
        ([], 400),
    ],
)
async def test_pull_that_cannot_be_obeyed_is_refused(nodes: list[Node], order: object, status: int) -> None:
    nodes[1].store(CONTENT)
    assert await pull(nodes[2], "n1", order) == status
    assert not nodes[0].services.blobs.has(SHA256)


async def ask(node: Node, method: str, path: str) -> tuple[int, bytes]:
    async with node.services.peers.request("n2", method, path) as answer:
        return answer.status, await answer.read()


async def test_checksums_are_served_as_the_sidecar_has_them(nodes: list[Node]) -> None:
    nodes[1].store(CONTENT)
    sidecar = blob_path(nodes[1]).with_name(f"{SHA256}.sums").read_bytes()
    assert await ask(nodes[0], "GET", f"/blobs/{SHA256}/sums") == (200, sidecar)
    assert (await ask(nodes[0], "GET", f"/blobs/{'0' * 64}/sums"))[0] == 404
    assert (await ask(nodes[0], "GET", "/blobs/x/sums"))[0] == 404


@pytest.mark.parametrize(("number", "status"), [("0", 200), ("9", 200), ("10", 400), ("-1", 400), ("x", 400)])
async def test_segment_that_is_doubted_is_read_again(nodes: list[Node], number: str, status: int) -> None:
    nodes[1].store(CONTENT)
    assert (await ask(nodes[0], "HEAD", f"/blobs/{SHA256}?segment={number}"))[0] == status


async def test_fetch_that_is_given_up_while_its_file_is_opened_leaves_it_to_the_next(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, node = nodes[0], nodes[1]
    source.store(CONTENT)
    partials = node.services.fetches._partials
    open_, opened, goes_on = partials.open, threading.Event(), threading.Event()

    def open_slowly(blob: FinishedBlob, sums: SegmentSums) -> Partial:
        found = open_(blob, sums)
        opened.set()
        assert goes_on.wait(20)
        return found

    monkeypatch.setattr(partials, "open", open_slowly)
    fetching = asyncio.create_task(node.services.fetches.fetch_blob(SHA256, len(CONTENT), ["n1"]))
    await asyncio.to_thread(opened.wait)
    fetching.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    monkeypatch.setattr(partials, "open", open_)
    await node.services.fetches.fetch_blob(SHA256, len(CONTENT), ["n1"])
    assert blob_path(node).read_bytes() == CONTENT

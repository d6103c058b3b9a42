"""A file that lies under the name of another, with its checksums: no segment tells, no byte of it leaves."""

import asyncio
import hashlib
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from aiohttp import web

from metadata.model.records import ContentRecord
from node.content.download import serve_content
from node.content.sources import NoReplica, read_anywhere
from node.packs.store import BLOB_BYTES_MAX
from node.peer.salvage import Salvager, local_sums
from node.storage.blob_files import SIDECAR
from node.storage.quarantine import Quarantine
from node.storage.segments import SEGMENT_BYTES, FinishedBlob
from tests.unit.file_records import available_file
from tests.unit.node.content.test_local_downloads import asking, read_answer
from tests.unit.peer_nodes import Node, taken
from web.app import new_application, serve

LARGE = os.urandom(2 * SEGMENT_BYTES)


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def path_of(node: Node, name: str) -> Path:
    return node.directory / "blobs" / name[:2] / name[2:4] / name


def misname(node: Node, name: str, other: bytes) -> None:
    """What a disk does that exchanges two names, or a restore that goes astray."""
    node.store(other)
    path_of(node, name).parent.mkdir(parents=True, exist_ok=True)
    for end in ("", SIDECAR):
        path_of(node, name_of(other) + end).rename(path_of(node, name).with_name(name + end))


async def answers(node: Node, content: bytes, replicas: list[str], *asked: str) -> list[tuple[bytes, bytes]]:
    """What a node answers to requests for content, one after the other."""

    async def handler(request: web.Request) -> web.StreamResponse:
        file = available_file(size_bytes=len(content), blob_sha256=name_of(content))
        found = ContentRecord(file=file, replicas=replicas)
        return await serve_content(request, node.services, found, policy={})

    app = new_application([web.get("/", handler)], component="test")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        found = []
        for line in asked:
            writer.write(asking(line) if line else asking())
            found.append(await read_answer(reader))
        writer.close()
        return found
    finally:
        await listener.close()


@pytest.mark.parametrize("size_bytes", [1000, BLOB_BYTES_MAX, SEGMENT_BYTES])
@pytest.mark.parametrize("asked", ["", "Range: bytes=0-9"], ids=["whole", "range"])
async def test_content_of_one_segment_is_compared_with_its_name_before_it_is_sent(
    nodes: list[Node], size_bytes: int, asked: str
) -> None:
    content = os.urandom(size_bytes)
    name = name_of(content)
    misname(nodes[0], name, os.urandom(size_bytes))
    nodes[1].store(content)
    [(_, body), (_, again)] = await answers(nodes[0], content, ["n1", "n2"], asked, asked)
    assert body == again == (content[:10] if asked else content)
    assert not path_of(nodes[0], name).exists()
    assert [kept for kept, _ in Quarantine(nodes[0].services.blobs).names()] == [name]
    assert local_sums(nodes[0].services.blobs, name) is None  # they vouched for other content


async def test_file_of_another_size_than_the_log_names_is_not_sent(nodes: list[Node]) -> None:
    name = name_of(LARGE)
    misname(nodes[0], name, LARGE[::-1] + b"more")
    nodes[1].store(LARGE)
    [(_, body)] = await answers(nodes[0], LARGE, ["n1", "n2"], "Range: bytes=5-5000000")
    assert body == LARGE[5:5_000_001]
    assert not path_of(nodes[0], name).exists()


async def test_peer_that_has_a_file_of_another_size_is_no_source(nodes: list[Node]) -> None:
    name = name_of(LARGE)
    misname(nodes[0], name, LARGE[::-1] + b"more")
    reading = read_anywhere(nodes[2].services, name, ["n1"], 5, 5_000_000, size_bytes=len(LARGE))
    with pytest.raises(NoReplica):
        async with aclosing(reading):
            await taken(reading)
    nodes[1].store(LARGE)
    reading = read_anywhere(nodes[2].services, name, ["n1", "n2"], 5, 5_000_000, size_bytes=len(LARGE))
    async with aclosing(reading):
        assert await taken(reading) == LARGE[5:5_000_000]


async def test_damaged_copy_that_is_other_content_is_no_source(nodes: list[Node]) -> None:
    content, services = os.urandom(5000), nodes[0].services
    misname(nodes[0], name_of(content), os.urandom(5000))
    sums = local_sums(services.blobs, name_of(content))
    assert sums is not None
    salvager = Salvager("n1", services.blobs, services.peers, services.disk, services.metrics)
    blob = FinishedBlob(name_of(content), len(content))
    assert await salvager.copies(blob, sums, ["n1"]).segment(0) is None

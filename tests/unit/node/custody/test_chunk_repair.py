"""A damaged chunk is fetched from another node and stored again; what no node has costs its replicas."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ca.certificates import Authority
from node.cold.manifest import ContentChunk
from node.custody import chunk_repair, freezing
from node.custody.custody import Custody
from node.storage.quarantine import Quarantine
from tests.unit.cold_store import no_pace, read, version
from tests.unit.custody_node import Log
from tests.unit.node.content.test_cold_downloads import damage
from tests.unit.peer_nodes import Node, introduce, running_node
from tests.unit.state import ADMIN, State, complete, create

CONTENTS = [version(number, size_bytes=2_000_000) for number in range(3)]
NAMES = [hashlib.sha256(content).hexdigest() for content in CONTENTS]


@asynccontextmanager
async def two_nodes(path: Path, authority: Authority) -> AsyncIterator[tuple[Node, Node, Custody, State]]:
    """Both have all contents, and the first one as chunks; the log says so."""
    state = State(path / "state")
    state.nodes("n1", "n2", "n3")
    for number, content in enumerate(CONTENTS):
        state.done(create(ADMIN, f"file{number}"))
        state.done(complete(ADMIN, f"file{number}", NAMES[number], ["n1", "n2"], size_bytes=len(content)))
    async with (
        running_node("n1", path / "n1", authority, log=Log(state)) as one,
        running_node("n2", path / "n2", authority) as two,
    ):
        introduce([one, two])
        for node in (one, two):
            for content in CONTENTS:
                node.store(content)
        for name in NAMES:
            await freezing.freeze(one.services.disk, one.services.blobs, name, pace=no_pace)
        custody = one.services.custody
        assert custody is not None
        yield one, two, custody, state
    state.store.close()


async def test_chunks_are_repaired_from_another_node(tmp_path: Path, peer_authority: Authority) -> None:
    async with two_nodes(tmp_path, peer_authority) as (one, _, custody, _state):
        blobs = one.services.blobs
        damage(one, every=100_000, start=50_000)
        found = await custody.cold.collect()  # names and index are sound
        assert (found.removed, found.missing) == (0, [])
        for sha256 in NAMES:
            for chunk_id in list(manifest_of(one, sha256)):
                blobs.cold.note_damaged(chunk_id)
        while blobs.cold.damaged_chunks(1):
            await custody.cold.do_due()
        assert [read(blobs, name) for name in NAMES] == CONTENTS
        assert one.registry.get_sample_value("filestore_chunks_repaired_total") > 3  # type: ignore[operator]


def manifest_of(node: Node, sha256: str) -> list[bytes]:
    with node.services.blobs.cold.open(sha256) as blob:
        return list(blob.manifest.ids())


async def test_chunks_that_the_index_lacks_are_noted_and_repaired(
    tmp_path: Path, peer_authority: Authority
) -> None:
    async with two_nodes(tmp_path, peer_authority) as (one, _, custody, _state):
        blobs = one.services.blobs
        rows = list(blobs.cold.chunks.rows(bytes(32), b"\xff" * 33))
        blobs.cold.chunks.remove(rows[::2])
        found = await custody.cold.collect()
        assert len(found.missing) == len(rows[::2])
        while blobs.cold.damaged_chunks(1):
            await custody.cold.do_due()
        assert [read(blobs, name) for name in NAMES] == CONTENTS


async def test_replicas_with_a_chunk_that_no_node_has_go_out_of_service(
    tmp_path: Path, peer_authority: Authority
) -> None:
    async with two_nodes(tmp_path, peer_authority) as (one, two, custody, _state):
        blobs, shared = one.services.blobs, set(manifest_of(one, NAMES[0])) & set(manifest_of(one, NAMES[1]))
        assert shared
        chunk_id = next(iter(shared))
        rows = [row for row in blobs.cold.chunks.rows(bytes(32), b"\xff" * 33) if row.sha256 == chunk_id]
        blobs.cold.chunks.remove(rows)
        blobs.cold.note_damaged(chunk_id)
        for name in NAMES:
            two.services.blobs.delete(name)
        repair = custody.cold._repair
        users = [name for name in NAMES if chunk_id in manifest_of(one, name)]
        for _ in range(chunk_repair.TRIES):
            repair._rests_until_s = 0.0
            await repair.repair_noted()
        assert not blobs.cold.damaged_chunks(1)
        assert sorted(name for name, _ in Quarantine(blobs).names()) == sorted(users)
        assert sorted(set(NAMES) - set(users)) == list(blobs.iterate())
        assert set((one.directory / "lost").iterdir())


async def test_bytes_that_are_not_the_chunk_are_not_stored(tmp_path: Path, peer_authority: Authority) -> None:
    """Another node sends what it has there, and this may be damaged or the content of another blob."""
    async with two_nodes(tmp_path, peer_authority) as (one, _, custody, _state):
        other = ContentChunk(hashlib.sha256(b"other").digest(), 0, 70_000)
        assert not await custody.cold._repair._fetch([(NAMES[0], other)])
        assert one.services.blobs.cold.chunks.has([other.id]) == set()
        sound = ContentChunk(hashlib.sha256(CONTENTS[0][:70_000]).digest(), 0, 70_000)
        assert await custody.cold._repair._fetch([(NAMES[0], sound)])
        assert one.services.blobs.cold.chunks.get(sound.id) == CONTENTS[0][:70_000]

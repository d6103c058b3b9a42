"""What `make chaos` does to cold contents, and what it finds on the disks in the end."""

import random
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from node.cold.manifest import decode_manifest
from tests.blobs_on_disk import is_sound_on, rot_chunk
from tests.chaos.clients import Ledger
from tests.chaos.cold import ColdContents
from tests.chaos.contents import Content, Contents
from tests.chaos.members import Member
from tests.cold_blobs import manifest_of
from tests.file_ledger import File
from tests.unit import cold_store

CONTENT = next(each for each in (Content(1, number) for number in range(99)) if each.disk is not None)


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, Member]:
    """Stopped nodes, each with the content as a cold replica."""
    found = {}
    for name in ("n1", "n2", "n3"):
        with closing(cold_store.opened(tmp_path / name)) as store:
            cold_store.freeze(store, cold_store.put_file(store, CONTENT.bytes()))
        found[name] = Member(name, "", 0, 0, tmp_path / name, tmp_path / "log", "node")
    return found


@pytest.fixture
async def cold(nodes: dict[str, Member]) -> AsyncIterator[tuple[ColdContents, list[str]]]:
    """What acts upon these nodes, and the faults that it finds."""
    async with aiohttp.ClientSession() as http:
        ledger = Ledger()
        contents = Contents(nodes, http, ledger, random.Random(1))
        contents.kept["f"] = File("f", CONTENT)
        yield ColdContents(nodes, contents, random.Random(1)), ledger.faults


async def test_sound_replicas_are_counted(cold: tuple[ColdContents, list[str]]) -> None:
    acts, faults = cold
    assert acts.judge() == 1
    assert faults == []


async def test_manifest_without_one_of_its_chunks_is_a_fault(
    nodes: dict[str, Member], cold: tuple[ColdContents, list[str]]
) -> None:
    acts, faults = cold
    manifest = decode_manifest(manifest_of(nodes["n2"].data, CONTENT.sha256).read_bytes(), CONTENT.sha256)
    assert rot_chunk(nodes["n2"].data, next(manifest.ids()))
    acts.judge()
    (fault,) = faults
    assert f"n2 has a manifest of {CONTENT.sha256}, and not its chunks" in fault


@pytest.mark.parametrize("seed", range(5))
async def test_disk_of_one_node_rots_in_what_the_others_have(nodes: dict[str, Member], seed: int) -> None:
    async with aiohttp.ClientSession() as http:
        contents = Contents(nodes, http, Ledger(), random.Random(1))
    acts = ColdContents(nodes, contents, random.Random(seed))
    assert acts._rot()
    assert sum(is_sound_on(node.data, CONTENT.sha256) for node in nodes.values()) == 2
    assert not acts._rot()  # now two have it

"""Why an upload has too few members: for want of room, or because they are slow, which clients wait for."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ca.errors import FilestoreError, InsufficientStorage, Unavailable
from node.uploads import chain as chain_module
from node.uploads.chain import Chain
from runtime import time_limits
from runtime.time_limits import patient
from tests.unit.peer_nodes import Node
from tests.unit.upload_records import CONTENT, UUID, chain_of_all, fill, store_upload

PATIENCE_S = 2.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(chain_module, "LACKING_S", PATIENCE_S)


@contextmanager
def slow(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The syncs of what has come take longer than anybody waits."""
    over = threading.Event()

    def wait(descriptor: int) -> None:
        if os.fstat(descriptor).st_size == len(CONTENT):
            over.wait()
        os.fdatasync(descriptor)

    monkeypatch.setattr(
        node.services.blobs,
        "disk",
        dataclasses.replace(node.services.blobs.disk, fdatasync=wait),
    )
    try:
        yield
    finally:
        over.set()


async def refusal(holder: Node) -> FilestoreError:
    """Of an upload whose bytes lie at the holder, and whose client may send more."""
    store_upload(holder)
    with holder.services.uploads.open(UUID, None) as upload:
        async with patient():
            chain = chain_of_all(holder, upload, ends=False)
            try:
                with pytest.raises(FilestoreError) as refused:
                    await chain.reach(len(CONTENT))
            finally:
                await chain.close()
    return refused.value


async def test_no_member_has_room(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    for node in nodes[1:]:
        fill(node, monkeypatch)
    refused = await refusal(nodes[0])
    assert isinstance(refused, InsufficientStorage)
    assert "1 node has room for these bytes, 2 are required" in refused.details
    assert refused.details.endswith("Full: n2, n3.")


async def test_slow_member_beside_a_full_one(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(nodes[2], monkeypatch)
    with slow(nodes[1], monkeypatch):
        assert isinstance(await refusal(nodes[0]), Unavailable)


async def test_member_that_was_full_counts_when_it_has_all_there_is(nodes: list[Node]) -> None:
    holder = nodes[0]
    store_upload(holder)
    with holder.services.uploads.open(UUID, None) as upload:
        chain: Chain = chain_of_all(holder, upload)
        try:
            chain._full.add("n2")
            chain._best["n2"] = len(CONTENT)
            await chain.reach(len(CONTENT))
            assert chain._is_sound(("n2", len(CONTENT)))
            assert not chain._is_sound(("n2", len(CONTENT) - 1))
        finally:
            await chain.close()

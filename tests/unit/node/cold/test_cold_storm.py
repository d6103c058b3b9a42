"""Manifests come and go in two processes while a third collects and rewrites: nothing that is named goes."""

import hashlib
import os
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from node.cold.collection import DraftsChanged, collect
from node.cold.cutting import ChunkCutter
from node.storage.blobs import BlobStore
from node.storage.segments import BlobMissing, FinishedBlob
from tests.unit.cold_store import read, version
from tests.unit.packed_store import rewrite

SIZE_BYTES = 600_000
WRITES = 25
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]


class Storm:
    """The blobs that must be there, by their names."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.live: dict[str, bytes] = {}
        self.faults: list[BaseException] = []
        self.is_over = threading.Event()

    def guarded(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as fault:  # noqa: BLE001 - raised by the test
                self.faults.append(fault)

        return threading.Thread(target=run)


def write_cold(store: BlobStore, content: bytes, *, dies_at: int = -1) -> str:
    """Make a cold blob as a receiver of chunks does; die after so many steps, as by a kill."""
    name = hashlib.sha256(content).hexdigest()
    writer = store.cold.writer(FinishedBlob(name, len(content)))
    for step, (chunk_id, piece) in enumerate(ChunkCutter().cut(content, is_last=True)):
        if step == dies_at:
            break
        if wanted := writer.add([(chunk_id, len(piece))]):
            assert wanted == {chunk_id}
            writer.put([(chunk_id, piece)])
    if dies_at >= 0:
        os.close(writer._draft._descriptor)  # its lock is free, and its file is there
        return ""
    for _ in writer.prove():
        pass
    assert writer.place() is not None
    writer.close()
    return name


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_named_stays_and_nothing_else(tmp_path: Path, seed: int) -> None:
    storm, names = Storm(), [version(number, of=9, size_bytes=SIZE_BYTES) for number in range(6)]
    with ExitStack() as opened:
        owner, *workers = (opened.enter_context(closing(BlobStore(tmp_path))) for _ in range(3))

        def write(store: BlobStore, dice: random.Random) -> None:
            for _ in range(WRITES):
                content = dice.choice(names)
                name = hashlib.sha256(content).hexdigest()
                if dice.random() < 0.3:
                    with storm.lock:
                        storm.live.pop(name, None)
                        store.cold.remove(name)
                    continue
                if dice.random() < 0.2:
                    write_cold(store, content, dies_at=dice.randrange(3))
                    continue
                with storm.lock:
                    is_new = name not in storm.live
                if is_new:
                    write_cold(store, content)
                    with storm.lock:
                        storm.live[name] = content
                        if not store.cold.has_name(name):
                            del storm.live[name]  # the other one has removed it meanwhile

        def tidy() -> None:
            while not storm.is_over.is_set():
                try:
                    collect(owner.cold.chunks, owner.cold.manifests)
                except DraftsChanged:
                    continue
                packs = owner.cold.chunks.packs
                packs.seal()
                for pack in packs.index.packs():
                    if pack.is_sealed:
                        rewrite(packs, pack)

        def read_some() -> None:
            dice = random.Random(seed)
            while not storm.is_over.is_set():
                with storm.lock:
                    if not storm.live:
                        continue
                    name = dice.choice(sorted(storm.live))
                    assert read(owner, name) == storm.live[name]

        writing = [
            storm.guarded(lambda store=store, at=at: write(store, random.Random(100 * seed + at)))  # type: ignore[misc]
            for at, store in enumerate(workers)
        ]
        beside = [storm.guarded(tidy), storm.guarded(read_some)]
        for thread in (*writing, *beside):
            thread.start()
        for thread in writing:
            thread.join()
        storm.is_over.set()
        for thread in beside:
            thread.join()
        assert not storm.faults, storm.faults
        found = collect(owner.cold.chunks, owner.cold.manifests)
        assert (found.missing, found.damaged) == ([], [])
        needed = set[bytes]()
        for name, content in storm.live.items():
            assert read(owner, name) == content
            with owner.cold.open(name) as blob:
                needed |= set(blob.manifest.ids())
        present = {row.sha256 for row in owner.cold.chunks.rows(bytes(32), b"\xff" * 33)}
        assert sorted(storm.live) == list(owner.iterate())
        assert present == needed
        assert sorted(storm.live) == list(owner.iterate())
        assert os.listdir(owner.cold.manifests.drafts) == []
        for name in storm.live:
            assert owner.delete(name)
        with pytest.raises(BlobMissing):
            owner.open(next(iter(storm.live), "0" * 64))

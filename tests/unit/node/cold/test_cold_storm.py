"""Manifests come and go in two processes while a third collects and rewrites: nothing that is named goes."""

import hashlib
import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from node.cold.collection import DraftsChanged, collect
from node.cold.cutting import ChunkCutter
from node.storage.blobs import BlobStore
from node.storage.segments import BlobMissing, FinishedBlob
from tests.unit.cold_store import read, version
from tests.unit.packed_store import rewrite
from tests.unit.seeds import seeds

SIZE_BYTES = 600_000
WRITES = 25
SEEDS = seeds(range(1, 2), range(2, 20))


class Storm:
    """The blobs that must be there, by their names, and what goes on with them."""

    def __init__(self, owner: BlobStore, seed: int) -> None:
        self._owner, self._seed = owner, seed
        self._contents = [version(number, of=9, size_bytes=SIZE_BYTES) for number in range(6)]
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self.live: dict[str, bytes] = {}
        self.faults: list[BaseException] = []

    def run(self, workers: Sequence[BlobStore]) -> None:
        """Let these write, while the owner collects and reads."""
        writing = [self._thread(partial(self._write, each, at)) for at, each in enumerate(workers)]
        beside = [self._thread(self._tidy), self._thread(self._read)]
        for thread in (*writing, *beside):
            thread.start()
        for thread in writing:
            thread.join()
        self._is_over.set()
        for thread in beside:
            thread.join()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as fault:  # noqa: BLE001 - raised by the test
                self.faults.append(fault)

        return threading.Thread(target=run)

    def _write(self, store: BlobStore, number: int) -> None:
        dice = random.Random(100 * self._seed + number)
        for _ in range(WRITES):
            content = dice.choice(self._contents)
            name, act = hashlib.sha256(content).hexdigest(), dice.random()
            if act < 0.3:
                with self._lock:
                    self.live.pop(name, None)
                    store.cold.remove(name)
            elif act < 0.5:
                write_cold(store, content, dies_at=dice.randrange(3))
            elif name not in self.live:
                write_cold(store, content)
                with self._lock:
                    self.live[name] = content
                    if not store.cold.has_name(name):
                        del self.live[name]  # the other one has removed it meanwhile

    def _tidy(self) -> None:
        while not self._is_over.is_set():
            try:
                collect(self._owner.cold.chunks, self._owner.cold.manifests)
            except DraftsChanged:
                continue
            packs = self._owner.cold.chunks.packs
            packs.seal()
            for pack in packs.index.packs():
                if pack.is_sealed:
                    rewrite(packs, pack)

    def _read(self) -> None:
        dice = random.Random(self._seed)
        while not self._is_over.is_set():
            with self._lock:
                if self.live:
                    name = dice.choice(sorted(self.live))
                    assert read(self._owner, name) == self.live[name]


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
    with ExitStack() as opened:
        owner, *workers = (opened.enter_context(closing(BlobStore(tmp_path))) for _ in range(3))
        storm = Storm(owner, seed)
        storm.run(workers)
        assert not storm.faults, storm.faults
        found = collect(owner.cold.chunks, owner.cold.manifests)
        assert (found.missing, found.damaged) == ([], [])
        needed = set[bytes]()
        for name, content in storm.live.items():
            assert read(owner, name) == content
            with owner.cold.open(name) as blob:
                needed |= set(blob.manifest.ids())
        assert {row.sha256 for row in owner.cold.chunks.rows(bytes(32), b"\xff" * 33)} == needed
        assert sorted(storm.live) == list(owner.iterate())
        assert os.listdir(owner.cold.manifests.drafts) == []
        for name in storm.live:
            assert owner.delete(name)
            with pytest.raises(BlobMissing):
                owner.open(name)

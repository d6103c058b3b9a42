"""Threads of two processes that use the same packs at once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from node.packs.pack_file import PackReader
from node.packs.store import PackStore
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.node.packs.test_pack_store import MANY, present, put, rewrite_all
from tests.unit.packed_store import compare


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_store_remove_and_rewrite_agree_with_what_they_did(path: Path, seed: int) -> None:
    stop = threading.Event()
    with (
        closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store,
        closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as other,
    ):

        def use(worker: int) -> set[int]:
            """Blobs of this worker's own that are there at the end; every look on the way is checked."""
            rand, mine = random.Random(f"{seed} {worker}"), set[int]()
            used = store if worker % 2 else other
            for _ in range(120):
                number = rand.randrange(MANY // 4) * 4 + worker
                if number in mine and rand.random() < 0.5:
                    assert used.remove(blob(number)[0])
                    mine.discard(number)
                else:
                    put(used, number)
                    mine.add(number)
                for each in range(worker, MANY, 4):
                    assert (used.find(blob(each)[0]) is not None) == (each in mine)
                if mine:
                    looked = rand.choice(sorted(mine))
                    assert used.read(blob(looked)[0]) == blob(looked)[1]
            return mine

        def rewrite() -> None:
            while not stop.is_set():
                rewrite_all(store)

        def look() -> None:
            while not stop.is_set():
                compare(other)  # nothing of all this is taken for damage

        with ThreadPoolExecutor(6) as pool:
            beside = [pool.submit(rewrite), pool.submit(look)]
            try:
                left = set[int]().union(*pool.map(use, range(4)))
            finally:
                stop.set()
            for each in beside:
                each.result()
        assert present(store) == present(other) == left
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path)) as again:
        assert present(again) >= left


def test_pack_that_another_thread_has_rewritten_stays_open_while_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor was closed, and could have been that of another file, between two steps of a read."""
    give = PackStore.reader

    def give_and_forget(store: PackStore, number: int) -> PackReader:
        reader = give(store, number)
        store._forget_reader(number)
        return reader

    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
        put(store, 1)
        found = store.find(blob(1)[0])
        assert found is not None
        monkeypatch.setattr(PackStore, "reader", give_and_forget)
        store.drop_pages(found)
        assert store.read(blob(1)[0]) == blob(1)[1]

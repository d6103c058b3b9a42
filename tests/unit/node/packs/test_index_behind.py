"""An index that is behind its packs, as a kill leaves it: the next who opens them catches up."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from node.packs import index
from node.packs.store import INDEX, PackStore
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.node.packs.test_pack_store import present, put
from tests.unit.packed_store import compare


def left(path: Path, target: Path, names: str) -> None:
    """What lies there now, while the packs are open: what a kill would leave."""
    target.mkdir(exist_ok=True)
    for file in path.glob(names):
        shutil.copy2(file, target)


@pytest.mark.parametrize("known", [0, 1, 3])
def test_what_was_stored_and_removed_behind_the_index_is_known_after_a_kill(
    store: PackStore, path: Path, tmp_path: Path, known: int
) -> None:
    found = tmp_path / "found"
    put(store, *range(known))
    left(path, found, "index.sqlite*")
    put(store, 10)
    put(store, 11, 12)
    store.remove(blob(11)[0])
    left(path, found, "*.pack")
    with closing(PackStore(found, pack_bytes_max=PACK_BYTES)) as again:
        assert present(again) == {*range(known), 10, 12}


def test_record_that_the_index_did_not_take_is_no_damage_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was told of it: the records behind it must not say that the index knows it."""
    monkeypatch.setattr(index, "BUSY_S", 0.05)
    with closing(PackStore(path)) as store:
        put(store, 1)
        with closing(sqlite3.connect(path / INDEX, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(OSError, match="locked"):
                put(store, 2)
        put(store, 3)
        compare(store)
        assert present(store) == {1, 3}

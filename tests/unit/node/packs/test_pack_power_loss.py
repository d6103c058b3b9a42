"""The power fails at any moment of a pack's life: what was stored is there after it, byte for byte."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.packs.store import PackStore
from tests.unit.disk_record import Record, Recorder
from tests.unit.disk_replay import Cut, cuts
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.packed_store import rewrite

SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Record:
    recorder = Recorder(tmp_path_factory.mktemp("recorder"))
    return recorder.record("use_packs", tmp_path_factory.mktemp("used"))


def numbers(cut: Cut, what: str) -> set[int]:
    notes = [note.split() for note in cut.notes]
    return {int(number) for kind, *told in notes if kind == what for number in told}


def lives(record: Record, path: Path, seed: int, count: int) -> Iterator[tuple[Cut, Path]]:
    for number, cut in enumerate(cuts(record, seed, count)):
        directory = cut.put(path / f"cut-{number}")
        yield cut, directory / "packs"
        shutil.rmtree(directory)


def check(store: PackStore, stored: set[int], removed: set[int], cut: Cut) -> None:
    for number in stored:
        sha256, content = blob(number)
        assert store.read(sha256) == content, (number, cut)
    for number in removed:
        assert store.read(blob(number)[0]) is None, (number, cut)
    for sha256, _ in store.after(b"", 10_000):  # what nobody was told of may be there, and is sound then
        assert store.read(sha256) is not None, cut


@pytest.mark.parametrize("has_index", [True, False], ids=["index left", "index lost"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_stored_is_there_and_what_was_removed_is_not(
    used: Record, tmp_path: Path, seed: int, has_index: bool
) -> None:
    for cut, path in lives(used, tmp_path, seed, 40):
        if not has_index:
            for file in path.glob("index.sqlite*"):
                file.unlink()
        stored, removed = numbers(cut, "stored") - numbers(cut, "removing"), numbers(cut, "removed")
        with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
            check(store, stored, removed, cut)
            for pack in store.index.packs():
                rewrite(store, pack)
            check(store, stored, removed, cut)
        with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
            check(store, stored, removed, cut)
            present = {sha256 for sha256, _ in store.after(b"", 10_000)}
            assert present <= {blob(number)[0] for number in range(300)}

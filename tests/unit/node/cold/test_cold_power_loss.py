"""The power fails at any moment of a cold replica's life: whole file or sound cold form, byte for byte."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.storage.blobs import BlobStore
from tests.unit.cold_store import is_cold, read, thaw
from tests.unit.disk_record import Record, Recorder
from tests.unit.disk_replay import Cut, cuts
from tests.unit.node.cold.cold_acts import CONTENTS, content, freeze_what_is_here, name, tidy
from tests.unit.seeds import seeds

SEEDS = seeds(range(1, 2), range(2, 30))
CUTS = 16


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def used(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return recorder.record("use_cold", tmp_path_factory.mktemp("used"))


def lives(record: Record, path: Path, seed: int, count: int) -> Iterator[tuple[Cut, Path]]:
    for number, cut in enumerate(cuts(record, seed, count)):
        directory = cut.put(path / f"cut-{number}")
        yield cut, directory
        shutil.rmtree(directory)


def promised(cut: Cut) -> set[int]:
    """The blobs that the process had said to be there, and had not begun to delete."""
    here = set[int]()
    for what, number in (note.split() for note in cut.notes if " " in note):
        if what == "put":
            here.add(int(number))
        elif what == "removing":
            here.discard(int(number))
    return here


def check(store: BlobStore, cut: Cut, *, here: set[int]) -> None:
    for number in here:
        assert read(store, name(number)) == content(number), (number, cut.luck, cut.at)
    for sha256 in store.iterate():  # what was deleted, or never promised, may be there, and is whole
        assert read(store, sha256)


@pytest.mark.parametrize("has_index", [True, False], ids=["index left", "index lost"])
@pytest.mark.parametrize("seed", SEEDS)
def test_replica_is_there_hot_or_cold(used: Record, tmp_path: Path, seed: int, has_index: bool) -> None:
    for cut, path in lives(used, tmp_path, seed, CUTS):
        if not has_index:
            for file in path.glob("chunks/index.sqlite*"):
                file.unlink()
        here = promised(cut)
        with closing(BlobStore(path)) as store:
            check(store, cut, here=here)
            if store.cold.chunks.exists():
                tidy(store)
                check(store, cut, here=here)
            freeze_what_is_here(store)
            check(store, cut, here=here)
            tidy(store)
            assert not any(store.has_file(name(number)) for number in range(CONTENTS))
        with closing(BlobStore(path)) as store:
            check(store, cut, here=here)
            for number in range(CONTENTS):
                if is_cold(store, name(number)):
                    thaw(store, name(number))
            tidy(store)
            check(store, cut, here=here)
            assert store.cold.chunks.totals() == (0, 0)

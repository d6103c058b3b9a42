"""The power fails at any moment of a pack's life: what was stored is there after it, byte for byte."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.packs.pack_file import pack_name
from node.packs.store import PackStore
from tests.unit.disk_record import Record, Recorder
from tests.unit.disk_replay import Cut, Luck, cuts, cuts_at
from tests.unit.node.packs.pack_acts import BLOBS_MAX, PACK_BYTES, blob
from tests.unit.packed_store import compare, rewrite
from tests.unit.seeds import seeds

SEEDS = seeds(range(1, 2), range(2, 40))

CUTS_EACH = 8  # at one place, with the contents of the index as they may be

SEEDS_OF_KILLS = seeds(range(4, 5), range(5, 40))


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def used(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return recorder.record("use_packs", tmp_path_factory.mktemp("used"))


def numbers(cut: Cut, what: str) -> set[int]:
    notes = [note.split() for note in cut.notes]
    return {int(number) for kind, *told in notes if kind == what for number in told}


def lives(record: Record, path: Path, seed: int, count: int) -> Iterator[tuple[Cut, Path]]:
    for number, cut in enumerate(cuts(record, seed, count)):
        directory = cut.put(path / f"cut-{number}")
        yield cut, directory / "packs"
        shutil.rmtree(directory)


def before_syncs(record: Record) -> list[int]:
    """After how many calls, notes not counted, a sync of a pack comes next."""
    calls = [call for call in record.calls if call.kind != "N"]
    return [at for at, call in enumerate(calls) if call.kind == "D" and call.paths[0].endswith(".pack")]


def after_rewriting(record: Record) -> list[int]:
    """After how many calls a pack was removed, and the index said so."""
    said = ("N", b"rewritten")
    return [at for at, call in enumerate(record.calls, 1) if (call.kind, call.data[:9]) == said]


def after_forgetting_the_wal(record: Record) -> list[int]:
    """After how many calls the index has no WAL any more; notes are not counted."""
    calls = [call for call in record.calls if call.kind != "N"]
    return [at for at, call in enumerate(calls, 1) if call.kind == "U" and call.paths[0].endswith("-wal")]


def check(store: PackStore, stored: set[int], cut: Cut) -> None:
    for number in stored:
        sha256, content = blob(number)
        assert store.read(sha256) == content, (number, cut)
    for sha256, _ in store.after(b"", 10_000):  # what was removed, or nobody was told of, may be there
        assert store.read(sha256) is not None, cut


@pytest.mark.parametrize("has_index", [True, False], ids=["index left", "index lost"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_stored_is_there(used: Record, tmp_path: Path, seed: int, has_index: bool) -> None:
    for cut, path in lives(used, tmp_path, seed, 40):
        if not has_index:
            for file in path.glob("index.sqlite*"):
                file.unlink()
        stored = numbers(cut, "stored") - numbers(cut, "removing")
        with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
            check(store, stored, cut)
            compare(store)  # what a power cut has taken is not taken for damage
            for pack in store.index.packs():
                rewrite(store, pack)
            check(store, stored, cut)
            compare(store)
        with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
            check(store, stored, cut)
            present = {sha256 for sha256, _ in store.after(b"", 10_000)}
            assert present <= {blob(number)[0] for number in range(BLOBS_MAX)}


def test_pack_that_was_rewritten_does_not_come_back(used: Record, tmp_path: Path) -> None:
    """It would bring back what was removed of it, and take its room again."""
    for number, cut in enumerate(cuts_at(used, 1, after_rewriting(used), Luck.MADE, count=CUTS_EACH)):
        directory = cut.put(tmp_path / f"cut-{number}")
        rewritten = {pack_name(each) for each in numbers(cut, "rewritten")}
        assert rewritten
        assert not rewritten & {file.name for file in (directory / "packs").iterdir()}, cut
        shutil.rmtree(directory)


def test_index_is_durable_before_its_wal_is_gone(used: Record, tmp_path: Path) -> None:
    places = after_forgetting_the_wal(used)
    assert places
    for number, cut in enumerate(cuts_at(used, 1, places, Luck.GONE, count=CUTS_EACH)):
        directory = cut.put(tmp_path / f"cut-{number}")
        with closing(sqlite3.connect(directory / "packs" / "index.sqlite")) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], cut
        with closing(PackStore(directory / "packs", pack_bytes_max=PACK_BYTES)) as store:
            check(store, numbers(cut, "stored") - numbers(cut, "removing"), cut)
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", SEEDS_OF_KILLS)
def test_what_a_process_finds_that_another_has_left_is_durable(
    recorder: Recorder, used: Record, tmp_path: Path, seed: int
) -> None:
    """Its node tells others that it has these; the one before was killed just before their sync."""
    at = random.Random(seed).choice(before_syncs(used))
    (tmp_path / "root").mkdir()
    record = recorder.record("find_packs", tmp_path / "root", str(at))
    for cut, path in lives(record, tmp_path, seed, 20):
        stored = numbers(cut, "stored") - numbers(cut, "removing")
        with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
            check(store, stored | numbers(cut, "found"), cut)

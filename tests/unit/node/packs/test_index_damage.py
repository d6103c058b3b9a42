"""An index that is damaged without a word: no wrong byte leaves, each loop ends, and it heals by itself."""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from metadata.rpc.findings import Findings
from node.pack_doctor import check_packs
from node.packs.index import IndexDamaged
from node.packs.pack_file import pack_name
from node.packs.store import PackStore, RecordDamaged
from tests.unit.node.packs.index_damage import DAMAGES, SMALL_PACK_BYTES, History, make_history
from tests.unit.node.packs.pack_acts import blob
from tests.unit.packed_store import compare, rewrite

HEALINGS_MAX = 3
ACTS = 40
NUMBERS = 1000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return make_history(tmp_path_factory.mktemp("history"))


def declared() -> suppress:
    """What a question about packs may raise, and nothing else."""
    return suppress(IndexDamaged, RecordDamaged)


class Model:
    """What has to be there; what was removed may be back with an older index, or without one."""

    def __init__(self, history: History) -> None:
        self.present = set(history.present)

    def read(self, store: PackStore, number: int) -> bool:
        """Whether a blob is there; its bytes are right then."""
        sha256, content = blob(number)
        found = store.read(sha256)
        assert found in (None, content)
        return found is not None

    def act(self, store: PackStore, rand: random.Random) -> None:
        """One of what a process does with packs."""
        number = rand.randrange(NUMBERS)
        act = rand.choice(("put", "remove", "list", "rewrite", "affirm", *["read"] * 8))
        if act == "put":
            store.put([blob(number)])
            self.present.add(number)
        elif act == "remove":
            self.present.discard(number)
            store.remove(blob(number)[0])
        elif act == "list":
            after, steps = b"", 0
            while page := store.after(after, 50):
                after, steps = page[-1][0], steps + 1
                assert steps < NUMBERS
        elif act == "rewrite":
            packs = store.index.packs()
            rewrite(store, rand.choice(packs))
        elif act == "affirm":
            store.index.affirm(blob(number)[0], number)
        else:
            self.read(store, number)

    def check(self, store: PackStore) -> None:
        """All that was stored is there."""
        there = {number for number in range(NUMBERS) if self.read(store, number)}
        assert self.present - there == set()


def run_trial(history: History, directory: Path, seed: int) -> str:
    """Damage a copy, use it, and let it heal. Returns what it was."""
    rand, model, packs = random.Random(seed), Model(history), directory / "packs"
    damage = DAMAGES[seed % len(DAMAGES)]
    shutil.copytree(history.now, packs)
    damage(history, packs, rand)
    with closing(PackStore(packs, pack_bytes_max=SMALL_PACK_BYTES)) as store:
        for _ in range(ACTS):
            with declared():
                model.act(store, rand)
        for healing in range(HEALINGS_MAX + 1):
            assert healing < HEALINGS_MAX, "it does not heal"
            store.heal()
            with declared():
                compare(store)
                break
        model.check(store)
    shutil.rmtree(directory)
    return damage.__name__


@pytest.mark.parametrize("seed", range(len(DAMAGES)))
def test_no_wrong_byte_leaves_and_the_index_heals(history: History, tmp_path: Path, seed: int) -> None:
    run_trial(history, tmp_path / "trial", seed)


def spoil_schema(index: Path) -> None:
    """SQLite's message then names a table whose name is no text."""
    sound = index.read_bytes()
    spoilt = sound.replace(b"blobs", b"bl\xa0bs").replace(b"CREATE TABLE bl", b"CREATE TABLX bl")
    assert spoilt != sound
    index.write_bytes(spoilt)


def test_index_whose_schema_is_no_text_heals(history: History, tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    shutil.copytree(history.now, packs)
    spoil_schema(packs / "index.sqlite")
    with closing(PackStore(packs, pack_bytes_max=SMALL_PACK_BYTES)) as store:
        store.heal()
        compare(store)
        Model(history).check(store)


def test_doctor_reports_an_index_whose_schema_is_no_text(history: History, tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    shutil.copytree(history.now, packs)
    spoil_schema(packs / "index.sqlite")
    findings = Findings()
    check_packs(findings, packs, deep=True)
    (problem,) = [each for each in findings.problems if each.where.name == "index.sqlite"]
    assert "cannot be read" in problem.what


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 600, 100))
def test_no_wrong_byte_leaves_whatever_page_is_damaged(history: History, tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 100):
        try:
            run_trial(history, tmp_path / "trial", seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def exchange(one: Path, two: Path) -> None:
    """Two packs have each other's names."""
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def cut_off(one: Path, two: Path) -> None:
    """Two packs are what they were when they were shorter."""
    for pack, share in ((one, 3), (two, 2)):
        os.truncate(pack, pack.stat().st_size // share)


def overwrite(one: Path, two: Path) -> None:
    """Two packs have the same name and content, as after a restore that went astray."""
    shutil.copyfile(one, two)


@pytest.mark.parametrize("harm", [exchange, cut_off, overwrite])
@pytest.mark.parametrize("index", ["sound", "old", "lost"])
def test_harm_to_packs_costs_what_is_in_them_and_sends_no_wrong_byte(
    history: History, tmp_path: Path, harm: Callable[[Path, Path], None], index: str
) -> None:
    packs = tmp_path / "packs"
    shutil.copytree(history.now, packs)
    with closing(PackStore(packs, pack_bytes_max=SMALL_PACK_BYTES)) as store:
        places = {number: store.find(blob(number)[0]) for number in history.present}
    numbers = {number: found.place.pack for number, found in places.items() if found is not None}
    harmed = random.Random(index).sample(sorted(set(numbers.values())), 2)
    harm(*(packs / pack_name(number) for number in harmed))
    if index == "old":
        shutil.copyfile(history.before[0] / "index.sqlite", packs / "index.sqlite")
    elif index == "lost":
        (packs / "index.sqlite").unlink()
    with closing(PackStore(packs, pack_bytes_max=SMALL_PACK_BYTES)) as store:
        for number in range(NUMBERS):
            with declared():
                assert store.read(blob(number)[0]) in (None, blob(number)[1])
        store.heal()
        compare(store)
        for number, pack in numbers.items():
            if pack not in harmed:
                assert store.read(blob(number)[0]) == blob(number)[1]

"""Damage to the files beside packs that no disk tells of, and packs with a history to damage.

Each page may be sound and of another time, or of another place: a write that was lost, or went astray.
"""

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.packs.store import PackStore
from tests.unit.node.packs.pack_acts import blob
from tests.unit.packed_store import rewrite

PAGE_BYTES: Final = 4096
SMALL_PACK_BYTES: Final = 60_000
LIVES: Final = 3
PUT_EACH: Final = 240  # in each life: the tables have some dozens of pages in the end


@dataclass(frozen=True, slots=True)
class History:
    """Packs as they are now, and their index as each life before has left it."""

    now: Path
    before: Sequence[Path]
    present: frozenset[int]


def make_history(directory: Path) -> History:
    """Blobs that came, came again, went, and were rewritten, in several lives of a process."""
    rand, packs, present = random.Random(60), directory / "packs", set[int]()
    before = list[Path]()
    for life in range(LIVES):
        with closing(PackStore(packs, pack_bytes_max=SMALL_PACK_BYTES)) as store:
            came = range(life * PUT_EACH, (life + 1) * PUT_EACH)
            for first in range(came.start, came.stop, 20):
                store.put([blob(number) for number in range(first, first + 20)])
            again = rand.sample(sorted({*present, *came}), 20)
            store.put([blob(number) for number in again])
            gone = rand.sample(sorted({*present, *came}), 50)
            for number in gone:
                assert store.remove(blob(number)[0])
            present = (present | set(came)) - set(gone)
            store.seal()
            for pack in store.index.packs()[:2]:
                rewrite(store, pack)
        if life < LIVES - 1:
            before.append(directory / f"before-{life}")
            before[-1].mkdir()
            for file in packs.glob("index.sqlite*"):
                shutil.copyfile(file, before[-1] / file.name)
    return History(packs, before, frozenset(present))


Damage = Callable[[History, Path, random.Random], None]


def flip(_history: History, packs: Path, rand: random.Random) -> None:
    """A few bits of the index are others."""
    raw = bytearray((packs / "index.sqlite").read_bytes())
    for _ in range(rand.choice((1, 1, 3))):
        raw[rand.randrange(len(raw))] ^= 1 << rand.randrange(8)
    (packs / "index.sqlite").write_bytes(raw)


def put_back_pages(history: History, packs: Path, rand: random.Random) -> None:
    """Some pages of the index are what they were."""
    raw, old = _index(packs), _index(rand.choice(history.before))
    for _ in range(rand.choice((1, 1, 4))):
        at = rand.randrange(min(len(raw), len(old)) // PAGE_BYTES) * PAGE_BYTES
        raw[at : at + PAGE_BYTES] = old[at : at + PAGE_BYTES]
    (packs / "index.sqlite").write_bytes(raw)


def exchange_pages(_history: History, packs: Path, rand: random.Random) -> None:
    """Two pages of the index lie in each other's place."""
    raw = _index(packs)
    one, two = (at * PAGE_BYTES for at in rand.sample(range(len(raw) // PAGE_BYTES), 2))
    raw[one : one + PAGE_BYTES], raw[two : two + PAGE_BYTES] = (
        raw[two : two + PAGE_BYTES],
        raw[one : one + PAGE_BYTES],
    )
    (packs / "index.sqlite").write_bytes(raw)


def put_back_file(history: History, packs: Path, rand: random.Random) -> None:
    """The whole index is what it was."""
    shutil.copyfile(rand.choice(history.before) / "index.sqlite", packs / "index.sqlite")


def leave_log(history: History, packs: Path, rand: random.Random) -> None:
    """A WAL lies beside the index that is of an earlier time, and shared memory that is of none."""
    scratch = packs.parent / "scratch"
    shutil.copytree(history.now, scratch)
    shutil.copyfile(rand.choice(history.before) / "index.sqlite", scratch / "index.sqlite")
    with closing(PackStore(scratch)) as store:
        store.index.affirm(blob(min(history.present))[0], 1)
        shutil.copyfile(scratch / "index.sqlite-wal", packs / "index.sqlite-wal")
    (packs / "index.sqlite-shm").write_bytes(rand.randbytes(32_768))
    shutil.rmtree(scratch)


DAMAGES: Final[Sequence[Damage]] = (
    flip,
    put_back_pages,
    exchange_pages,
    put_back_pages,
    exchange_pages,
    put_back_file,
    leave_log,
)


def _index(directory: Path) -> bytearray:
    return bytearray((directory / "index.sqlite").read_bytes())

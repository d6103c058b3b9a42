"""Blobs that can be told from their number, and what a process does with packs while the disk is recorded."""

import hashlib
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from node.packs.store import PackStore
from tests.unit.packed_store import rewrite

PACK_BYTES: Final = 24_000
REMOVED_EVERY: Final = 3
PUTS: Final = 24
BLOBS_MAX: Final = 300  # more than there are


def blob(number: int) -> tuple[bytes, bytes]:
    """A blob with its SHA-256; some are empty, none has more than 3,000 bytes."""
    rand = random.Random(number)
    content = rand.randbytes(rand.choice((0, 1, 500, 3000)))
    named = content + number.to_bytes(4, "little") if content else b"" + number.to_bytes(4, "little")
    return hashlib.sha256(named).digest(), named


def use_packs(root: Path, note: Callable[[str], None]) -> None:
    """Put blobs, several at once, remove some, rewrite packs, and open them anew."""
    rand, number, removed = random.Random(7), 0, set[int]()
    for _ in range(3):
        with closing(PackStore(root / "packs", pack_bytes_max=PACK_BYTES)) as store:
            for _ in range(PUTS):
                numbers = range(number, number + rand.randint(1, 4))
                store.put([blob(each) for each in numbers])
                note(f"stored {' '.join(map(str, numbers))}")
                number = numbers.stop
                victim = rand.randrange(number)
                if victim % REMOVED_EVERY == 0 and victim not in removed:
                    removed.add(victim)
                    note(f"removing {victim}")
                    store.remove(blob(victim)[0])
                    note(f"removed {victim}")
            store.seal()
            for pack in store.index.packs():
                if pack.is_sealed and rand.random() < 0.7:
                    rewrite(store, pack)
                    note(f"rewritten {pack.number}")


def find_packs(root: Path, note: Callable[[str], None]) -> None:
    """Open what another process has left, tell what is found there, and rewrite it."""
    with closing(PackStore(root / "packs", pack_bytes_max=PACK_BYTES)) as store:
        found = [number for number in range(BLOBS_MAX) if store.read(blob(number)[0]) is not None]
        note(f"found {' '.join(map(str, found))}")
        for pack in store.index.packs():
            rewrite(store, pack)
    note("rewritten")

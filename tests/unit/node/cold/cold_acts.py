"""What a process does with cold replicas while the disk is recorded."""

import hashlib
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from node.custody.freezing import NotFrozen
from node.storage.blobs import BlobStore
from tests.unit.cold_store import collect_all, freeze, is_cold, put_file, thaw, version
from tests.unit.packed_store import rewrite

CONTENTS: Final = 8
SIZE_BYTES: Final = 400_000
STEPS: Final = 40
LIVES: Final = 2


def content(number: int) -> bytes:
    """Versions of two disks."""
    return version(number // 2, of=number % 2, size_bytes=SIZE_BYTES)


def name(number: int) -> str:
    return hashlib.sha256(content(number)).hexdigest()


def use_cold(root: Path, note: Callable[[str], None]) -> None:
    """Store, freeze, thaw and delete blobs, collect, and rewrite packs; open the store anew."""
    rand, here = random.Random(5), set[int]()
    for _ in range(LIVES):
        with closing(BlobStore(root)) as store:
            for _ in range(STEPS):
                step(store, rand, here, note)


def step(store: BlobStore, rand: random.Random, here: set[int], note: Callable[[str], None]) -> None:
    """Do one thing, as the dice say."""
    number = rand.randrange(CONTENTS)
    match rand.choice(("put", "put", "freeze", "freeze", "freeze", "thaw", "delete", "collect")):
        case "put":
            put_file(store, content(number))
            here.add(number)
            note(f"put {number}")
        case "freeze" if number in here and store.has_file(name(number)):
            freeze(store, name(number))
            note(f"frozen {number}")
        case "thaw" if number in here and is_cold(store, name(number)):
            thaw(store, name(number))
            note(f"thawed {number}")
        case "delete" if number in here:
            note(f"removing {number}")
            here.discard(number)
            store.delete(name(number))
            note(f"removed {number}")
        case "collect" if store.cold.chunks.exists():
            tidy(store)
            note("collected")
        case _:
            pass


def tidy(store: BlobStore) -> None:
    """Collect, and rewrite every pack that is sealed."""
    collect_all(store)
    store.cold.chunks.packs.seal()
    for pack in store.cold.chunks.packs.index.packs():
        rewrite(store.cold.chunks.packs, pack)


def freeze_what_is_here(store: BlobStore) -> None:
    """Freeze all that are files."""
    for number in range(CONTENTS):
        if store.has_file(name(number)):
            try:
                freeze(store, name(number))
            except NotFrozen:
                continue

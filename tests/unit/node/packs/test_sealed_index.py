"""The index at the end of a pack that takes no more: who makes the index of all packs anew goes by it."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from node.packs.record import HEADER_BYTES, PackRecord, decode_header, scan
from node.packs.store import PackStore
from tests.unit.node.packs.pack_acts import PACK_BYTES
from tests.unit.node.packs.test_pack_store import change, pack_of, present, put


def scanned(pack: Path) -> list[PackRecord]:
    """What is found in a pack without the index at its end."""
    descriptor = os.open(pack, os.O_RDONLY)
    try:
        header = decode_header(os.pread(descriptor, HEADER_BYTES, 0))
        return list(scan(descriptor, header, HEADER_BYTES))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("at", [0, 20], ids=["marker", "name"])
def test_record_whose_head_is_damaged_counts_when_the_index_is_made_anew(
    store: PackStore, path: Path, at: int
) -> None:
    """Else a blob whose own bytes are sound would be lost."""
    put(store, *range(10))
    pack, _ = pack_of(store, path, 4)
    store.close()
    whole = scanned(pack)
    victim = whole[4]
    change(pack, victim.offset + at)
    assert scanned(pack) == [record for record in whole if record != victim]
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as again:
        assert present(again) == set(range(10))


def test_index_that_is_damaged_itself_is_passed_over(store: PackStore, path: Path) -> None:
    put(store, *range(10))
    pack, _ = pack_of(store, path, 4)
    store.close()
    change(pack, scanned(pack)[-1].stop + 20)  # a byte of its first entry
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as again:
        assert present(again) == set(range(10))

"""A sector that the medium does not give, anywhere in a pack, while its index is lost."""

import errno
import hashlib
import os
import random
from contextlib import closing
from pathlib import Path

import pytest

from node.packs.pack_file import pack_name
from node.packs.record import HEAD_BYTES, PAGE_BYTES
from node.packs.store import PackStore, RecordDamaged
from tests.unit.node.packs.pack_acts import PACK_BYTES
from tests.unit.packed_store import compare

SIZE_BYTES = 9000  # three pages, or four


@pytest.mark.parametrize("what", ["header", "head", "payload", "end"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_bad_sector_costs_what_lies_in_it_and_no_start(
    store: PackStore, path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_sealed: bool
) -> None:
    contents = {
        number: (hashlib.sha256(body := bytes([number]) * 9000).digest(), body) for number in range(9)
    }
    store.put(list(contents.values()))
    found = store.find(contents[4][0])
    assert found is not None
    pack = path / pack_name(found.place.pack)
    size_bytes = pack.stat().st_size
    store.close()
    if not is_sealed:
        os.truncate(pack, size_bytes)  # as of a process that was killed
    for file in path.glob("index.sqlite*"):
        file.unlink()
    at = {
        "header": 0,
        "head": found.place.offset,
        "payload": found.place.offset + HEAD_BYTES + PAGE_BYTES,
        "end": size_bytes,
    }[what]
    bad, pread, inode = range(at // PAGE_BYTES, at // PAGE_BYTES + 1), os.pread, pack.stat().st_ino

    def failing(descriptor: int, count: int, offset: int) -> bytes:
        pages = range(offset // PAGE_BYTES, (offset + count - 1) // PAGE_BYTES + 1)
        if set(pages) & set(bad) and os.fstat(descriptor).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, count, offset)

    with monkeypatch.context() as sector:
        sector.setattr(os, "pread", failing)
        with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as again:
            read = {number for number, (sha256, _) in contents.items() if reads(again, sha256)}
    assert len(read) == {"header": 8, "head": 7, "payload": 8, "end": 8}[what]
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as again:
        for number in read:
            assert again.read(contents[number][0]) == contents[number][1]


@pytest.mark.parametrize("has_index", [True, False])
def test_pages_in_each_others_place_cost_the_records_in_them_alone(
    store: PackStore, path: Path, has_index: bool
) -> None:
    """A record that lies whole in such a page is none at its new place."""
    dice = random.Random(7)
    contents = [dice.randbytes(dice.randrange(300, 1800)) for _ in range(40)]
    names = [hashlib.sha256(each).digest() for each in contents]
    store.put(list(zip(names, contents, strict=True)))
    places = {name: store.find(name) for name in names}
    (pack,) = path.glob("*.pack")
    size_bytes = pack.stat().st_size
    store.close()
    os.truncate(pack, size_bytes)  # as of a process that was killed
    lying, (first, second) = bytearray(pack.read_bytes()), (slice(8192, 12288), slice(20480, 24576))
    lying[first], lying[second] = lying[second], lying[first]
    pack.write_bytes(lying)
    if not has_index:
        for file in path.glob("index.sqlite*"):
            file.unlink()
    untouched = [
        name
        for name, found in places.items()
        if found is not None
        and all(
            found.place.offset + HEAD_BYTES + found.length <= page.start or found.place.offset >= page.stop
            for page in (first, second)
        )
    ]
    assert 20 < len(untouched) < 36
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as again:
        compare(again)  # the pack contradicts no row
        assert [name for name in names if reads(again, name)] == untouched


def reads(store: PackStore, sha256: bytes) -> bool:
    """Whether a blob is read; one that is damaged is not."""
    try:
        return store.read(sha256) is not None
    except RecordDamaged:
        return False

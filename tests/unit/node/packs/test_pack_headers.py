"""Packs whose header is damaged, or that cannot be opened for a while: nothing of them is given up."""

from contextlib import closing
from pathlib import Path

import pytest

from ca.errors import FilestoreError
from node.packs.pack_file import pack_name
from node.packs.record import HEADER_BYTES
from node.packs.store import PackStore
from node.storage.blobs import BlobStore
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.packed_store import CONTENT, NAME, put, read, rewrite

NUMBERS = range(8)


def sealed(path: Path) -> Path:
    """The only pack, of some blobs, of a process that has ended."""
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
        store.put([blob(number) for number in NUMBERS])
        [facts] = store.index.packs()
    return path / pack_name(facts.number)


@pytest.mark.parametrize("offset", range(0, HEADER_BYTES, 5))
def test_pack_with_a_damaged_header_is_read_with_the_index_and_without(path: Path, offset: int) -> None:
    pack = sealed(path)
    content = bytearray(pack.read_bytes())
    content[offset] ^= 1
    pack.write_bytes(content)
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
        assert [store.read(blob(number)[0]) for number in NUMBERS] == [blob(each)[1] for each in NUMBERS]
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
        assert [store.read(blob(number)[0]) for number in NUMBERS] == [blob(each)[1] for each in NUMBERS]
        [facts] = store.index.packs()
        assert rewrite(store, facts) > 0
        assert [store.read(blob(number)[0]) for number in NUMBERS] == [blob(each)[1] for each in NUMBERS]


def test_records_of_a_pack_are_found_without_its_header_and_without_the_index(path: Path) -> None:
    pack = sealed(path)
    pack.write_bytes(bytes(HEADER_BYTES) + pack.read_bytes()[HEADER_BYTES:])
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
        assert [store.read(blob(number)[0]) for number in NUMBERS] == [blob(each)[1] for each in NUMBERS]


def test_file_that_is_no_pack_stays_as_it_is(path: Path) -> None:
    path.mkdir()
    other = path / pack_name(7)
    other.write_bytes(bytes(range(256)) * 100)
    with closing(PackStore(path, pack_bytes_max=PACK_BYTES)) as store:
        assert store.index.packs() == []
    assert other.exists()


def test_blob_of_a_pack_that_cannot_be_opened_is_kept_for_when_it_can(tmp_path: Path) -> None:
    with closing(BlobStore(tmp_path)) as store:
        put(store, CONTENT)
    [pack] = (tmp_path / "packs").glob("*.pack")
    aside = tmp_path / "aside"
    pack.rename(aside)
    pack.symlink_to(aside)  # which is followed by nobody
    with closing(BlobStore(tmp_path)) as store:
        with pytest.raises(BlobDamaged) as caught:
            store.open(NAME)
        with pytest.raises(FilestoreError):
            Quarantine(store).take(NAME, caught.value)
        aside.rename(pack)
        assert read(store, NAME) == CONTENT

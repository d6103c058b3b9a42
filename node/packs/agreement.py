"""Whether the index and a pack agree, by what the pack itself says. All calls block, and raise OSError.

A pack names its records: in the index at its end, else by their heads. Up to `indexed_bytes` each of them has
its row, or is known to count no more; and each row has its record. If one of both is not so, the index is
wrong (IndexDamaged), and is rebuilt from the packs. A record that is torn or rotten says nothing.

Tested by tests/unit/node/packs/test_pack_store.py.
"""

from collections.abc import Callable
from contextlib import suppress

from node.diskio.fs import MEDIUM_ERRORS
from node.packs.index import PackIndex
from node.packs.pack_file import PackReader
from node.packs.record import (
    HEAD_BYTES,
    HEADER_BYTES,
    PackInvalid,
    PackRecord,
    decode_head,
    payload_of,
    read_around,
    read_end,
    scan,
)
from node.packs.rows import PackedBlob, PackFacts, record_of

Opened = Callable[[int], PackReader]  # raises FileNotFoundError, PackInvalid, OSError


def require_place(index: PackIndex, opened: Opened, found: PackedBlob) -> None:
    """Raise IndexDamaged if a blob that cannot be read is not where the index says.

    Else its record is rotten, or lost with a pack that the index knows and that is gone or cut.
    """
    facts = [pack for pack in index.packs() if pack.number == found.place.pack]
    try:
        is_right = bool(facts) and _may_have(opened(found.place.pack), record_of(found), facts[0])
    except (FileNotFoundError, PackInvalid):
        return
    except OSError as error:
        if error.errno in MEDIUM_ERRORS:
            return
        raise
    if not is_right and any(each.place == found.place for each in index.copies(found.sha256)):
        raise index.damage_error(f"{found.sha256.hex()} is not where it says")


def check_pack(index: PackIndex, opened: Opened, pack: PackFacts) -> int:
    """Compare a pack with the index in both directions; return how many bytes of it were read.

    Raises IndexDamaged. A file that cannot be read as a pack is not compared.
    """
    try:
        reader = opened(pack.number)
        reader.header()
    except (PackInvalid, FileNotFoundError):
        return 0
    rows = {each.place.offset: each for each in index.list_pack(pack.number)}
    records, is_whole = _records_of(reader)
    dead, why = index.dead_records(pack.number), ""
    for record in records:
        row = rows.pop(record.offset, None)
        if row is not None:
            why = why or ("" if record_of(row) == record else "a record is another than it says")
        elif record.stop <= pack.indexed_bytes and (record.sha256, record.offset) not in dead:
            why = why or ("it lacks a record" if _is_whole(reader, record) else "")
    if not why and any(is_whole or _is_within(row.place.offset, records) for row in rows.values()):
        why = "it has a record that is not there"
    if why and not reader.is_gone:  # else it was rewritten meanwhile
        raise index.damage_error(why)
    return HEAD_BYTES * len(records)


def may_go(index: PackIndex, opened: Opened, pack: PackFacts) -> bool:
    """Return whether a pack without a row in the index can be removed, as none of its records counts.

    Raises IndexDamaged if it has records that the index knows nothing of. A file that is another pack stays.
    """
    with suppress(FileNotFoundError, PackInvalid):
        if opened(pack.number).is_another():
            return False
    check_pack(index, opened, pack)
    return True


def _may_have(reader: PackReader, wanted: PackRecord, facts: PackFacts) -> bool:
    """Whether a pack says that it has this record, or can say nothing: of its end where it was cut."""
    header = reader.header()
    head = read_around(reader.descriptor, HEAD_BYTES, wanted.offset)
    if (found := decode_head(head, wanted.offset, header.marker)) is not None:
        return found == wanted
    records, is_whole = _records_of(reader)
    if is_whole:
        return wanted in records
    is_behind = facts.indexed_bytes <= reader.size_bytes < wanted.stop
    return not (is_behind or _is_within(wanted.offset, records))


def _records_of(reader: PackReader) -> tuple[list[PackRecord], bool]:
    """The records of a pack, and whether these are all, those that are rotten included."""
    header = reader.header()
    listed = read_end(reader.descriptor, header.marker)
    if listed is not None:
        return listed, True
    return list(scan(reader.descriptor, header, HEADER_BYTES)), False


def _is_within(offset: int, records: list[PackRecord]) -> bool:
    """Return whether a record other than one at `offset` covers it."""
    return any(record.offset < offset < record.stop for record in records)


def _is_whole(reader: PackReader, record: PackRecord) -> bool:
    """Whether the index should know a record."""
    try:
        return payload_of(reader.descriptor, record) is not None
    except OSError as error:
        if error.errno in MEDIUM_ERRORS:
            return False
        raise

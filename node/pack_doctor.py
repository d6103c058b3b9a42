"""An offline check of the packs of a node: headers, records, and the index with the positions of blobs.

It changes nothing: the index is read from a copy, as SQLite writes files next to a database even to read it.

Tested by tests/cluster/test_doctor.py.
"""

import os
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.rpc.findings import OTHERS, Findings, check_private_directory, copied_database, entries_of
from node.diskio.fs import READ_FLAGS
from node.packs.index import DAMAGED, SPARE
from node.packs.pack_file import PackReader, number_of, pack_name
from node.packs.record import (
    HEAD_BYTES,
    HEADER_BYTES,
    PackHeader,
    PackInvalid,
    PackRecord,
    Place,
    decode_head,
    payload_of,
    read_end,
    scan,
)
from node.packs.rows import PackedBlob, RowInvalid, blob_of, facts_of, record_of
from node.packs.store import INDEX, Unpack, named_content
from node.packs.users import OPENING, USERS
from runtime.sqlite import DATABASE_ERRORS
from runtime.wording import counted

_KNOWN: Final = frozenset(
    {INDEX, f"{INDEX}-wal", f"{INDEX}-shm", f"{INDEX}{DAMAGED}", f"{INDEX}{SPARE}", OPENING, USERS}
)
_PACKS: Final = "SELECT number, is_sealed, indexed_bytes, live_bytes, live_blobs FROM packs"
_BLOBS: Final = "SELECT sha256, pack, offset, length, digest, affirmed_at_ns FROM blobs ORDER BY pack, offset"
_LEAVE: Final = (
    "Leave it where it is, start the node and run the jobs compare and scrub. The node takes the "
    "damaged blobs out of service, and other nodes send them again."
)
_GONE: Final = "Is the right disk mounted? If so, start the node. Other nodes then send the blobs."
_NO_HEADER: Final = "Its blobs can be read without it, and nothing is lost. Check the disk."
_ANEW: Final = "Start the node. It creates the index again from the packs."
_STRAY: Final = "This file does not belong to Filestore. Move it out of the data directory."

_Blobs = dict[int, list[PackRecord]]  # by the number of the pack


@dataclass(slots=True)
class _Count:
    """The counts of a check."""

    packs: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    unbegun: int = 0


def check_packs(
    findings: Findings, packs: Path, *, deep: bool, unpack: Unpack = named_content, noun: str = "blob"
) -> None:
    """Check all packs. `deep` reads every record and compares the sha256 of its content."""
    if not packs.is_symlink() and not packs.exists():
        return
    check_private_directory(findings, packs)
    numbers, blobs, count = set[int](), _indexed(findings, packs, deep=deep), _Count()
    for entry in entries_of(findings, packs):
        number = number_of(entry.name)
        if number is not None:
            numbers.add(number)
            try:
                _check_pack(findings, Path(entry.path), number, blobs, count, unpack=unpack if deep else None)
            except OSError as error:
                findings.problem(Path(entry.path), f"cannot be read: {error.strerror}", _LEAVE)
        elif entry.name not in _KNOWN:
            findings.problem(Path(entry.path), "does not belong among the packs", _STRAY)
    for number in sorted((blobs or {}).keys() - numbers):
        lost = counted(len((blobs or {})[number]), noun, f"{noun}s")
        findings.problem(packs / pack_name(number), f"is missing: it contained {lost}", _GONE)
    how = "every byte" if deep else "heads of records; --deep reads every byte"
    where = f"{count.blob_bytes} bytes in {counted(count.packs, 'pack', 'packs')}"
    findings.fact(f"packed {noun}s: {count.blobs}, {where} ({how})")
    if count.unbegun:
        findings.fact(f"{count.unbegun} packs without a header, as crashes leave them: harmless")


def _indexed(findings: Findings, packs: Path, *, deep: bool) -> _Blobs | None:
    """Return the index's entries of each pack; None if it is unusable."""
    path = packs / INDEX
    if not path.exists():
        findings.fact("the packs have no index: the next start creates it")
        return None
    try:
        with copied_database(findings, path) as copy:
            return None if copy is None else _read(copy, deep=deep)
    except (*DATABASE_ERRORS, OSError, RowInvalid) as error:
        findings.problem(path, f"cannot be read: {error}", _ANEW)
        return None


def _read(copy: Path, *, deep: bool) -> _Blobs:
    """Read the index. Raises one of DATABASE_ERRORS, RowInvalid."""
    found: _Blobs = {}
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.text_factory = bytes  # a damaged row may have any
        if deep:
            [(said,)] = db.execute("PRAGMA quick_check(1)").fetchall()
            if said != b"ok":
                raise sqlite3.DatabaseError(said.decode(errors="replace"))
        for pack in map(facts_of, db.execute(_PACKS)):
            if pack.live_blobs:
                found[pack.number] = []
        for row in map(blob_of, db.execute(_BLOBS)):
            found.setdefault(row.place.pack, []).append(record_of(row))
    return found


def _check_pack(
    findings: Findings, path: Path, number: int, blobs: _Blobs | None, count: _Count, *, unpack: Unpack | None
) -> None:
    """Check one pack. Raises OSError."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            findings.problem(path, "is not a regular file", _LEAVE)
            return
        if facts.st_mode & OTHERS:
            findings.problem(path, f"has mode {stat.S_IMODE(facts.st_mode):04o}", f"chmod 600 {path}")
        raw = os.pread(descriptor, HEADER_BYTES, 0)
        if facts.st_size <= HEADER_BYTES and not any(raw):
            count.unbegun += 1
            return
        count.packs += 1
        reader = PackReader(number, descriptor)
        header = reader.header()
        if what := reader.header_fault():
            findings.problem(path, what, _NO_HEADER)
        records = _of(descriptor, header) if blobs is None else blobs.get(number, ())
        for record in records:
            count.blobs += 1
            count.blob_bytes += record.length
            if what := _fault(descriptor, number, header, record, unpack):
                findings.problem(path, f"the record {record.sha256.hex()} at {record.offset} {what}", _LEAVE)
    except PackInvalid as error:
        findings.problem(path, str(error), _LEAVE)
    finally:
        os.close(descriptor)


def _of(descriptor: int, header: PackHeader) -> Iterable[PackRecord]:
    """Return the blobs of a pack, if there is no index."""
    return read_end(descriptor, header.marker) or scan(descriptor, header, HEADER_BYTES)


def _fault(
    descriptor: int, number: int, header: PackHeader, record: PackRecord, unpack: Unpack | None
) -> str:
    """Return the fault of a record; "" for none. Raises OSError."""
    if record.stop > os.fstat(descriptor).st_size:
        return "is beyond its end"
    if decode_head(os.pread(descriptor, HEAD_BYTES, record.offset), record.offset, header.marker) != record:
        return "has a header that differs from the index"
    if unpack is not None:
        payload = payload_of(descriptor, record)
        if payload is None:
            return "does not match its checksum"
        place = Place(number, record.offset)
        if unpack(PackedBlob(record.sha256, place, record.length, record.digest, 0), payload) is None:
            return "does not match its name"
    return ""

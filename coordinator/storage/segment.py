"""The format of one log segment: header and records as bytes, and how a torn tail differs from damage.

A segment is a header (magic, version, flags, sequence, the index that comes next in the log, the term before
it, a random marker, CRC), then records: CRC-32, payload length, kind, payload; all numbers little-endian. The
CRC covers everything behind it. Each write is one batch: a BATCH record, then HARD_STATE, TRUNCATE and ENTRY
records, in this order. The BATCH record names the offset up to which this segment was synced before the batch
was written.

A segment voids all entries of older segments from its header's index on. One with the flag BASE voids all
older segments: the log begins there again, after a snapshot. So each segment can be the first one, and no
record in it depends on earlier segments.

Tear or damage: the first invalid record, at some offset, is the torn end of a write that was never synced,
unless an intact BATCH record behind it says that more than this offset had been synced. Then it is damage,
and nothing is guessed. Pages of an unsynced write may reach the disk in any order, so intact records behind a
bad one alone prove nothing. The marker is random, so that no entry's data can pass for a BATCH record. Damage
in the last batch ever written cannot be distinguished from a tear; therefore a log that is opened or closed
ends in an empty batch, which confirms all before it.

Tested by tests/unit/coordinator/storage/test_raft_log.py.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

from ca.errors import Internal
from coordinator.raft.messages import Entry, EntryKind, HardState

MAGIC = b"FSTRLOG\n"
VERSION = 1
SEGMENT_SUFFIX = ".log"
UNFINISHED_SUFFIX = ".new"  # not yet part of the log, and removed at start
MARKER_BYTES = 8
_HEADER = struct.Struct(f"<8sIIQQQ{MARKER_BYTES}sI")
HEADER_BYTES = _HEADER.size
_RECORD = struct.Struct("<IIB")  # CRC, payload length, kind
_RECORD_HEAD = struct.Struct("<IB")  # the part of it that the CRC covers
_CRC = struct.Struct("<I")
_ENTRY = struct.Struct("<QQB")  # index, term, kind; the data follows
_ENTRY_HEAD = struct.Struct("<IBQQB")  # record head and entry head in one
_HARD_STATE = struct.Struct("<QQ")  # term, commit; the vote follows
_TRUNCATE = struct.Struct("<Q")
_BATCH = struct.Struct(f"<{MARKER_BYTES}sQ")


class LogDamaged(Internal):
    """The log on this member's disk is not what was written. The process must not use it."""

    def __init__(self, path: Path, offset: int, what: str) -> None:
        super().__init__(
            f"The log is damaged: {path} at offset {offset}: {what}. "
            "Rebuild this member from its peers with `filestore coordinator rebuild`, under a new member id; "
            "do not repair the file by hand."
        )
        self.path = path
        self.offset = offset


class RecordKind(IntEnum):
    """The kind of a record.

    The numbers are the disk format and never change; a preallocated tail has 0.
    """

    BATCH = 1
    HARD_STATE = 2
    TRUNCATE = 3
    ENTRY = 4


class HeaderFlag(IntFlag):
    """The relation of a segment to the next one. The numbers are the disk format and never change."""

    NONE = 0
    BASE = 1  # all older segments are void


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first bytes of a segment. `previous_term` is the term of the entry before `first_index`."""

    sequence: int
    first_index: int
    previous_term: int
    marker: bytes
    flags: HeaderFlag = HeaderFlag.NONE


def segment_name(sequence: int) -> str:
    """The file name of a segment; names sort like sequences."""
    return f"{sequence:010d}{SEGMENT_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Record:
    """One intact record: its start, its payload, and the start of the next one."""

    offset: int
    kind: int
    payload: bytes
    end: int


def encode_header(header: SegmentHeader) -> bytes:
    """Return the bytes at the start of a segment file."""
    numbers = (header.sequence, header.first_index, header.previous_term, header.marker)
    body = _HEADER.pack(MAGIC, VERSION, header.flags, *numbers, 0)[: -_CRC.size]
    return body + _CRC.pack(zlib.crc32(body))


def decode_header(data: bytes, path: Path) -> SegmentHeader:
    """Decode a header; raise LogDamaged.

    A segment gets its name only after its header was synced, so no tear is possible.
    """
    if len(data) < HEADER_BYTES:
        raise LogDamaged(path, 0, "the file is shorter than a header")
    magic, version, flags, sequence, first_index, previous_term, marker, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise LogDamaged(path, 0, "this is not a log segment")
    if crc != zlib.crc32(data[: HEADER_BYTES - _CRC.size]):
        raise LogDamaged(path, 0, "the header's checksum does not match")
    if version != VERSION:
        raise LogDamaged(path, 0, f"format version {version} is not known to this release")
    if flags not in (HeaderFlag.NONE, HeaderFlag.BASE):
        raise LogDamaged(path, 0, f"the flags {flags:#x} are not known to this release")
    return SegmentHeader(sequence, first_index, previous_term, marker, HeaderFlag(flags))


def _encode_record(kind: RecordKind, payload: bytes) -> bytes:
    body = _RECORD_HEAD.pack(len(payload), kind) + payload
    return _CRC.pack(zlib.crc32(body)) + body


def encode_batch_mark(marker: bytes, synced_bytes: int) -> bytes:
    """Return the first record of a batch; `synced_bytes` of this segment are known to be on the disk."""
    return _encode_record(RecordKind.BATCH, _BATCH.pack(marker, synced_bytes))


def encode_hard_state(hard_state: HardState) -> bytes:
    """Return a HARD_STATE record."""
    payload = _HARD_STATE.pack(hard_state.term, hard_state.commit) + hard_state.vote.encode()
    return _encode_record(RecordKind.HARD_STATE, payload)


def encode_truncate(index: int) -> bytes:
    """Return a TRUNCATE record: entries from `index` on are void."""
    return _encode_record(RecordKind.TRUNCATE, _TRUNCATE.pack(index))


def encode_entry(entry: Entry) -> bytes:
    """Return an ENTRY record: heads, then the entry's data."""
    data = entry.data
    head = _ENTRY_HEAD.pack(_ENTRY.size + len(data), RecordKind.ENTRY, entry.index, entry.term, entry.kind)
    return _CRC.pack(zlib.crc32(data, zlib.crc32(head))) + head + data


def decode_hard_state(payload: bytes) -> HardState | None:
    """Return the hard state of an intact record, None if it is impossible."""
    if len(payload) < _HARD_STATE.size:
        return None
    term, commit = _HARD_STATE.unpack_from(payload)
    try:
        return HardState(term, payload[_HARD_STATE.size :].decode(), commit)
    except UnicodeDecodeError:
        return None


def decode_truncate(payload: bytes) -> int | None:
    """Return the index of an intact TRUNCATE record, None if it is impossible."""
    index: int | None = _TRUNCATE.unpack(payload)[0] if len(payload) == _TRUNCATE.size else None
    return index


def decode_entry(payload: bytes) -> Entry | None:
    """Return the entry of an intact record, None if it is impossible."""
    if len(payload) < _ENTRY.size:
        return None
    index, term, kind = _ENTRY.unpack_from(payload)
    try:
        return Entry(index, term, EntryKind(kind), payload[_ENTRY.size :])
    except ValueError:
        return None


def read_record(data: bytes, offset: int) -> Record | None:
    """Return the record at `offset`, None if there is no intact one."""
    if offset + _RECORD.size > len(data):
        return None
    crc, payload_bytes, kind = _RECORD.unpack_from(data, offset)
    start = offset + _RECORD.size
    payload = data[start : start + payload_bytes]
    if len(payload) < payload_bytes:
        return None
    if zlib.crc32(payload, zlib.crc32(data[offset + _CRC.size : start])) != crc:
        return None
    return Record(offset, kind, payload, start + payload_bytes)


def read_records(data: bytes, offset: int) -> Iterator[Record]:
    """Yield all intact records from `offset` to the first invalid one, or the end."""
    record = read_record(data, offset)
    while record is not None:
        yield record
        record = read_record(data, record.end)


def is_damage(data: bytes, offset: int, marker: bytes) -> bool:
    """Return True if the bad record at `offset` had been synced, as a later intact BATCH record shows."""
    found = data.find(marker, offset)
    while found >= 0:
        record = read_record(data, found - _RECORD.size) if found >= offset + _RECORD.size else None
        if record is not None and synced_bytes(record) > offset:
            return True
        found = data.find(marker, found + 1)
    return False


def synced_bytes(record: Record) -> int:
    """Return the bytes that a BATCH record declares as synced; 0 for any other."""
    if record.kind != RecordKind.BATCH or len(record.payload) != _BATCH.size:
        return 0
    found: int = _BATCH.unpack(record.payload)[1]
    return found

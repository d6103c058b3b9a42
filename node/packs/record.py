"""The format of a pack: a header, records, and once it is sealed, an index of them at its end.

A record is a head and the content of a blob. The head has the pack's marker, the length of the content, its
SHA-256 and XXH3, and the CRC-32 of all this and of the record's offset. All numbers are little-endian, but
for XXH3, which is in its canonical form. Only the database of the index records that a blob was removed.

The head has its own CRC, so that a payload with a lost sector is skipped, and costs only that blob. The CRC
covers the offset, so that a page in a wrong place has no records. After a bad head, the next record begins at
the next marker. The marker is derived from the random number of the pack, so that no payload can be mistaken
for one, and records are found without the header too. The file does not say which bytes were durable: a
promised blob is there, as it was synced; other blobs may or may not be there.

After Haystack (Beaver and others, "Finding a needle in Haystack: Facebook's photo storage", OSDI 2010), whose
needles have a magic number and a checksum too, and Bitcask (Sheehy and Smith, 2010), whose files are sealed
with an index of their content.

Tested by tests/unit/node/packs/test_bad_sectors.py.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from node.diskio.durable import CRC_BYTES, Octets, with_crc, without_crc
from node.diskio.fs import MEDIUM_ERRORS

VERSION: Final = 3  # those before were in no release
MARKER_BYTES: Final = 8
SHA256_BYTES: Final = 32
DIGEST_BYTES: Final = 8  # of an XXH3
PAYLOAD_BYTES_MAX: Final = 1 << 20
PAGE_BYTES: Final = 4096  # a medium gives less than this of nothing
SCAN_BYTES: Final = 1 << 20  # read at once where records are looked for
_MAGIC: Final = b"FSTPACK\0"
_END_MAGIC: Final = b"FSTPKEND"
_HEADER: Final = struct.Struct(f"<8sIQ{MARKER_BYTES}s")  # magic, version, number, marker
_HEAD: Final = struct.Struct(f"<{MARKER_BYTES}sI{SHA256_BYTES}s{DIGEST_BYTES}s")  # marker, size, sha256, XXH3
_ENTRY: Final = struct.Struct(f"<QI{SHA256_BYTES}s{DIGEST_BYTES}s")  # offset, size, sha256, XXH3
_END: Final = struct.Struct(f"<8s{MARKER_BYTES}sQI8s")  # magic, marker, where the index begins, records, XXH3
HEADER_BYTES: Final = _HEADER.size + CRC_BYTES
HEAD_BYTES: Final = _HEAD.size + CRC_BYTES
END_BYTES: Final = _END.size + CRC_BYTES


class PackInvalid(Exception):
    """The file is no pack that this release can read; the text says why."""


class HeaderDamaged(PackInvalid):
    """A file begins with no header of a pack."""


@dataclass(frozen=True, slots=True)
class PackHeader:
    """The first bytes of a pack. `number` is that of its name, of 63 bits; `marker_of` gives its marker."""

    number: int
    marker: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """The beginning of a record."""

    pack: int
    offset: int


@dataclass(frozen=True, slots=True)
class PackRecord:
    """One record of a pack. `digest`: XXH3 of its payload of `length` bytes, 8 bytes."""

    offset: int
    length: int
    sha256: bytes
    digest: bytes

    @property
    def payload_offset(self) -> int:
        """Return the position of the payload in the pack."""
        return self.offset + HEAD_BYTES

    @property
    def stop(self) -> int:
        """Return the position of the next record."""
        return self.payload_offset + self.length


def digest_of(payload: Octets) -> bytes:
    """The XXH3 of a payload: as of a segment of a blob in a file of its own."""
    return xxhash.xxh3_64_digest(payload)


def marker_of(number: int) -> bytes:
    """Return the marker of a pack, which is known without its header too. No client knows its number."""
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=MARKER_BYTES).digest()


def encode_header(header: PackHeader) -> bytes:
    """The first HEADER_BYTES of a pack."""
    return with_crc(_HEADER.pack(_MAGIC, VERSION, header.number, header.marker))


def decode_header(raw: bytes) -> PackHeader:
    """Raises HeaderDamaged, and PackInvalid for a version of another release."""
    body = without_crc(raw) if len(raw) == HEADER_BYTES else None
    if body is None or body[: len(_MAGIC)] != _MAGIC:
        raise HeaderDamaged("this is not a pack, or its header is damaged")
    _, version, number, marker = _HEADER.unpack(body)
    if version != VERSION:
        raise PackInvalid(f"format version {version} is not known to this release")
    return PackHeader(number, marker)


def encode(marker: bytes, sha256: bytes, payload: Octets, offset: int) -> tuple[PackRecord, bytes]:
    """A record that begins at `offset`, and its head; the payload is written behind that."""
    assert len(payload) <= PAYLOAD_BYTES_MAX
    record = PackRecord(offset, len(payload), sha256, digest_of(payload))
    return record, with_crc(_HEAD.pack(marker, record.length, sha256, record.digest), of=str(offset))


def decode_head(raw: Octets, offset: int, marker: bytes) -> PackRecord | None:
    """Return the record whose head these HEAD_BYTES are; None if they are no head of this pack and offset."""
    body = without_crc(bytes(raw), of=str(offset)) if len(raw) == HEAD_BYTES else None
    if body is None or body[:MARKER_BYTES] != marker:
        return None
    _, length, sha256, digest = _HEAD.unpack(body)
    return PackRecord(offset, length, sha256, digest) if length <= PAYLOAD_BYTES_MAX else None


def encode_end(marker: bytes, records: Sequence[PackRecord], start: int) -> bytes:
    """Encode the end of a sealed pack, which is written at `start`, after the last record."""
    index = b"".join(_ENTRY.pack(each.offset, each.length, each.sha256, each.digest) for each in records)
    return index + with_crc(_END.pack(_END_MAGIC, marker, start, len(records), digest_of(index)))


def read_end(descriptor: int, marker: bytes) -> list[PackRecord] | None:
    """All records of a pack, as its index says; None of one that has no whole index. Raises OSError.

    If it had no marker a client could store content that ends like a pack, and others would not be found.
    """
    size_bytes = os.fstat(descriptor).st_size
    body = without_crc(read_around(descriptor, END_BYTES, max(size_bytes - END_BYTES, 0)))
    if body is None or len(body) != _END.size or not body.startswith(_END_MAGIC + marker):
        return None
    *_, start, count, digest = _END.unpack(body)
    if start + count * _ENTRY.size + END_BYTES != size_bytes:
        return None
    index = read_around(descriptor, count * _ENTRY.size, start)
    if len(index) != count * _ENTRY.size or digest_of(index) != digest:
        return None
    return [PackRecord(*entry) for entry in _ENTRY.iter_unpack(index)]


def read_around(descriptor: int, size_bytes: int, start: int) -> bytes:
    """Read like pread, with zeros for unreadable pages. Raises OSError for other failures."""
    try:
        return os.pread(descriptor, size_bytes, start)
    except OSError as error:
        if error.errno not in MEDIUM_ERRORS:
            raise
    stop, content = min(start + size_bytes, os.fstat(descriptor).st_size), bytearray()
    while (at := start + len(content)) < stop:
        page = min(PAGE_BYTES - at % PAGE_BYTES, stop - at)
        try:
            content += os.pread(descriptor, page, at) or bytes(page)
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise
            content += bytes(page)
    return bytes(content)


def scan(descriptor: int, header: PackHeader, start: int) -> Iterator[PackRecord]:
    """Yield every record from `start` on with a valid head, skipping anything between them.

    The payload is not read, and unreadable parts of the medium are skipped. Raises OSError.
    """
    at = start
    while True:
        found = decode_head(read_around(descriptor, HEAD_BYTES, at), at, header.marker)
        if found is not None:
            yield found
            at = found.stop
            continue
        at = _next_marker(descriptor, header.marker, at)
        if at < 0:
            return


def payload_of(descriptor: int, record: PackRecord) -> bytes | None:
    """The payload of a record; None if it is not what was written. Raises OSError."""
    payload = os.pread(descriptor, record.length, record.payload_offset)
    return payload if len(payload) == record.length and digest_of(payload) == record.digest else None


def _next_marker(descriptor: int, marker: bytes, at: int) -> int:
    """Return the position of the next whole head after `at`; -1 if there is none."""
    at += 1
    while chunk := read_around(descriptor, SCAN_BYTES, at):
        found = chunk.find(marker)
        while found >= 0:
            head = read_around(descriptor, HEAD_BYTES, at + found)
            if decode_head(head, at + found, marker) is not None:
                return at + found
            found = chunk.find(marker, found + 1)
        if len(chunk) <= MARKER_BYTES:
            return -1
        at += len(chunk) - MARKER_BYTES + 1
    return -1

"""The compression methods of zip entries; no output is larger than allowed. No I/O of its own.

Memory and time are bounded by that size and by INPUT_BYTES_MAX, for any data.

Tested by tests/unit/metadata/archive/test_manifest.py.
"""

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import IO, Protocol, cast

import zstandard

READ_BYTES = 64 * 1024
INPUT_BYTES_MAX = 12 * 1024 * 1024  # blocks without content make input that never yields anything
WINDOW_BYTES_MAX = 128 * 1024 * 1024  # zstd's own default; it becomes resident only as far as output goes
XZ_MEMORY_BYTES_MAX = 80 * 1024 * 1024  # xz -9 takes 65 MiB
_LZMA_HEADER = struct.Struct("<2xHBL")  # version, length of the properties (5), lc/lp/pb, dictionary size


class EntryDamaged(Exception):
    """The bytes are not what this method makes."""


class Input(Protocol):
    """Compressed bytes in order: a part of a file, or the same within a bound."""

    def read(self, size_bytes: int, /) -> bytes:
        """Up to `size_bytes` more; none at the end."""


class _Decoder(Protocol):
    """The common interface of bz2 and lzma decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def decode(method: int, source: Input, size_bytes_max: int) -> bytes:
    """The content that the source gives, cut off one byte beyond `size_bytes_max`. Raises EntryDamaged.

    Errors of reading the source are raised as they are.
    """
    decoding = _METHODS.get(method)
    if decoding is None:
        raise EntryDamaged(f"has an entry with the unknown compression method {method}")
    return decoding(_BoundedOutput(source), size_bytes_max)


class _BoundedOutput:
    """A source that ends after INPUT_BYTES_MAX."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._left_bytes = INPUT_BYTES_MAX

    def read(self, size_bytes: int = READ_BYTES) -> bytes:
        part = self._source.read(min(size_bytes if size_bytes > 0 else READ_BYTES, self._left_bytes))
        self._left_bytes -= len(part)
        return part


def _stored(source: _BoundedOutput, size_bytes_max: int) -> bytes:
    content = bytearray()
    while len(content) <= size_bytes_max and (part := source.read(size_bytes_max + 1 - len(content))):
        content += part
    return bytes(content)


def _inflated(source: _BoundedOutput, size_bytes_max: int) -> bytes:
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    content, pending = bytearray(), b""
    while not decoder.eof and len(content) <= size_bytes_max:
        pending = pending or source.read()
        if not pending:
            break
        try:
            content += decoder.decompress(pending, size_bytes_max + 1 - len(content))
        except zlib.error as error:
            raise EntryDamaged("has an entry that cannot be decompressed (deflate)") from error
        pending = decoder.unconsumed_tail
    return bytes(content)


def _bunzipped(source: _BoundedOutput, size_bytes_max: int) -> bytes:
    return _drained(bz2.BZ2Decompressor(), source, size_bytes_max)


def _lzma(source: _BoundedOutput, size_bytes_max: int) -> bytes:
    """APPNOTE, section 5.8: a header of its own, then LZMA1 without one.

    A dictionary larger than the content is of no use, so it is not allowed to be.
    """
    header = source.read(_LZMA_HEADER.size)
    if len(header) < _LZMA_HEADER.size:
        raise EntryDamaged("has an entry without an LZMA header")
    properties_bytes, packed, dictionary_bytes = _LZMA_HEADER.unpack(header)
    if properties_bytes != 5 or packed >= 9 * 5 * 5:
        raise EntryDamaged("has an entry with a bad LZMA header")
    options = {
        "id": lzma.FILTER_LZMA1,
        "lc": packed % 9,
        "lp": packed // 9 % 5,
        "pb": packed // 45,
        "dict_size": min(dictionary_bytes, max(size_bytes_max, 4096)),
    }
    try:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[options])
    except (lzma.LZMAError, ValueError) as error:
        raise EntryDamaged("has an entry with bad LZMA properties") from error
    return _drained(decoder, source, size_bytes_max)


def _unxzipped(source: _BoundedOutput, size_bytes_max: int) -> bytes:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES_MAX)
    return _drained(decoder, source, size_bytes_max)


def _drained(decoder: _Decoder, source: _BoundedOutput, size_bytes_max: int) -> bytes:
    content, pending = bytearray(), b""
    while not decoder.eof and len(content) <= size_bytes_max:
        if decoder.needs_input:
            pending = pending or source.read()
            if not pending:
                break
        try:
            content += decoder.decompress(pending, size_bytes_max + 1 - len(content))
        except (OSError, lzma.LZMAError, EOFError) as error:  # OSError: what bz2 calls bad data
            raise EntryDamaged("has an entry that cannot be decompressed") from error
        pending = b""
    return bytes(content)


def _unzstd(source: _BoundedOutput, size_bytes_max: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    content = bytearray()
    try:
        compressed = cast("IO[bytes]", source)
        with decoder.stream_reader(compressed, read_size=READ_BYTES, read_across_frames=True) as reader:
            while len(content) <= size_bytes_max:
                part = reader.read(min(READ_BYTES, size_bytes_max + 1 - len(content)))
                if not part:
                    break
                content += part
    except zstandard.ZstdError as error:
        raise EntryDamaged("has an entry that cannot be decompressed") from error
    return bytes(content)


_METHODS: dict[int, Callable[[_BoundedOutput, int], bytes]] = {
    0: _stored,
    8: _inflated,
    12: _bunzipped,
    14: _lzma,
    93: _unzstd,
    95: _unxzipped,
}

"""JSON that a disk or a peer wrote: any fault in it is one kind of error. Shared by all programs.

No I/O here.

A small file bears a checksum of its content, and says whose it is where that matters: a digit that a disk
changed would be read like any other, and so would the file of another member.
"""

import zlib
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

_T = TypeVar("_T")
_INDENT: Final = 2


class _SealedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The format on disk. `crc32` covers `of` and the exact bytes of `content`, in hexadecimal."""

    crc32: str
    of: str
    content: Raw


def decode_foreign(raw: bytes, expected: type[_T]) -> _T:
    """Decode JSON from an untrusted source; raises msgspec.DecodeError, also for bytes that are not UTF-8.

    msgspec raises a builtin error of Python in that case, which used to end processes that read a damaged
    file.
    """
    try:
        return msgspec.json.decode(raw, type=expected)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 ({error.reason} at byte {error.start})") from error


def encode_sealed(content: Any, *, of: str = "") -> bytes:
    """A small file, with its checksum. `of`: the member whose file it is, "" where it is the same on all."""
    encoded = msgspec.json.format(msgspec.json.encode(content), indent=_INDENT)
    return msgspec.json.encode(_SealedFile(_checksum(encoded, of), of, Raw(encoded))) + b"\n"


def decode_sealed(raw: bytes, expected: type[_T], *, of: str = "") -> _T:
    """The content of a small file.

    Raises msgspec.MsgspecError for a damaged one, and for one of another member.
    """
    found = decode_foreign(raw, _SealedFile)
    if found.crc32 != _checksum(bytes(found.content), found.of):
        raise msgspec.DecodeError("its checksum does not match")
    if found.of != of:
        raise msgspec.DecodeError(f"it belongs to {found.of or 'no member'}")
    return decode_foreign(bytes(found.content), expected)


def _checksum(content: bytes, of: str) -> str:
    return f"{zlib.crc32(content, zlib.crc32(of.encode())):08x}"

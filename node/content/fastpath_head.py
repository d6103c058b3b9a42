"""The heads of the one request that is answered past the HTTP parser, and of its responses. No I/O here.

Parsing is strict, so that a head has only one meaning. It must be complete, in plain ASCII, of at most
HEAD_BYTES_MAX bytes, with nothing after it. It names a file's path without a query, and a few harmless
fields, each once. For anything else the result is None, and the ordinary parser decides.
"""

import functools
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

HEAD_BYTES_MAX: Final = 8192
FIELDS_REMEMBERED_MAX: Final = 512  # a client sends the same ones again and again; 4 MiB at most
BEGINNING: Final = b"GET /api/v1/files/"
_END_OF_LINE: Final = b" HTTP/1.1\r\n"
_UUID_STOP: Final = len(BEGINNING) + 36
_FIELDS_START: Final = _UUID_STOP + len(_END_OF_LINE)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FIELDS: Final = re.compile(
    rb"(?:(?i:host|authorization|user-agent|accept(?:-encoding|-language)?|connection|range|x-request-id)"
    rb": [ -~]*\r\n)+\r\n"
)
_FIELD: Final = re.compile(rb"([A-Za-z-]+): ([ -~]*)\r\n")
_HOST: Final = re.compile(rb"(?:\[[0-9A-Za-z:.]{1,64}\]|[0-9A-Za-z.-]{1,255})(?::[0-9]{1,5})?")
_CREDENTIAL: Final = re.compile(rb"(?i:bearer) ([A-Za-z0-9._~+/=-]+)")
_SPAN: Final = re.compile(rb"bytes=([0-9]{1,16})-([0-9]{1,16})")
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Fields(Struct, frozen=True):
    """The fields of a request head. `first` and `last` are positions of its one range, -1 for the whole."""

    token: str
    request_id: str  # "" if the request has none
    first: int
    last: int


def parse_head(data: bytes) -> tuple[str, Fields] | None:
    """Parse a complete request head; return the requested file and the fields.

    None if the bytes are another request, or less or more than one head.
    """
    if data[_UUID_STOP:_FIELDS_START] != _END_OF_LINE or not data.startswith(BEGINNING):
        return None
    file_uuid = data[len(BEGINNING) : _UUID_STOP].decode("latin-1")
    if len(data) > HEAD_BYTES_MAX or _UUID.fullmatch(file_uuid) is None:
        return None
    fields = _parse_fields(data[_FIELDS_START:])
    return None if fields is None else (file_uuid, fields)


@functools.lru_cache(FIELDS_REMEMBERED_MAX)
def _parse_fields(data: bytes) -> Fields | None:
    """Parse the rest of a head, including its empty line; None if it is not a simple one."""
    if _FIELDS.fullmatch(data) is None:
        return None
    listed = _FIELD.findall(data)
    fields = {name.lower(): value for name, value in listed}
    if len(fields) != len(listed):
        return None
    credential = _CREDENTIAL.fullmatch(fields.get(b"authorization", b""))
    if credential is None or _HOST.fullmatch(fields.get(b"host", b"")) is None:
        return None
    if fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    request_id = fields.get(b"x-request-id", b"")
    if request_id and _REQUEST_ID.fullmatch(request_id) is None:
        return None
    first, last = _span(fields.get(b"range"))
    return None if first > last else Fields(credential[1].decode(), request_id.decode(), first, last)


def _span(value: bytes | None) -> tuple[int, int]:
    """Parse a range: (-1, -1) if absent; one that ends before it begins if it is not simple."""
    if value is None:
        return (-1, -1)
    match = _SPAN.fullmatch(value)
    return (1, 0) if match is None else (int(match[1]), int(match[2]))


def lines_of(headers: Mapping[str, str]) -> bytes:
    """Return these fields as the lines of a head."""
    for value in headers.values():
        assert not {"\r", "\n"} & set(value), "a line end within a field"
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("utf-8")

"""Start an upload: create the record of the new file, or send a small file in one request.

The latter is tus creation-with-upload. If there is no response, the request is repeated with the same key,
and returns the result of the first one, never a second file. If a server does not accept bytes this way, the
upload uses two requests.
"""

import base64
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from filestore_client.base.errors import Unavailable, UnsupportedMediaType
from filestore_client.base.paths import path_part
from filestore_client.base.records import FileRecord
from filestore_client.base.retry import TRY_AGAIN, trouble_of, was_not_sent
from filestore_client.base.transport import Transport
from filestore_client.transfer.sources import FileSource, Source
from filestore_client.transfer.upload_memory import Memory, UnfinishedCreation, UnfinishedUpload
from filestore_client.transfer.uploading import repr_digest

SMALL_BYTES_MAX = 128 << 10  # of a file that goes in one request
METADATA_BYTES_MAX = 4 << 10  # of the fields of its record, as a header; servers take twice this
_RECORD = "return=representation"
R = TypeVar("R", bound=FileRecord)


class _Made(msgspec.Struct, frozen=True):
    """The response without the record. `status` is `available` if all bytes were accepted."""

    file_uuid: str
    upload_url: str
    status: str


@dataclass(frozen=True, slots=True)
class NewFile(Generic[R]):
    """The file to create: the path of its kind, the type of its record, and its fields."""

    path: str
    record: type[R]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BegunUpload:
    """An upload that is to be gone on with at this offset."""

    upload: UnfinishedUpload
    offset: int


def new_key() -> str:
    """Return a new key that identifies one creation: a UUIDv7 (RFC 9562, section 5.7)."""
    random = secrets.randbits(74)
    stamp_ms = time.time_ns() // 1_000_000 & (1 << 48) - 1
    bits = stamp_ms << 80 | 7 << 76 | (random >> 62) << 64 | 2 << 62 | random & (1 << 62) - 1
    return str(UUID(int=bits))


def metadata_of(fields: Mapping[str, Any]) -> str | None:
    """The fields of a record as Upload-Metadata; None where they do not go into a header."""
    pairs = []
    for name, value in fields.items():
        if not (name.isascii() and name.isidentifier()) or not isinstance(value, (bool, int, str)):
            return None  # in JSON the server says what is wrong with it
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            pairs.append(f"{name} {base64.b64encode(text.encode()).decode('ascii')}")
        except UnicodeEncodeError:
            return None
    told = ",".join(pairs)
    return told if len(told) <= METADATA_BYTES_MAX else None


async def create(transport: Transport, new: NewFile[R], source: Source) -> UnfinishedUpload:
    """Create a record. Creating two is harmless, as an unused one expires."""
    size = {} if source.size_bytes is None else {"size_bytes": source.size_bytes}
    body = {**new.fields, **size}
    return await transport.call("POST", new.path, UnfinishedUpload, body=body, repeats=True)


async def begin(
    transport: Transport,
    new: NewFile[R],
    source: FileSource,
    memory: Memory,
    *,
    resume: bool,
) -> R | BegunUpload:
    """Return the record of a small file, which is available, or else the upload to continue. It is saved.

    `resume`: an earlier run may have created it without receiving the response.
    """
    if source.facts.st_size <= SMALL_BYTES_MAX:
        key = (memory.read_key() if resume else "") or new_key()
        memory.write(UnfinishedCreation(key))
        begun = await upload_at_once(transport, new, source, key)
        if isinstance(begun, FileRecord):
            return begun
    else:
        begun = None
    begun = begun or BegunUpload(await create(transport, new, source), 0)
    memory.write(begun.upload)
    return begun


async def upload_at_once(
    transport: Transport, new: NewFile[R], source: Source, key: str = ""
) -> R | BegunUpload | None:
    """Return the available record of the new file; or the upload to continue, if not all was accepted.

    None, without any effect, if the source is not small, or the server does not accept bytes this way. `key`:
    the key of an earlier run, or of a later one. Raises FilestoreError.
    """
    metadata = metadata_of(new.fields)
    if metadata is None or transport.url in transport.without_bytes:
        return None
    content = await source.whole(SMALL_BYTES_MAX)
    if content is None:
        return None
    headers = {
        "Tus-Resumable": "1.0.0",
        "Upload-Length": str(len(content)),
        "Upload-Metadata": metadata,
        "Content-Type": "application/offset+octet-stream",
        "Repr-Digest": repr_digest(await source.sha256()),
        "Idempotency-Key": f'"{key or new_key()}"',
        "Prefer": _RECORD,
    }
    return await _ask(transport, new, headers, content)


async def _ask(
    transport: Transport, new: NewFile[R], headers: Mapping[str, str], content: bytes
) -> R | BegunUpload | None:
    limits = transport.limits()
    unanswered: Exception | None = None  # of an attempt that may have stored the content
    for_later: Unavailable | None = None  # by a newer node than the one that accepts no bytes this way
    while True:
        url = transport.url
        try:
            asking = transport.exchange("POST", new.path, url=url, headers=headers, data=content)
            async with asking as response:
                return await _result(transport, new, response.headers, await response.read())
        except UnsupportedMediaType as error:
            transport.without_bytes.add(url)
            if unanswered is None and for_later is not None:
                raise for_later from error
            if unanswered is None:
                return None
            details = f"It is not known whether the content was stored: {trouble_of(unanswered)}"
            reason: Exception = Unavailable(details, is_unknown=True)  # another node may know
        except TRY_AGAIN as error:
            if not was_not_sent(error):
                unanswered = error
            elif isinstance(error, Unavailable):
                for_later = error
            reason = error
        transport.turn_away(url)
        await limits.pause(reason)


async def _result(
    transport: Transport, new: NewFile[R], headers: Mapping[str, str], answer: bytes
) -> R | BegunUpload:
    if headers.get("Preference-Applied") != _RECORD:
        made = transport.decode(answer, _Made, new.path)
        if made.status != "available":
            offset = int(headers.get("Upload-Offset", "0"))
            return BegunUpload(UnfinishedUpload(made.file_uuid, made.upload_url), offset)
        answer, headers = await transport.answer("GET", f"{new.path}/{path_part(made.file_uuid)}")
    record = transport.decode(answer, new.record, new.path)
    return msgspec.structs.replace(record, etag=headers.get("ETag", ""))

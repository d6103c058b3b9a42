"""The beginning of an upload: the record of the new file, or for a small one all of it in one request.

That is a creation which brings the content (tus creation-with-upload). Who gets no answer asks again under
the same key, and finds what the first request has made: never a second file. A server that takes no bytes so
is not asked again: the upload goes in two requests.
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
from filestore_client.base.retry import TRY_AGAIN, was_not_sent
from filestore_client.base.transport import Transport
from filestore_client.transfer.sources import FileSource, Source
from filestore_client.transfer.upload_memory import Memory, UnfinishedCreation, UnfinishedUpload
from filestore_client.transfer.uploading import repr_digest

SMALL_BYTES_MAX = 128 << 10  # of a file that goes in one request
METADATA_BYTES_MAX = 4 << 10  # of the fields of its record, as a header; servers take twice this
_RECORD = "return=representation"
R = TypeVar("R", bound=FileRecord)


class _Made(msgspec.Struct, frozen=True):
    """The answer without the record. `status`: `available` where all bytes were taken."""

    file_uuid: str
    upload_url: str
    status: str


@dataclass(frozen=True, slots=True)
class NewFile(Generic[R]):
    """What is to be created: the path of its kind, the type of its record, and what the record shall say."""

    path: str
    record: type[R]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BegunUpload:
    """An upload that is to be gone on with at this offset."""

    upload: UnfinishedUpload
    offset: int


def new_key() -> str:
    """What one creation is known by, however often it is asked for: a UUIDv7 (RFC 9562, section 5.7)."""
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
    """The new record. Twice does no harm: what nobody uploads to expires by itself."""
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
    """The record of a small file, which is available; else the upload to go on with. It is remembered.

    `resume`: an earlier run may have made it and not have heard so.
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
    """The record of the new file, available; or the upload to go on with, where not all was taken.

    None, and nothing is made, for a source that is not small, and where the server takes no bytes so. `key`:
    that of an earlier run, or of one to come. Raises FilestoreError.
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
    limits, is_unanswered = transport.limits(), False
    while True:
        url = transport.url
        try:
            asking = transport.exchange("POST", new.path, url=url, headers=headers, data=content)
            async with asking as response:
                return await _result(transport, new, response.headers, await response.read())
        except UnsupportedMediaType as error:
            transport.without_bytes.add(url)
            if not is_unanswered:
                return None
            details = f"It is not known whether the content was stored: {error.details}"
            reason: Exception = Unavailable(details, is_unknown=True)  # another node may know
        except TRY_AGAIN as error:
            is_unanswered = is_unanswered or not was_not_sent(error)
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

"""Upload a file over several connections: its parts are separate uploads, joined at the end.

This is tus concatenation. Each part is resumed separately after an interruption, like any upload. The last
request, which lists all parts, is answered when the file is available. It has the sha256 of the file as it
was read here, so that other content never becomes available. Repeating this request returns the same
response, so a lost one does no harm.
"""

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO, Final

from filestore_client.base.errors import (
    ChecksumMismatch,
    Conflict,
    FileChanged,
    FilestoreError,
    Gone,
    NotFound,
)
from filestore_client.base.paths import upload_path
from filestore_client.base.retry import TRY_AGAIN
from filestore_client.base.transport import Transport
from filestore_client.transfer.sources import FileSource
from filestore_client.transfer.upload_memory import Memory, UnfinishedParts, UnfinishedUpload
from filestore_client.transfer.uploading import (
    COMPLETION_TIMEOUT_S,
    SentBytes,
    UploadState,
    find_unfinished,
    give_up,
    is_begun_with,
    upload,
)

PART_BYTES_MIN: Final = 8 << 20  # less is not worth a connection of its own
PARTS_MAX: Final = 16
METADATA_BYTES_MAX: Final = 6000  # the head of a request has 8 KiB for a field
LIVELY_S: Final = 5.0  # a request that took this long made progress before it failed
Span = tuple[int, int]  # of bytes: the first, and the one after the last


@dataclass(frozen=True, slots=True)
class PartedFile:
    """A file to upload in parts. `path`: the collection; `fields`: of the new record."""

    path: str
    fields: Mapping[str, Any]
    file: BinaryIO
    whole: FileSource
    spans: Sequence[Span]


@dataclass(slots=True)
class _Progress:
    """How much of each part is sent."""

    tell: SentBytes
    done: dict[int, int] = field(default_factory=dict)

    def of(self, number: int) -> SentBytes:
        """Return the progress function of a part."""

        def sent(done_bytes: int) -> None:
            self.done[number] = done_bytes
            self.tell(sum(self.done.values()))

        return sent


def spans_of(size_bytes: int, parallel: int, fields: Mapping[str, Any]) -> Sequence[Span]:
    """The parts of a file; none where it is better sent as a whole, or its fields need a body."""
    count = min(parallel, PARTS_MAX, size_bytes // PART_BYTES_MIN)
    if count < 2 or len(_metadata(fields)) > METADATA_BYTES_MAX:
        return ()
    edges = [size_bytes * number // count for number in range(count + 1)]
    return tuple(pairwise(edges))


async def upload_parts(
    transport: Transport,
    wanted: PartedFile,
    memory: Memory,
    *,
    resume: bool,
    only_url: bool,
    progress: SentBytes,
) -> UnfinishedUpload:
    """Send what the server lacks of all parts at once; the file that they are, which is available then.

    Raises FilestoreError, OSError; FileChanged when the file was written to meanwhile, and its parts are
    given up.
    """
    sources = [FileSource(wanted.file, span=span) for span in wanted.spans]
    known = memory.read_parts() if resume else None
    if known is not None and len(known.parts) == len(sources):
        states = await asyncio.gather(*(find_unfinished(transport, part.file_uuid) for part in known.parts))
        found = [state for state in states if state is not None]
        if len(found) == len(sources):
            if await _are_begun_with(sources, found):
                offsets = [state.offset for state in found]
                return await _sent(transport, wanted, known, sources, offsets, memory, only_url, progress)
            await _abandon(transport, memory, known)
        else:
            with suppress(NotFound, Gone, Conflict):  # they go when the file is available, which it may be
                made = await _put_together(transport, wanted, known)
                progress(wanted.spans[-1][1])
                return made
            memory.forget()
    known = UnfinishedParts([await _begun(transport, wanted, span) for span in wanted.spans])
    memory.write(known)
    return await _sent(transport, wanted, known, sources, [0] * len(sources), memory, only_url, progress)


async def _are_begun_with(sources: Sequence[FileSource], states: Sequence[UploadState]) -> bool:
    """Return whether the bytes that the server has of each part are the first ones of it."""
    asked = (is_begun_with(source, state) for source, state in zip(sources, states, strict=True))
    return all(await asyncio.gather(*asked))


async def _abandon(transport: Transport, memory: Memory, known: UnfinishedParts) -> None:
    """Forget the parts, and delete them. If the server cannot be reached, they expire there."""
    memory.forget()
    for part in known.parts:
        with suppress(FilestoreError):
            await give_up(transport, part.file_uuid)


async def _sent(
    transport: Transport,
    wanted: PartedFile,
    known: UnfinishedParts,
    sources: Sequence[FileSource],
    offsets: Sequence[int],
    memory: Memory,
    only_url: bool,
    progress: SentBytes,
) -> UnfinishedUpload:
    """Send all parts, hash the file concurrently, and return the final upload."""
    told = _Progress(progress)

    async def send(number: int, source: FileSource) -> None:
        part, offset = known.parts[number], offsets[number]
        told.of(number)(offset)
        if offset == source.size_bytes:
            return
        own = transport.sibling()
        base, separator, _ = part.upload_url.partition("/api/v1/")
        if separator and not only_url:
            own.prefer(base)
        await upload(own, part.file_uuid, source, offset=offset, progress=told.of(number))

    sending = [send(number, source) for number, source in enumerate(sources)]
    tasks = [asyncio.create_task(work) for work in (*sending, wanted.whole.checked_sha256())]
    try:
        await asyncio.gather(*tasks)
        return await _put_together(transport, wanted, known)
    except (ChecksumMismatch, FileChanged):
        await _end(tasks)
        await _abandon(transport, memory, known)
        raise
    finally:
        await _end(tasks)


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _begun(transport: Transport, wanted: PartedFile, span: Span) -> UnfinishedUpload:
    """Create a part. Creating two is harmless, as an unused one expires."""
    headers = {
        "Tus-Resumable": "1.0.0",
        "Upload-Concat": "partial",
        "Upload-Length": str(span[1] - span[0]),
        **_metadata_header({name: wanted.fields[name] for name in ("bucket_id",) if name in wanted.fields}),
    }
    return await transport.call("POST", wanted.path, UnfinishedUpload, headers=headers, repeats=True)


async def _put_together(transport: Transport, wanted: PartedFile, known: UnfinishedParts) -> UnfinishedUpload:
    """The file of these parts; asked again until it is available, or that is refused."""
    addresses = " ".join(upload_path(part.file_uuid) for part in known.parts)
    fields = {"blob_sha256": await wanted.whole.sha256(), **wanted.fields}
    headers = {
        "Tus-Resumable": "1.0.0",
        "Upload-Concat": f"final;{addresses}",
        **_metadata_header(fields),
    }
    limits = transport.limits()
    while True:
        url, began_s = transport.url, time.monotonic()
        try:
            async with transport.exchange(
                "POST", wanted.path, headers=headers, answer_timeout_s=COMPLETION_TIMEOUT_S
            ) as response:
                return transport.decode(await response.read(), UnfinishedUpload, wanted.path)
        except TRY_AGAIN as error:
            if time.monotonic() - began_s >= LIVELY_S:
                limits.note_progress()
            transport.turn_away(url)
            await limits.pause(error)


def _metadata_header(fields: Mapping[str, Any]) -> dict[str, str]:
    return {"Upload-Metadata": _metadata(fields)} if fields else {}


def _metadata(fields: Mapping[str, Any]) -> str:
    """The fields of a record as Upload-Metadata has them; flags are `true` and `false`."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()
    }
    pairs = (f"{name} {base64.b64encode(text.encode()).decode('ascii')}" for name, text in texts.items())
    return ",".join(pairs)

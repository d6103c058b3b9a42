"""Uploading files, or one stream: make the record, or go on with an earlier one, send, compare."""

import asyncio
import stat
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ca.errors import ChecksumMismatch, FilestoreError, Internal, InvalidRequest
from deploy.base.terminal import ProgressBars
from deploy.transfer.upload_state import Memory, UnfinishedUpload
from node.client.client import Client
from node.client.upload import (
    FileSource,
    PipeSource,
    SourceChanged,
    UploadSource,
    find_unfinished,
    give_up,
    upload,
)

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to upload, and the fields of its record."""

    path: Path
    fields: Mapping[str, object]


async def put_files(
    client: Client, files: Sequence[Wanted], *, connections: int, only_url: bool, bars: ProgressBars
) -> list[str | FilestoreError | OSError]:
    """Upload files, so many at once; per file, in order, its file_uuid or what it failed for.

    All are remembered until all are stored: the same command after a failure makes no second record of those
    that had come through.
    """
    outcomes: list[str | FilestoreError | OSError] = [Internal("not begun")] * len(files)
    memories: list[Memory] = []
    waiting = deque(enumerate(files))

    async def work() -> None:
        while waiting:
            number, file = waiting.popleft()
            try:
                with bars.bar(str(file.path)) as progress:
                    outcomes[number], memory = await put_file(
                        client.sibling(), file, only_url=only_url, progress=progress
                    )
                memories.append(memory)
            except (FilestoreError, OSError) as error:
                outcomes[number] = error

    async with asyncio.TaskGroup() as group:
        for _ in range(min(connections, len(files))):
            group.create_task(work())
    if len(memories) == len(files):
        for memory in memories:
            memory.forget()
    return outcomes


async def put_file(
    client: Client, wanted: Wanted, *, only_url: bool, progress: Progress
) -> tuple[str, Memory]:
    """Upload a file, continuing what an earlier run began; answers its file_uuid, and what to forget then.

    The client is the upload's own: it goes over to the node that holds it. Raises FilestoreError, OSError.
    """
    path, fields = wanted.path, wanted.fields
    if not fields.get("filename"):
        raise InvalidRequest(f"'{path}' has no name of its own; give one with --filename.")
    if any("\udc80" <= letter <= "\udcff" for letter in str(fields["filename"])):
        raise InvalidRequest("The name is not UTF-8; give one with --filename.")
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: that waits for who writes into a pipe
        how = "" if path.is_dir() else f"; pipe it: filestore put - < {path}"
        raise InvalidRequest(f"{path} is not a regular file{how}.")
    with path.open("rb") as file:
        source = FileSource(file)
        facts = source.facts
        memory = Memory.of(client.url, path, facts, fields)
        unfinished, offset, is_whole = await _resume(client, memory)
        if unfinished is None:
            unfinished = await _create(client, {**fields, "size_bytes": facts.st_size})
            memory.write(unfinished)
        try:
            if is_whole:
                progress(offset, source.size_bytes)
                await _compare(client, unfinished, source)
            else:
                await _send(client, unfinished, source, offset, only_url=only_url, progress=progress)
        except SourceChanged:
            memory.forget()
            with suppress(FilestoreError):  # the server forgets it by itself as well
                await give_up(client, unfinished.file_uuid)
            raise
        return unfinished.file_uuid, memory


async def put_stream(
    client: Client, stream: BinaryIO, fields: Mapping[str, object], *, only_url: bool, progress: Progress
) -> str:
    """Upload what a pipe gives until it ends; answers its file_uuid. Raises FilestoreError."""
    created = await _create(client, fields)
    await _send(client, created, PipeSource(stream), 0, only_url=only_url, progress=progress)
    return created.file_uuid


async def _resume(client: Client, memory: Memory) -> tuple[UnfinishedUpload | None, int, bool]:
    """What an earlier run left and the server still knows, with the offset to go on from.

    It says as well whether that offset is its end: then the file is available.
    """
    unfinished = memory.read()
    if unfinished is None:
        return None, 0, False
    state = await find_unfinished(client, unfinished.file_uuid)
    if state is None:
        memory.forget()
        return None, 0, False
    return unfinished, state.offset, state.offset == state.size_bytes


async def _create(client: Client, fields: Mapping[str, object]) -> UnfinishedUpload:
    created = await client.create_project_file(fields)
    return UnfinishedUpload(file_uuid=created["file_uuid"], upload_url=created["upload_url"])


async def _send(
    client: Client,
    unfinished: UnfinishedUpload,
    source: UploadSource,
    offset: int,
    *,
    only_url: bool,
    progress: Progress,
) -> None:
    base, separator, _ = unfinished.upload_url.partition("/api/v1/")
    if separator and not only_url:
        client.prefer(base)
    await upload(
        client,
        unfinished.file_uuid,
        source,
        offset=offset,
        progress=lambda done: progress(done, source.size_bytes),
    )
    await _compare(client, unfinished, source)


async def _compare(client: Client, unfinished: UnfinishedUpload, source: UploadSource) -> None:
    """Raises ChecksumMismatch when the file that is stored is not the one that is here."""
    record = await client.project_file(unfinished.file_uuid)
    stored, sent = record["blob_sha256"], await source.sha256()
    if stored != sent:
        raise ChecksumMismatch(
            f"The cluster stored {stored} as {unfinished.file_uuid}, but {sent} was read here:"
            " did the file change during the upload?"
        )

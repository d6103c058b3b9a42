"""The steps of an upload whose record exists: what an earlier run left, its base, its bytes, the comparison.

Shared by the kinds of content in `files`, which puts the steps together.

Tested by tests/cluster/test_delta_uploads.py.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from filestore_client.base.errors import ChecksumMismatch, FilestoreError
from filestore_client.base.records import FileRecord, Kind
from filestore_client.base.transport import Transport
from filestore_client.kind_files import KindFiles
from filestore_client.kinds import KINDS
from filestore_client.transfer.cutting import CAN_CUT
from filestore_client.transfer.delta import DELTA_BYTES_MIN, Base, find_base
from filestore_client.transfer.downloading import Progress, describe
from filestore_client.transfer.sources import Source
from filestore_client.transfer.upload_memory import Memory, UnfinishedUpload
from filestore_client.transfer.uploading import UploadState, find_unfinished, give_up, upload

NEW: Final = UploadState(0, None)


async def base_of(
    transport: Transport, kind: Kind, wanted: Mapping[str, Any], source: Source, file_uuid: str | None
) -> Base | None:
    """Return the chunks of the file with this id; if it is absent, of the newest file with the wanted name.

    One in the wanted folder goes before those elsewhere. None if there is no such file, or the content is
    small.
    """
    size_bytes = source.size_bytes
    if not CAN_CUT or file_uuid == "" or (size_bytes is not None and size_bytes < DELTA_BYTES_MIN):
        return None
    try:
        if file_uuid is None:
            newest = await _newest(KindFiles(transport, KINDS[kind]), wanted)
            if newest is None:
                return None
            return await find_base(transport, newest.file_uuid, newest.size_bytes, source)
        size_bytes = (await describe(transport, file_uuid)).size_bytes
        return await find_base(transport, file_uuid, size_bytes, source)
    except FilestoreError:  # the upload says what is wrong
        return None


async def _newest(files: KindFiles[Any], wanted: Mapping[str, Any]) -> FileRecord | None:
    filename, folder = wanted["filename"], wanted.get("path", "")
    named = [
        each async for each in files.list(filename=filename, status="available") if each.filename == filename
    ]
    return max(named, key=lambda each: (each.path == folder, each.created_at), default=None)


async def send(
    transport: Transport,
    unfinished: UnfinishedUpload,
    source: Source,
    state: UploadState,
    *,
    only_url: bool,
    progress: Progress,
    base: Base | None = None,
) -> None:
    """Send what the server lacks of a source; return when the file is available. Raises as `upload`."""
    if state.is_whole:
        tell(progress, source, state.offset)
        return
    node_url, separator, _ = unfinished.upload_url.partition("/api/v1/")
    if separator and not only_url:
        transport.prefer(node_url)
    sent = partial(tell, progress, source)
    await upload(transport, unfinished.file_uuid, source, offset=state.offset, progress=sent, base=base)


def tell(progress: Progress, source: Source, done_bytes: int) -> None:
    """Report progress with the size of the source, as far as that is known."""
    progress(done_bytes, source.size_bytes)


async def stored_record(
    transport: Transport, kind: Kind, unfinished: UnfinishedUpload, source: Source
) -> FileRecord:
    """The record. Raises ChecksumMismatch when the file that is stored is not the one that is here."""
    record: FileRecord = await KindFiles(transport, KINDS[kind]).get(unfinished.file_uuid)
    sent = await source.sha256()
    if record.blob_sha256 != sent:
        raise ChecksumMismatch(
            f"The cluster stored {record.blob_sha256} as {unfinished.file_uuid}, but {sent} was read "
            "here. Did the file change during the upload?"
        )
    return record


async def find_begun(transport: Transport, memory: Memory) -> tuple[UnfinishedUpload | None, UploadState]:
    """Return the upload of an earlier run that the server still has, and its state."""
    unfinished = memory.read()
    if unfinished is None:
        return None, NEW
    state = await find_unfinished(transport, unfinished.file_uuid)
    if state is None:
        memory.forget()
        return None, NEW
    return unfinished, state


async def abandon(transport: Transport, memory: Memory, unfinished: UnfinishedUpload | None) -> None:
    """Forget an upload, and delete it. If the server cannot be reached, it expires there."""
    memory.forget()
    if unfinished is not None:
        with suppress(FilestoreError):
            await give_up(transport, unfinished.file_uuid)

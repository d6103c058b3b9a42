"""The end of an upload: its content put into place here and on other nodes, and recorded as available.

Small content that is complete in memory is stored at once on the nodes of its placement, without a directory
or a chain. These exist to resume after an interruption, which costs small content more than sending it again.
Small content is acknowledged only when it is as durable as other content, on as many nodes.

Content that is uploaded again while the log has it deleted must not wait for the deletion. If the log has
marked a replica for deletion, only a report of its own node withdraws the mark (`node/custody/collect.py`),
so that node is asked for one.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ca.errors import FilestoreError, Forbidden, Unauthorized, Unavailable
from metadata.archive.manifest import manifest_at_once, read_manifest
from metadata.model.records import PROJECT_FILE, VM, Caller, ContentRecord, Manifest, UploadRecord
from metadata.model.replica_records import KnownReplica
from metadata.protocol.commands import CompleteUpload, StoredContent
from metadata.protocol.queries import GetUpload, KnownReplicas
from node.packs.store import BLOB_BYTES_MAX
from node.peer.client import PeerFailed
from node.storage.damage import verify_blob
from node.storage.packed_blobs import memory_descriptor
from node.storage.segments import BlobDamaged, BlobMissing, FinishedBlob
from node.uploads.holder import EMPTY_SHA256, UploadHolder
from node.uploads.progress import SMALL_BYTES
from node.uploads.services import NodeServices
from runtime.time_limits import bounded_s, note_failure, note_progress
from web.headers.digests import WrongContent, agreed_sha256

SMALL_CONTENT_BYTES: Final = BLOB_BYTES_MAX
RETAIN_TIMEOUT_S: Final = 5.0  # see RETAIN_S of node/custody/collect.py
LOOK_AGAIN_S: Final = 3.0  # for the log to report an upload whose completion it has rejected

_log = logging.getLogger(__name__)


async def complete_upload(holder: UploadHolder, sha256: str = "", *, patch_offset: int = -1) -> ContentRecord:
    """Do all steps between the last byte and `available`; may be repeated after any failure.

    `patch_offset`: the first offset of this request's bytes, if it is a PATCH.

    Raises ChecksumMismatch if the content does not hash to `sha256` or to the hash declared by its creator
    (it is dropped then), or if these two contradict each other; Unavailable if too few copies could be made
    (the content stays); OffsetMismatch if it was whole before but its disk has damaged it since, and it has
    to be sent again.
    """
    try:
        return await _complete(holder, sha256, patch_offset)
    except WrongContent:
        raise  # none of it must be acknowledged
    except (Forbidden, Unauthorized):
        if holder.is_open:
            with suppress(FilestoreError):  # otherwise another request could complete it with these bytes
                await holder.drop_unrecorded()
        raise
    except FilestoreError as error:
        note_failure(error)
        if holder.is_open:
            with suppress(FilestoreError):  # small content is stored nowhere else yet
                await holder.settle_received()
        raise


async def _complete(holder: UploadHolder, sha256: str, patch_offset: int) -> ContentRecord:
    services, disk = holder.services, holder.services.disk
    if holder.file.finished is not None:
        await _check_finished(holder, holder.file.finished.sha256)
    elif holder.file.offset > SMALL_BYTES:
        await holder.settle()
    await _check_expected(holder, sha256)
    blob = await disk.run(holder.file.finish)
    note_progress()
    made = await services.replication.finish(holder.terms, blob, holder.whole_copies)
    record = holder.record
    stored = StoredContent(
        sha256=blob.sha256,
        replicas=await services.replication.spread(blob, record.placement, made=made),
        manifest=await _manifest_of(services, record.kind, blob.sha256, lambda: _manifest(services, blob)),
        md5=await disk.run(holder.file.md5),
        as_of=record.as_of,
    )
    note_progress()
    content = await _record_stored(
        services, holder.caller, record, stored, blob.size_bytes, patch_offset=patch_offset
    )
    await holder.discard()
    return content


async def _check_expected(holder: UploadHolder, sha256: str) -> None:
    """Raises ChecksumMismatch; other content than was declared is dropped."""
    try:
        agreed_sha256(sha256, holder.record.expected_sha256, found=holder.file.sha256)
    except WrongContent:
        if holder.file.finished is None:
            await holder.rewind(0, EMPTY_SHA256)
        raise


async def _check_finished(holder: UploadHolder, sha256: str) -> None:
    """Verify content that an earlier request put into place. Raises as `drop_lost`."""
    services = holder.services
    try:
        await verify_blob(services.disk, services.blobs, services.metrics, sha256)
        await services.disk.run(holder.file.md5)
    except (BlobMissing, BlobDamaged) as error:
        await holder.drop_lost(error)


async def complete_small(
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    content: bytes,
    *,
    sha256: str,
    patch_offset: int = -1,
) -> ContentRecord:
    """Do all steps between the last byte and `available`, for content with that SHA-256.

    `patch_offset`: the first offset of this request's bytes, if it is a PATCH. Raises Unavailable if too few
    copies could be made, or what the log refuses; FilestoreError for this disk.
    """
    stored = await store_small(
        services, record.kind, record.placement, content, sha256=sha256, as_of=record.as_of
    )
    return await _record_stored(services, caller, record, stored, len(content), patch_offset=patch_offset)


async def store_small(
    services: NodeServices,
    kind: str,
    placement: Sequence[str],
    content: bytes,
    *,
    sha256: str,
    as_of: int,
) -> StoredContent:
    """Store content of a file of this kind, durable on enough nodes.

    `as_of`: an index that the log has reached. Raises Unavailable if too few copies could be made;
    FilestoreError for this disk.
    """
    blob = FinishedBlob(sha256, len(content))
    here = services.small_blobs.put(sha256, content)
    replicas = await services.replication.spread_small(blob, content, placement, here)
    note_progress()
    manifest = manifest_at_once(content) if kind == PROJECT_FILE else None
    return StoredContent(
        sha256=sha256,
        replicas=replicas,
        md5=hashlib.md5(content, usedforsecurity=False).hexdigest() if kind == VM else "",
        manifest=manifest or await _manifest_of(services, kind, sha256, lambda: _manifest_in_memory(content)),
        as_of=as_of,
    )


def _manifest_in_memory(content: bytes) -> Manifest:
    descriptor = memory_descriptor(content)
    try:
        return read_manifest(descriptor, len(content))
    finally:
        os.close(descriptor)


async def _manifest_of(
    services: NodeServices, kind: str, sha256: str, read: Callable[[], Manifest]
) -> Manifest | None:
    """Return the manifest of a project's archive, or None if it is unavailable."""
    if kind != PROJECT_FILE:
        return None
    try:
        return await services.disk.run(read)
    except (OSError, FilestoreError, BlobMissing, BlobDamaged) as error:
        _log.warning("cannot examine an archive", extra={"sha256": sha256, "reason": str(error)})
        return None


def _manifest(services: NodeServices, finished: FinishedBlob) -> Manifest:
    with (
        services.blobs.open(finished.sha256) as blob,
        open(blob.whole_descriptor(), "rb", buffering=0) as file,
    ):
        return read_manifest(file.fileno(), blob.size_bytes)


async def _record_stored(
    services: NodeServices,
    caller: Caller,
    upload: UploadRecord,
    stored: StoredContent,
    size_bytes: int,
    *,
    patch_offset: int,
) -> ContentRecord:
    """End the upload with content that is durable on enough nodes. Raises what the log refuses."""
    command = CompleteUpload(
        caller=caller,
        file_uuid=upload.file_uuid,
        blob_sha256=stored.sha256,
        size_bytes=size_bytes,
        replicas=stored.replicas,
        md5=stored.md5,
        manifest=stored.manifest,
        as_of=stored.as_of,
        node_id=services.node_id,
        epoch=upload.epoch,
        patch_offset=patch_offset,
    )
    content = await record_completion(services, command)
    services.metrics.uploads_completed.inc()
    return content


async def record_completion(services: NodeServices, command: CompleteUpload) -> ContentRecord:
    """Record the end of an upload in the log.

    If a replica is about to be deleted, or was lost since it was checked, the log rejects this: then all are
    checked again, once.
    """
    metadata = services.api.metadata
    try:
        return await metadata.propose(command, ContentRecord)
    except Unavailable:
        again = await _look_again(services, command)
        if again is None:
            raise
    return await metadata.propose(again, ContentRecord)


async def _look_again(services: NodeServices, command: CompleteUpload) -> CompleteUpload | None:
    """Return the completion with the replicas that exist now; None if this node is no longer the holder.

    A node that must delete its replica is asked to retain it, or to delete it now. One that does not answer
    deletes it within a minute: others take its place. Raises FilestoreError.
    """
    sha256 = command.blob_sha256
    marked = await _marked_for_deletion(services, sha256, command.replicas)
    await asyncio.gather(*(_retain(services, sha256, node_id) for node_id in marked))
    still = await _marked_for_deletion(services, sha256, marked)
    query = GetUpload(caller=command.caller, file_uuid=command.file_uuid)
    record = await services.api.metadata.read(query, UploadRecord, timeout_s=LOOK_AGAIN_S)
    if record.placement[:1] != [services.node_id] or record.epoch != command.epoch:
        return None
    # From here on the nodes are checked later than `record.as_of`.
    note_progress()
    placement = [node_id for node_id in record.placement if node_id not in still]
    replicas = await services.replication.spread(FinishedBlob(sha256, command.size_bytes), placement)
    return msgspec.structs.replace(command, replicas=replicas, as_of=record.as_of)


async def _marked_for_deletion(services: NodeServices, sha256: str, node_ids: Sequence[str]) -> list[str]:
    """Return the nodes that must delete the blob. Raises FilestoreError if the log cannot be asked."""
    asked = await asyncio.gather(*(_is_marked(services, sha256, node_id) for node_id in node_ids))
    return [node_id for node_id, is_marked in zip(node_ids, asked, strict=True) if is_marked]


async def _is_marked(services: NodeServices, sha256: str, node_id: str) -> bool:
    query = KnownReplicas(node_id=node_id, sha256s=[sha256])
    known = await services.api.metadata.read(query, list[KnownReplica], timeout_s=LOOK_AGAIN_S)
    return any(replica.state == "doomed" for replica in known)


async def _retain(services: NodeServices, sha256: str, node_id: str) -> None:
    path, facts = f"/blobs/{sha256}/retain", {"sha256": sha256, "holder": node_id}
    try:
        async with asyncio.timeout(bounded_s(2 * RETAIN_TIMEOUT_S)):
            if node_id != services.node_id:
                asking = services.peers.request(node_id, "POST", path, answer_timeout_s=RETAIN_TIMEOUT_S)
            elif services.custody is not None:
                await services.custody.retain(sha256)
                return
            else:  # the first worker of a node keeps its replicas
                asking = services.siblings.request(0, "POST", path, answer_timeout_s=RETAIN_TIMEOUT_S)
            async with asking as answer:
                _log.info(
                    "a replica that was marked for deletion is needed again",
                    extra=facts | {"status": answer.status},
                )
    except (PeerFailed, FilestoreError, OSError) as error:  # TimeoutError is one
        _log.warning(
            "a replica that is marked for deletion was not retained", extra=facts | {"reason": str(error)}
        )

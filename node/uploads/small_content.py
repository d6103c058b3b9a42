"""Content that is small and all here, in memory: stored on the nodes of its placement at once, then recorded.

No directory of an upload is made, and no chain: what other uploads have these for, to go on after an
interruption, costs small content more than to be sent again. What is acknowledged is as durable as theirs, on
as many nodes, and the log is told in the same words (`node/uploads/completion.py`).
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Final

from ca.errors import FilestoreError
from metadata.archive.manifest import manifest_at_once, read_manifest
from metadata.model.records import PROJECT_FILE, VM, Caller, ContentRecord, Manifest, UploadRecord
from metadata.protocol.commands import CompleteUpload, StoredContent
from node.packs.store import BLOB_BYTES_MAX
from node.storage.packed_blobs import in_memory
from node.storage.segments import FinishedBlob
from node.uploads.completion import record_completion
from node.uploads.services import NodeServices
from runtime.time_limits import SPARE_S, bounded_s, moved

SMALL_CONTENT_BYTES: Final = BLOB_BYTES_MAX

_log = logging.getLogger(__name__)


async def complete_small(
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    content: bytes,
    *,
    sha256: str,
    patch_offset: int = -1,
) -> ContentRecord:
    """Everything between the last byte and `available`, of content that has that SHA-256.

    `patch_offset`: where the bytes of this request began, if it is a PATCH. Raises Unavailable when too few
    copies could be made, or as the log refuses; FilestoreError for this disk.
    """
    stored = await store_small(
        services, record.kind, record.placement, content, sha256=sha256, as_of=record.as_of
    )
    command = CompleteUpload(
        caller=caller,
        file_uuid=record.file_uuid,
        blob_sha256=sha256,
        size_bytes=len(content),
        replicas=stored.replicas,
        md5=stored.md5,
        manifest=stored.manifest,
        as_of=stored.as_of,
        node_id=services.node_id,
        epoch=record.epoch,
        patch_offset=patch_offset,
    )
    recorded = await record_completion(services, command)
    services.metrics.uploads_completed.inc()
    return recorded


async def store_small(
    services: NodeServices,
    kind: str,
    placement: Sequence[str],
    content: bytes,
    *,
    sha256: str,
    as_of: int,
) -> StoredContent:
    """Content of a file of this kind, durable on enough nodes. `as_of`: an index that the log has reached.

    Raises Unavailable when too few copies could be made; FilestoreError for this disk.
    """
    replicas = await _stored(services, placement, FinishedBlob(sha256, len(content)), content)
    moved()
    return StoredContent(
        sha256=sha256,
        replicas=replicas,
        md5=hashlib.md5(content, usedforsecurity=False).hexdigest() if kind == VM else "",
        manifest=await _manifest(services, content) if kind == PROJECT_FILE else None,
        as_of=as_of,
    )


async def _stored(
    services: NodeServices, placement: Sequence[str], blob: FinishedBlob, content: bytes
) -> list[str]:
    """The nodes that hold the blob durably now, this one first; at least the write quorum.

    Where one of the placement fails, or takes long, others are asked as for any content.
    """
    here = services.small_blobs.put(blob.sha256, content)
    awake = [name for name in placement if name != services.node_id and name not in services.peers.silent]
    copies = {services.small_copies.put(name, blob.sha256, content): name for name in awake}
    await here
    if copies:
        await asyncio.wait(copies, timeout=bounded_s(SPARE_S))
    made = list[str]()
    for copy, name in copies.items():
        if not copy.done():
            services.peers.silent.note(name)
        elif (failure := copy.exception()) is not None:
            facts = {"peer": name, "sha256": blob.sha256, "reason": str(failure)}
            _log.warning("a small copy failed", extra=facts)
        else:
            made.append(name)
    view = services.api.view.current
    if 1 + len(made) >= max(view.write_quorum, min(view.replicas, len(placement))):
        return [services.node_id, *made]
    return await services.replication.spread(blob, placement, made=made)


async def _manifest(services: NodeServices, content: bytes) -> Manifest | None:
    """What a project's archive says of itself: a help, and no obstacle when it cannot be had."""
    if (manifest := manifest_at_once(content)) is not None:
        return manifest
    try:
        return await services.disk.run(_read_manifest, content)
    except (OSError, FilestoreError) as error:
        _log.warning("an archive was not looked at", extra={"reason": str(error)})
        return None


def _read_manifest(content: bytes) -> Manifest:
    descriptor = in_memory(content)
    try:
        return read_manifest(descriptor, len(content))
    finally:
        os.close(descriptor)

"""Content that is small and all here, in memory: stored on the nodes of its placement at once, then recorded.

No directory of an upload is made, and no chain: what other uploads have these for, to go on after an
interruption, costs small content more than to be sent again. What is acknowledged is as durable as theirs, on
as many nodes, and the log is told in the same words (`node/uploads/completion.py`).
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Final

from metadata.archive.manifest import manifest_at_once, read_manifest
from metadata.model.records import PROJECT_FILE, VM, Caller, ContentRecord, Manifest, UploadRecord
from metadata.protocol.commands import StoredContent
from node.packs.store import BLOB_BYTES_MAX
from node.storage.packed_blobs import in_memory
from node.storage.segments import FinishedBlob
from node.uploads.completion import manifest_of, record_stored
from node.uploads.services import NodeServices
from runtime.time_limits import moved

SMALL_CONTENT_BYTES: Final = BLOB_BYTES_MAX


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
    return await record_stored(services, caller, record, stored, len(content), patch_offset=patch_offset)


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
    blob = FinishedBlob(sha256, len(content))
    here = services.small_blobs.put(sha256, content)
    replicas = await services.replication.spread_small(blob, content, placement, here)
    moved()
    manifest = manifest_at_once(content) if kind == PROJECT_FILE else None
    return StoredContent(
        sha256=sha256,
        replicas=replicas,
        md5=hashlib.md5(content, usedforsecurity=False).hexdigest() if kind == VM else "",
        manifest=manifest or await manifest_of(services, kind, sha256, lambda: _manifest(content)),
        as_of=as_of,
    )


def _manifest(content: bytes) -> Manifest:
    descriptor = in_memory(content)
    try:
        return read_manifest(descriptor, len(content))
    finally:
        os.close(descriptor)

"""The end of an upload in the log, also where the same content is about to be dropped.

Content that comes again while the log has it deleted must not wait for the deletion. The log takes a doomed
replica back by a report of its own node alone (`node/custody/collect.py`), so that node is asked for one.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from ca.errors import FilestoreError, Unavailable
from coordinator.model.records import ContentRecord, UploadRecord
from coordinator.model.replica_records import KnownReplica
from coordinator.model.time_limits import bounded_s, moved
from coordinator.protocol.commands import CompleteUpload
from coordinator.protocol.queries import GetUpload, KnownReplicas
from node.peer.client import PeerFailed
from node.storage.segments import FinishedBlob
from node.uploads.context import UploadContext

RETAIN_TIMEOUT_S: Final = 5.0  # see RETAIN_S of node/custody/collect.py
LOOK_AGAIN_S: Final = 3.0  # for the log to say how an upload stands whose completion it has refused

_log = logging.getLogger(__name__)


async def record_completion(services: UploadContext, command: CompleteUpload) -> ContentRecord:
    """What the log makes of it.

    One that names a replica which is about to be dropped, or is gone since it was seen, is refused: then all
    are looked at anew, once.
    """
    metadata = services.api.metadata
    try:
        return await metadata.propose(command, ContentRecord)
    except Unavailable:
        again = await _look_again(services, command)
        if again is None:
            raise
    return await metadata.propose(again, ContentRecord)


async def _look_again(services: UploadContext, command: CompleteUpload) -> CompleteUpload | None:
    """The completion by what the nodes hold now; None when this node does not hold the upload any more.

    A node that is to drop its replica is asked to retain it, or to drop it now. One of an older version, or
    that does not answer, drops it within a minute: others take its place. Raises FilestoreError.
    """
    sha256 = command.blob_sha256
    doomed = await _doomed(services, sha256, command.replicas)
    await asyncio.gather(*(_retain(services, sha256, node_id) for node_id in doomed))
    still = await _doomed(services, sha256, doomed)
    query = GetUpload(caller=command.caller, file_uuid=command.file_uuid)
    record = await services.api.metadata.read(query, UploadRecord, timeout_s=LOOK_AGAIN_S)
    if record.placement[:1] != [services.node_id] or record.epoch != command.epoch:
        return None
    # From here on the nodes are looked at later than `record.as_of`.
    moved()
    placement = [node_id for node_id in record.placement if node_id not in still]
    replicas = await services.replication.spread(FinishedBlob(sha256, command.size_bytes), placement)
    return msgspec.structs.replace(command, replicas=replicas, as_of=record.as_of)


async def _doomed(services: UploadContext, sha256: str, node_ids: Sequence[str]) -> list[str]:
    """Those of these nodes that shall drop the blob. Raises FilestoreError when the log cannot be asked."""
    asked = await asyncio.gather(*(_is_doomed(services, sha256, node_id) for node_id in node_ids))
    return [node_id for node_id, is_doomed in zip(node_ids, asked, strict=True) if is_doomed]


async def _is_doomed(services: UploadContext, sha256: str, node_id: str) -> bool:
    query = KnownReplicas(node_id=node_id, sha256s=[sha256])
    known = await services.api.metadata.read(query, list[KnownReplica], timeout_s=LOOK_AGAIN_S)
    return any(replica.state == "doomed" for replica in known)


async def _retain(services: UploadContext, sha256: str, node_id: str) -> None:
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
                _log.info("a doomed replica is needed again", extra=facts | {"status": answer.status})
    except (PeerFailed, FilestoreError, OSError) as error:  # TimeoutError is one
        _log.warning("a doomed replica was not retained", extra=facts | {"reason": str(error)})

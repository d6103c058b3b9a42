"""Going on with an upload whose node is lost: another node of its placement becomes the holder.

Any node that a client asks may see to it. It asks the others of the placement for the sha256 of the bytes
that the log says are acknowledged; one that has them all becomes the holder by `TakeOverUpload`, a compare
and set in the log: of two that try at once one succeeds, and the other finds what it did. From then on the
log refuses the old holder, and members refuse its links. The new holder cuts its file to the log's offset
when it opens it (`node/uploads/holder.py`): what it has beyond was acknowledged to nobody.

Where nobody has these bytes, since the holder has left the cluster and the others have left it too or say so,
there is nothing to go on with: the upload begins anew (`RestartUpload`).

The leader refuses while it hears the old holder: that one may only be out of the reach of the node that asks.
A holder that has lost the leader is lost too, whoever reaches it: it can tell the log of nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from ca.errors import Conflict, FilestoreError, NotFound, Unavailable
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.commands import RestartUpload, TakeOverUpload
from metadata.protocol.queries import GetUpload
from node.peer.client import PeerFailed
from node.staging.resumed_hash import STEP_BYTES
from node.staging.upload_store import QUICK_BYTES
from node.storage.segments import SegmentHasher
from node.uploads.chain_link import SHA256_HEADER
from node.uploads.services import NodeServices
from runtime.time_limits import bounded_s, moved

TAKEOVER_S = 8.0  # for the leader to miss the holder, and for members to answer; less for a client
RETRY_S = 0.5
PROBE_S = 3.0
SILENT_PROBE_S = 1.0  # for one that did not answer lately

_log = logging.getLogger(__name__)


async def is_reachable(services: NodeServices, node_id: str) -> bool:
    """Whether the node answers on its peer port now, and can go on with what it holds."""
    probe_s = SILENT_PROBE_S if node_id in services.peers.silent else PROBE_S
    try:
        # No upload has this name: that it is not there is an answer.
        asked = services.peers.ask(node_id, "HEAD", "/uploads/probe?stop=0", within_s=probe_s)
        async with asked as answer:
            return answer.status != Unavailable.status
    except PeerFailed:
        return False


async def take_over(services: NodeServices, caller: Caller, record: UploadRecord) -> UploadRecord:
    """The upload with a holder that lives: a new one, or the old one after all.

    It is begun anew if its bytes are gone.

    Raises Unavailable when no node that can be reached has the acknowledged bytes, and another may have them.
    """
    if (begun := await begin_anew_if_lost(services, caller, record)) is not None:
        return begun
    lost = record.placement[0]
    loop = asyncio.get_running_loop()
    until_s = loop.time() + bounded_s(TAKEOVER_S)
    asked, successor = record, await _successor(services, record)
    while True:
        try:
            if (record.epoch, record.offset_bytes) != (asked.epoch, asked.offset_bytes) or not successor:
                asked, successor = record, await _successor(services, record)
            if not successor:
                raise Unavailable("No reachable node has the acknowledged bytes of this upload.")
            return await propose_takeover(services, caller, record, successor)
        except (Conflict, Unavailable) as error:
            if loop.time() + RETRY_S + SILENT_PROBE_S >= until_s:
                raise Unavailable(
                    f"Node {lost}, which holds this upload, cannot be reached, and no other node can "
                    "continue yet.",
                    retry_after_s=2,
                ) from error
        await asyncio.sleep(RETRY_S)
        query = GetUpload(caller=caller, file_uuid=record.file_uuid)
        record = await services.api.metadata.read(query, UploadRecord)
        if not record.placement or record.placement[0] != lost or await is_reachable(services, lost):
            return record


async def begin_anew_if_lost(
    services: NodeServices, caller: Caller, record: UploadRecord
) -> UploadRecord | None:
    """The upload as it begins anew; None where somebody has, or may have, what is acknowledged of it.

    Asks nobody while the holder is a member. Raises what the log refuses.
    """
    holder, *others = record.placement
    if await _is_member(services, holder):
        return None
    if record.offset_bytes and not record.prefix_sha256:  # of an older version: nobody can tell
        found = [await _is_member(services, name) for name in others]
        may_have = any(found)
    else:
        successor, do_all_say = await who_has_prefix(services, others, record)
        may_have = bool(successor) or not do_all_say
    if may_have:
        return None
    command = RestartUpload(
        caller=caller,
        file_uuid=record.file_uuid,
        holder=holder,
        epoch=record.epoch,
        offset_bytes=record.offset_bytes,
        lost=others,
    )
    try:
        begun = await services.api.metadata.propose(command, UploadRecord)
    except Conflict:
        return None  # it went on meanwhile, or a node of this name has joined
    moved()
    facts = {"file_uuid": record.file_uuid, "offset_bytes": record.offset_bytes}
    _log.error("an upload starts over, because no node has its bytes any more", extra=facts)
    return begun


async def give_up(services: NodeServices, caller: Caller, record: UploadRecord) -> bool:
    """This node, the holder, has lost bytes: whether another one holds the upload now.

    Raises Unavailable when none says that it has them, and nodes that may have them do not answer.
    """
    successor, do_all_say = await who_has_prefix(services, record.placement[1:], record)
    if not successor:
        if not do_all_say:
            raise Unavailable(
                "This node has lost bytes of the upload, and others do not answer.", retry_after_s=2
            )
        return False
    await propose_takeover(services, caller, record, successor)
    return True


async def propose_takeover(
    services: NodeServices, caller: Caller, record: UploadRecord, successor: str
) -> UploadRecord:
    """The upload as another node of the placement holds it. Raises Conflict, and what the log refuses."""
    command = TakeOverUpload(
        caller=caller,
        file_uuid=record.file_uuid,
        holder=record.placement[0],
        successor=successor,
        epoch=record.epoch,
        offset_bytes=record.offset_bytes,
    )
    taken = await services.api.metadata.propose(command, UploadRecord)
    moved()
    facts = {"file_uuid": record.file_uuid, "peer": successor, "offset_bytes": record.offset_bytes}
    _log.info("took over an upload", extra=facts)
    return taken


async def who_has_prefix(
    services: NodeServices, node_ids: Sequence[str], record: UploadRecord
) -> tuple[str, bool]:
    """The first of these nodes that says it has the acknowledged bytes, "" if none does.

    Returns as well whether all have said. Nobody is waited for once one has them.
    """
    asked = {asyncio.create_task(has_prefix(services, name, record)): name for name in node_ids}
    pending = set(asked)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            having = [name for task, name in asked.items() if task in done and task.result()]
            if having:
                return having[0], not pending
        return "", all(task.result() is not None for task in asked)
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)


async def has_prefix(services: NodeServices, node_id: str, record: UploadRecord) -> bool | None:
    """Whether the node has the acknowledged bytes, as one that was removed has not.

    It is None when the node does not say, within PROBE_S: one that has to read much of them says so when it
    is asked again.
    """
    stop = record.offset_bytes
    if stop and not record.prefix_sha256:
        return False  # recorded by an older version: nobody can tell
    if node_id == services.node_id:
        try:
            return await own_prefix(services, record.file_uuid, stop) == record.prefix_sha256 or not stop
        except NotFound:
            return not stop
        except FilestoreError:  # they are being read, or this disk fails: it does not say
            return None
    path = f"/uploads/{record.file_uuid}?stop={stop}"
    if not (within_s := bounded_s(PROBE_S)):
        return None
    try:
        async with services.peers.ask(node_id, "HEAD", path, within_s=within_s) as answer:
            if answer.status not in (200, 404):
                return None
            return not stop or answer.headers.get(SHA256_HEADER) == record.prefix_sha256
    except PeerFailed:
        return None if await _is_member(services, node_id) else False


async def own_prefix(services: NodeServices, file_uuid: str, stop: int) -> str:
    """The sha256 of the first `stop` bytes as this node has them.

    Raises NotFound when it has fewer; Unavailable while they are still being read, see
    `node/staging/prefixes.py`.
    """
    uploads, disk = services.uploads, services.disk
    if stop <= QUICK_BYTES:
        return await disk.run(uploads.prefix_sha256, file_uuid, stop)

    async def read() -> str:
        hasher = SegmentHasher()
        while hasher.size_bytes < stop:
            until = min(stop, hasher.size_bytes + STEP_BYTES)
            await disk.run_long(uploads.hash_prefix, file_uuid, stop, hasher, until)
        return hasher.sha256()

    sha256 = await services.prefixes.find((file_uuid, stop), read)
    if await disk.run(uploads.durable_offset, file_uuid) < stop:
        raise NotFound("This node has fewer bytes of the upload.")  # it went back meanwhile
    return sha256


async def _successor(services: NodeServices, record: UploadRecord) -> str:
    """A node of the placement that has the acknowledged bytes, "" when none says so."""
    return (await who_has_prefix(services, record.placement[1:], record))[0]


async def _is_member(services: NodeServices, node_id: str) -> bool:
    """Whether it has joined, as far as can be told now: our view may be of before that."""
    if services.api.view.node(node_id) is not None:
        return True
    with suppress(TimeoutError):
        async with asyncio.timeout(bounded_s(PROBE_S)):
            view = await services.api.view.renewed()
            return any(node.node_id == node_id for node in view.nodes)
    return True

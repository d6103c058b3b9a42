"""Upload succession: another node of the placement becomes the holder, by `TakeOverUpload`.

`TakeOverUpload` is a compare and set in the log. If two nodes try at once, one succeeds and the other
finds what the first one did. From then on the log refuses the old holder, and members refuse its links.
The new holder has the acknowledged bytes, compared by their sha256. It cuts its file to the log's offset
when it opens it (`node/uploads/holder.py`): bytes beyond that were acknowledged to no client. There are
three reasons:

- The holder does not answer. Any node that a client asks takes over. The leader refuses that while it
  receives heartbeats of the old holder, which may only be unreachable for the node that asks. A holder
  that has lost the leader is lost too, even if nodes reach it: it cannot report anything to the log.
- The holder has lost acknowledged bytes. It gives up, if a member has them.
- The holder's disk accepts no more bytes. It hands over to a member that has room, else to a node outside
  the placement, which is sent the acknowledged bytes and then placed. If nothing is acknowledged yet, the
  whole upload is placed again. The old holder's file stays a copy until the upload ends.

If the holder has left the cluster, and every other node of the placement has left it too or says that it
lacks the bytes, the upload begins again from offset 0 (`RestartUpload`).

Tested by tests/unit/node/uploads/test_holder.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from ca.errors import Conflict, FilestoreError, NotFound, Unavailable
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.commands import RecordProgress, RestartUpload, TakeOverUpload
from metadata.protocol.queries import GetUpload
from node.peer.client import PeerClient, PeerFailed
from node.staging.resumed_hash import read_prefix
from node.staging.upload_store import QUICK_BYTES
from node.uploads.chain_link import SHA256_HEADER
from node.uploads.services import NodeServices
from runtime.lifetime import end_tasks
from runtime.time_limits import bounded_s, note_progress

TAKEOVER_S = 8.0  # for the leader to notice the loss, and for members to answer; less for a client
RETRY_S = 0.5
PROBE_S = 3.0  # for a node to report its bytes, or its room
SILENT_PROBE_S = 1.0  # for a node that did not answer lately
SENT_BYTES_MAX = 4 << 30  # the client waits meanwhile, and no other request can write: about a minute
UNKNOWN_BYTES = 4 << 20  # of room, for an upload of unknown size: the node with most room comes first
ASKED_MAX = 32  # nodes, for one upload
ROOM_PATH, ROOM_HEADER = "/room", "Filestore-Room-Bytes"

_log = logging.getLogger(__name__)


async def take_over(services: NodeServices, caller: Caller, record: UploadRecord) -> UploadRecord:
    """Return the upload with a live holder: a new one, or the old one if it answers again.

    The upload begins again if its bytes are gone.

    Raises Unavailable if no reachable node has the acknowledged bytes, and another may have them.
    """
    if (begun := await begin_anew_if_lost(services, caller, record)) is not None:
        return begun
    lost = record.placement[0]
    loop = asyncio.get_running_loop()
    until_s = loop.time() + bounded_s(TAKEOVER_S)
    asked, successor = record, ""
    while True:
        try:
            if (record.epoch, record.offset_bytes) != (asked.epoch, asked.offset_bytes) or not successor:
                asked = record
                successor, _ = await who_has_prefix(services, record.placement[1:], record)
            if not successor:
                raise Unavailable("No node that can be reached has the acknowledged bytes of this upload.")
            return await _propose(services, caller, record, successor)
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
    """Return the upload as it begins again; None if a node has, or may have, its acknowledged bytes.

    Asks no node while the holder is a member of the cluster. Raises what the log refuses.
    """
    holder, *others = record.placement
    if await _is_member(services, holder):
        return None
    successor, do_all_say = await who_has_prefix(services, others, record)
    if successor or not do_all_say:
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
        return None  # it continued meanwhile, or a node of this name has joined
    note_progress()
    facts = {"file_uuid": record.file_uuid, "offset_bytes": record.offset_bytes}
    _log.error("an upload starts over, because no node has its bytes any more", extra=facts)
    return begun


async def give_up(services: NodeServices, caller: Caller, record: UploadRecord) -> bool:
    """Find another holder, as this node, the holder, has lost bytes; return whether there is one now.

    Raises Unavailable if no node confirms that it has them, and nodes that may have them do not answer.
    """
    successor, do_all_say = await who_has_prefix(services, record.placement[1:], record)
    if not successor:
        if not do_all_say:
            raise Unavailable(
                "This node has lost bytes of the upload, and others do not answer.", retry_after_s=2
            )
        return False
    await _propose(services, caller, record, successor)
    return True


async def hand_over(
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    send_to: Callable[[str], Awaitable[bool]],
    *,
    expected_bytes: int = 0,
) -> str:
    """Return the node that holds the upload from now on; "" if none has room for the rest.

    `expected_bytes`: the size of the content if it is known and not declared yet. `send_to` sends the
    acknowledged bytes to a node, and returns whether they are durable there. Raises what the log refuses,
    Conflict if it knows of another holder.
    """
    offset_bytes = record.offset_bytes
    size_bytes = expected_bytes or offset_bytes + UNKNOWN_BYTES
    if record.size_bytes is not None:
        size_bytes = record.size_bytes
    missing_bytes = size_bytes - offset_bytes
    members = await roomy_nodes(services.peers, record.placement[1:], missing_bytes)
    successor, _ = await who_has_prefix(services, members, record)
    if successor:
        await _propose(services, caller, record, successor)
        return successor
    nodes = services.api.view.current.nodes
    known = [node.node_id for node in nodes if node.takes_replicas and node.node_id not in record.placement]
    strangers = await roomy_nodes(services.peers, known, size_bytes)
    if not offset_bytes:
        chosen = strangers[: services.api.view.current.replicas]
        return await _place(services, caller, record, chosen, []) if chosen else ""
    if strangers and offset_bytes <= SENT_BYTES_MAX and await send_to(strangers[0]):
        others = known_nodes(services, record.placement[1:])
        return await _place(services, caller, record, strangers[:1], others)
    return ""


def known_nodes(services: NodeServices, node_ids: Sequence[str]) -> list[str]:
    """Return those of these nodes that were not removed, as far as this node knows, in their order."""
    return [node_id for node_id in node_ids if services.api.view.node(node_id) is not None]


async def _place(
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    chosen: Sequence[str],
    others: Sequence[str],
) -> str:
    """Make the first of `chosen` the holder, in two steps; after the first step it is only a member."""
    command = RecordProgress(
        caller=caller,
        file_uuid=record.file_uuid,
        node_id=services.node_id,
        offset_bytes=record.offset_bytes,
        epoch=record.epoch,
        prefix_sha256=record.prefix_sha256,
        placement=[services.node_id, *chosen, *others],
    )
    placed = await services.api.metadata.propose(command, UploadRecord)
    if placed.placement[:2] != [services.node_id, chosen[0]]:
        return ""  # it has ended meanwhile
    await _propose(services, caller, placed, chosen[0])
    return chosen[0]


async def _propose(
    services: NodeServices, caller: Caller, record: UploadRecord, successor: str
) -> UploadRecord:
    """Propose another holder; return the upload with it. Raises Conflict, and what the log refuses."""
    command = TakeOverUpload(
        caller=caller,
        file_uuid=record.file_uuid,
        holder=record.placement[0],
        successor=successor,
        epoch=record.epoch,
        offset_bytes=record.offset_bytes,
    )
    taken = await services.api.metadata.propose(command, UploadRecord)
    note_progress()
    facts = {"file_uuid": record.file_uuid, "peer": successor, "offset_bytes": record.offset_bytes}
    _log.info("took over an upload", extra=facts)
    return taken


async def is_reachable(services: NodeServices, node_id: str) -> bool:
    """Return whether the node answers on its peer port now, and can continue with its bytes."""
    probe_s = SILENT_PROBE_S if node_id in services.peers.silent else PROBE_S
    try:
        # No upload has this name: the answer that it is missing suffices.
        asked = services.peers.ask(node_id, "HEAD", "/uploads/probe?stop=0", within_s=probe_s)
        async with asked as answer:
            return answer.status != Unavailable.status
    except PeerFailed:
        return False


async def who_has_prefix(
    services: NodeServices, node_ids: Sequence[str], record: UploadRecord
) -> tuple[str, bool]:
    """Return the first of these nodes that has the acknowledged bytes, "" if none has them.

    Also returns whether all have answered. Once one has them, no other is awaited.
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
        await end_tasks(pending)


async def has_prefix(services: NodeServices, node_id: str, record: UploadRecord) -> bool | None:
    """Return whether the node has the acknowledged bytes; False for a removed node.

    None if the node does not answer within PROBE_S: a node that has to read many bytes answers the next time.
    """
    stop = record.offset_bytes
    if node_id == services.node_id:
        try:
            return await own_prefix(services, record.file_uuid, stop) == record.prefix_sha256 or not stop
        except NotFound:
            return not stop
        except FilestoreError:  # they are being read, or this disk fails
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
    """Return the sha256 of this node's first `stop` bytes.

    Raises NotFound if it has fewer; Unavailable while they are still being read, see
    `node/staging/resumed_hash.py`.
    """
    uploads, disk = services.uploads, services.disk
    if stop <= QUICK_BYTES:
        return await disk.run(uploads.prefix_sha256, file_uuid, stop)

    read = partial(read_prefix, disk, partial(uploads.hash_prefix, file_uuid, stop), stop)
    sha256 = await services.prefixes.find((file_uuid, stop), read)
    if await disk.run(uploads.durable_offset, file_uuid) < stop:
        raise NotFound("This node has fewer bytes of the upload.")  # it went back meanwhile
    return sha256


async def _is_member(services: NodeServices, node_id: str) -> bool:
    """Return whether the node is a member of the cluster; a view older than its join is renewed first."""
    if services.api.view.node(node_id) is not None:
        return True
    with suppress(TimeoutError):
        async with asyncio.timeout(bounded_s(PROBE_S)):
            view = await services.api.view.fetch_confirmed()
            return any(node.node_id == node_id for node in view.nodes)
    return True


async def roomy_nodes(peers: PeerClient, node_ids: Iterable[str], size_bytes: int) -> list[str]:
    """Return those of the first ASKED_MAX nodes that have room for `size_bytes`, most room first.

    The nodes are asked when it is needed, so that each answers for its disk at this moment; heartbeats are
    seconds old and only reach the coordinators.
    """
    asked = list(node_ids)[:ASKED_MAX]
    asked = [node_id for node_id in asked if node_id not in peers.silent] or asked
    rooms = await asyncio.gather(*(_room_of(peers, node_id) for node_id in asked))
    found = [(-room, node_id) for room, node_id in zip(rooms, asked, strict=True) if room > size_bytes]
    return [node_id for _, node_id in sorted(found)]


async def _room_of(peers: PeerClient, node_id: str) -> int:
    if not (within_s := bounded_s(PROBE_S)):
        return 0
    with suppress(PeerFailed, ValueError):
        async with peers.ask(node_id, "HEAD", ROOM_PATH, within_s=within_s) as answer:
            return int(answer.headers.get(ROOM_HEADER, "0"))
    return 0

"""Restore the state of a coordinator with a damaged database, before it takes part again under its name.

Its log is another file, and intact: it has its term, its vote, and every entry that it acknowledged, so no
promise is forgotten (Ongaro 2014, section 3.8). If the log begins with the first entry, the state is built
from it again. Otherwise a snapshot of another coordinator is used, which must reach to the beginning of the
log. If the log is damaged too, the coordinator does not continue. The damaged database is kept.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from ca.errors import Conflict, FilestoreError, InsufficientStorage
from ca.secretfiles import sync_directory, write_durable
from coordinator.member.snapshot_fetch import chunk_of, snapshot_of, verify
from coordinator.raft.messages import HardState, SnapshotMeta
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import StateLost
from coordinator.storage.snapshot_store import IncomingSnapshot, SnapshotStore
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.stored_sums import SUMS
from metadata.rpc.client import MetadataClient
from metadata.rpc.websocket import end
from runtime.clock import now_ms
from runtime.json_files import decode_sealed, encode_sealed

DAMAGED_MAX = 2  # damaged databases: each is as large as the state
PAUSE_S = 0.5  # between two checks whether a snapshot is made
SILENCE_S = 120.0  # without a piece of a snapshot from any member
_DAMAGED_PREFIX = "state.sqlite.damaged-"
_SIDECARS = ("", "-wal", "-shm", SUMS)
_log = logging.getLogger(__name__)


def note_damage(files: CoordinatorFiles, damage: StateDamaged) -> StateLost:
    """Make the next start rebuild the state in any case; return the error that ends this process. Blocks."""
    try:
        write_durable(files.state_damaged, damage.details.encode() + b"\n")
    except OSError as error:  # the disk may be failing: then the next start has to find the damage again
        _log.error("the damage could not be recorded: %s", error)
    return StateLost(
        f"{damage.details}. Start this coordinator again. It then sets the damaged state aside, and "
        "restores it from its log or from the other coordinators."
    )


async def rebuild(
    files: CoordinatorFiles,
    damage: StateDamaged,
    connect: Callable[[], MetadataClient],
    *,
    sync: Callable[[int], None],
) -> None:
    """Replace the damaged state by a sound one, for the next `open_ledger`.

    Raises StateLost if no coordinator sends a snapshot, LogDamaged, LogInUse, InsufficientStorage, OSError;
    then everything is as before.
    """
    _log.critical("%s; the database is moved aside and rebuilt", damage.details)
    index_min = await asyncio.to_thread(_log_follows, files, sync)
    snapshots = SnapshotStore(files.snapshots, files.state)
    if index_min > 0:
        meta = await _fetch(connect(), files, snapshots, index_min, damage)
        await asyncio.to_thread(_mark, files, meta, sync)
        await asyncio.to_thread(snapshots.place, meta)
    else:
        await asyncio.to_thread(snapshots.note_confirmed)  # a state built from the log is an own one
    await asyncio.to_thread(_begin_anew, files)
    await asyncio.to_thread(_move_aside, files)
    await asyncio.to_thread(snapshots.recover)
    files.state_damaged.unlink(missing_ok=True)
    await asyncio.to_thread(sync_directory, files.data)


def rebuilt_at_ms(path: Path) -> int:
    """Return when the state was last lost and rebuilt, 0 for never. Blocks."""
    try:
        return decode_sealed(path.read_bytes(), int)
    except FileNotFoundError:
        return 0
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s cannot be read: %s", path, error)
        return 0


def _begin_anew(files: CoordinatorFiles) -> None:
    """Delete the notes about the lost state, which are void."""
    write_durable(files.rebuilt, encode_sealed(now_ms()))
    files.differences.unlink(missing_ok=True)


def _log_follows(files: CoordinatorFiles, sync: Callable[[int], None]) -> int:
    """Return the entry that the log continues, 0 if it has all entries."""
    with closing(SegmentLog.open(files.log, sync=sync)) as log:
        return log.first_index() - 1


def _mark(files: CoordinatorFiles, meta: SnapshotMeta, sync: Callable[[int], None]) -> None:
    """Mark the log as a message of the snapshot's term would, and as an installation does.

    The vote of the previous term stays valid, and a log that ends before the snapshot has not lost its end.
    """
    with closing(SegmentLog.open(files.log, sync=sync)) as log:
        known = log.hard_state
        if meta.term > known.term:
            log.append(HardState(meta.term, "", known.commit), None, [], sync=True)
        log.promise(replace(log.promised, installing=(meta.index, meta.term)))


async def _fetch(
    metadata: MetadataClient,
    files: CoordinatorFiles,
    snapshots: SnapshotStore,
    index_min: int,
    damage: StateDamaged,
) -> SnapshotMeta:
    """Fetch a snapshot from the first coordinator that has one, and verify it."""
    own_id, logged = files.read_config().id, ""
    others = [each.coordinator_id for each in metadata.coordinators if each.coordinator_id != own_id]
    running = asyncio.create_task(metadata.run(), name="links of a rebuild")
    answered_at_s, reason = time.monotonic(), "there is no other"
    try:
        while others and time.monotonic() - answered_at_s < SILENCE_S:
            for source in others:
                try:
                    meta = await snapshot_of(metadata, source, index_min)
                    answered_at_s = time.monotonic()  # None: it is being made, which may take minutes
                    if meta is not None:
                        await _fetch_from(metadata, source, await _incoming(snapshots, meta, source), meta)
                        _log.warning("fetched the state at %d from %s", meta.index, source)
                        return meta
                except InsufficientStorage:
                    raise
                except FilestoreError as error:
                    reason = f"{source}: {error.details}"
                    if isinstance(error, Conflict):  # it has the state, and must not send it now
                        answered_at_s = time.monotonic()
                        if reason != logged:
                            _log.error("waiting for a state: %s", logged := reason)
            await asyncio.sleep(PAUSE_S)
    finally:
        await end(running)
    raise StateLost(
        f"{damage.details}, and no coordinator provides the state ({reason}). Start it again when "
        "others run, or create it again with `filestore coordinator rebuild`."
    )


async def _incoming(snapshots: SnapshotStore, meta: SnapshotMeta, source: str) -> IncomingSnapshot:
    return await asyncio.to_thread(snapshots.begin_incoming, meta, source)


async def _fetch_from(
    metadata: MetadataClient, source: str, incoming: IncomingSnapshot, meta: SnapshotMeta
) -> None:
    """Fetch all pieces from one coordinator. Raises NotFound, Unavailable, InvalidRequest."""
    while not incoming.is_complete:
        piece = await chunk_of(metadata, source, meta.index, meta.term, incoming.offset)
        await asyncio.to_thread(incoming.add, piece)
    await verify(incoming, metadata, source, meta)


def _move_aside(files: CoordinatorFiles) -> None:
    """Keep the damaged database for examination, and of earlier ones only the newest."""
    earlier = sorted(files.data.glob(f"{_DAMAGED_PREFIX}*"))
    names = sorted(
        {path.name.removesuffix("-wal").removesuffix("-shm").removesuffix(SUMS) for path in earlier}
    )
    for name in names[: max(0, len(names) - (DAMAGED_MAX - 1))]:
        for ending in _SIDECARS:
            (files.data / f"{name}{ending}").unlink(missing_ok=True)
    target = f"{_DAMAGED_PREFIX}{now_ms()}"
    for ending in reversed(_SIDECARS):  # the database last: until it is gone, the next start repeats this
        path = files.data / f"{files.state.name}{ending}"
        if path.exists():
            path.rename(files.data / f"{target}{ending}")
    sync_directory(files.data)

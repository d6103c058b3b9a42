"""Fetching a snapshot from one store of them into another, without a network."""

from pathlib import Path

from coordinator.raft.messages import SnapshotMeta
from coordinator.storage.snapshot_store import Chunk, IncomingSnapshot, SnapshotStore


def meta_of(source: SnapshotStore) -> SnapshotMeta:
    meta = source.newest()
    assert meta is not None
    return meta


def taken(snapshots: SnapshotStore, *, origin: str) -> SnapshotMeta:
    """Make and hand out a snapshot of the state as it is now."""
    return snapshots.publish(snapshots.make(snapshots.pin()), origin=origin)


def next_chunk(source: SnapshotStore, incoming: IncomingSnapshot) -> Chunk:
    meta = meta_of(source)
    return source.chunk(meta.index, meta.term, incoming.offset)


def fetch(source: SnapshotStore, target: SnapshotStore) -> SnapshotMeta:
    incoming = target.begin_incoming(meta_of(source))
    while not incoming.is_complete:
        incoming.add(next_chunk(source, incoming))
    incoming.finish()
    return meta_of(source)


def files_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())

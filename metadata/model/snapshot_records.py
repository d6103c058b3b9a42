"""The records about snapshots of the metadata, and about what they contain. Pure.

Tested by tests/unit/coordinator/machine/test_snapshots.py.
"""

from typing import Final

from msgspec import Struct

HELD, EXPIRED, EVICTED = "held", "expired", "evicted"
HOLDS: Final = (HELD, EXPIRED, EVICTED)


class SnapshotRecord(Struct, frozen=True, kw_only=True):
    """A snapshot of the metadata that a coordinator has made.

    `hold`: HELD while the content that it refers to stays on the disks; EXPIRED when that time is over;
    EVICTED if it ended early, as the disks were almost full. `held_until_ms`: when that time ends.
    `held_bytes`: content of deleted files that leaves the disks with this hold, each content once.
    `is_readable`: the coordinator, which alone has the file, is a member of the cluster.
    """

    snapshot_id: str
    coordinator_id: str
    log_index: int
    taken_at_ms: int
    hold: str
    held_until_ms: int
    size_bytes: int
    files: int
    sent_to: str
    held_blobs: int
    held_bytes: int
    is_readable: bool


class SnapshotPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    snapshots: list[SnapshotRecord]
    next_cursor: int


class HeldContent(Struct, frozen=True, kw_only=True):
    """Content of deleted files that snapshots hold: how many hold any time, how many blobs and bytes.

    `evicted`: snapshots that lost their content before their time, while that has not passed.
    """

    snapshots: int = 0
    blobs: int = 0
    bytes: int = 0
    evicted: int = 0


class EndedHolds(Struct, frozen=True):
    """Content that was released. `evicted`: the snapshot that lost it before its time, "" for none."""

    blobs: int
    bytes: int
    evicted: str
    more: bool


class RevivedFile(Struct, frozen=True):
    """A file that came back from a snapshot."""

    file_uuid: str
    kind: str
    bucket_id: str
    owner_id: str


class SnapshotFile(Struct, frozen=True, kw_only=True):
    """A file with content, as a snapshot has it."""

    file_uuid: str
    kind: str
    bucket_id: str
    bucket_name: str
    owner_id: str
    filename: str
    path: str
    size_bytes: int
    blob_sha256: str
    parent_backup_uuid: str
    created_at_ms: int


class SnapshotFilePage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    files: list[SnapshotFile]
    next_cursor: int

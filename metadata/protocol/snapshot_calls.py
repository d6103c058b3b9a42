"""Calls about the files in a snapshot. Apart from `calls`: only a coordinator that has the snapshot answers.

Tested by tests/unit/coordinator/test_service_snapshots.py.
"""

from msgspec import Struct

from metadata.model.records import Caller
from metadata.protocol.commands import CreateBackup, CreateProjectFile, CreateVm
from runtime.bounds import Count, Text


class SnapshotFilesCall(Struct, frozen=True, tag="snapshot_files"):
    """A page of the files in a snapshot that this coordinator has. Admins only. Answers a SnapshotFilePage.

    `bucket_id` and `filename`, the beginning of a name, narrow it, "" for any.
    """

    caller: Caller
    snapshot_id: Text
    bucket_id: Text
    filename: Text
    cursor: Count
    limit: Count


class SnapshotFileCall(Struct, frozen=True, tag="snapshot_file"):
    """A file of such a snapshot. Admins only. Answers a SnapshotContent."""

    caller: Caller
    snapshot_id: Text
    file_uuid: Text


class SnapshotContent(Struct, frozen=True, kw_only=True):
    """The fields of ReviveFile for a file of a snapshot, without its caller and its new id."""

    create: CreateProjectFile | CreateVm | CreateBackup
    owner_id: str
    owner_sequence: int

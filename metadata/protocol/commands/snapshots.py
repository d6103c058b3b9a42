"""Commands about snapshots of the metadata: which are kept, how long their content stays. Pure."""

from metadata.model.records import Caller
from metadata.model.rules import SNAPSHOTS_HOLD_CONTENT
from metadata.protocol.commands.files import CreateBackup, CreateProjectFile, CreateVm
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import Count, Text

HELD_ROWS_MAX = 100


class StartSnapshot(Command, frozen=True, kw_only=True, tag="start_snapshot"):
    """A coordinator begins to copy the state. From now on content that the copy may refer to stays.

    It stays for `hold_ms`, 0 for not at all; no earlier snapshot holds its content for longer then. A
    snapshot that was still being made has failed. The leader only. Replies with the number of the snapshot.
    """

    since = SNAPSHOTS_HOLD_CONTENT
    coordinator_id: Text
    hold_ms: Count


class KeepSnapshot(Command, frozen=True, kw_only=True, tag="keep_snapshot"):
    """The snapshot with this number is complete, with the entries up to `log_index`, or has failed.

    `snapshot_id`: the name of its file, "" for a failure. `sent_to`: the other place that has it, "" for
    none. The same again changes nothing. The leader only. Replies with None.
    """

    since = SNAPSHOTS_HOLD_CONTENT
    sequence: Count
    snapshot_id: Text
    log_index: Count
    size_bytes: Count = 0
    files: Count = 0
    sent_to: Text = ""


class EndHolds(Command, frozen=True, kw_only=True, tag="end_holds"):
    """Release the content of snapshots whose time is over, of at most `rows_max` blobs. The leader only.

    `evict`: the disks are almost full, so the oldest snapshot that holds any content loses it before its
    time, unless earlier ones still have some to release. Replies with EndedHolds.
    """

    since = SNAPSHOTS_HOLD_CONTENT
    is_long = True
    rows_max: Count = HELD_ROWS_MAX
    evict: bool = False


class ReviveFile(Command, frozen=True, kw_only=True, tag="revive_file"):
    """Create a file with the record and the content that a file of a snapshot had. Admin only.

    `create.content` names the content; the state machine knows where it is. A conflict if no node has it any
    more. The file belongs to `owner_id` if that is the same user as then (`owner_sequence`), else to the
    caller. Replies with a RevivedFile.
    """

    since = SNAPSHOTS_HOLD_CONTENT
    proposed_by = NODES
    caller: Caller
    create: CreateProjectFile | CreateVm | CreateBackup
    owner_id: Text
    owner_sequence: Count

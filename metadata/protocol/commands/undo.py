"""Commands about the trash and the protection of files. Apart from those of files, which fill a module.

Tested by tests/unit/coordinator/machine/test_trash.py.
"""

from msgspec import UNSET, UnsetType

from metadata.model.records import Caller
from metadata.model.rules import FILES_ARE_PROTECTED, FILES_GO_TO_TRASH
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import Count, Instant, LifeSeconds, Text

SQUEEZE_ROWS_MAX = 60


class RestoreFile(Command, frozen=True, kw_only=True, tag="restore_file"):
    """Bring a file back from the trash, with the backups there that it builds on.

    Needs admin on each, and write on the bucket that it comes into: `bucket_id`, "" for its own. Replies with
    RestoredFile. A conflict if its bucket, or a backup that it builds on, is gone for good.
    """

    since = FILES_GO_TO_TRASH
    is_long = True
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    bucket_id: Text = ""


class PurgeFile(Command, frozen=True, kw_only=True, tag="purge_file"):
    """Delete a file in the trash for good. Needs admin on it.

    A conflict while another backup in the trash builds on it.
    """

    since = FILES_GO_TO_TRASH
    proposed_by = NODES
    caller: Caller
    file_uuid: Text


class SqueezeTrash(Command, frozen=True, kw_only=True, tag="squeeze_trash"):
    """Delete the oldest files in the trash for good, until these bytes are released. The leader only.

    Replies with Squeezed.
    """

    since = FILES_GO_TO_TRASH
    is_long = True
    wanted_bytes: Count
    rows_max: Count = SQUEEZE_ROWS_MAX


class CollectPurged(Command, frozen=True, kw_only=True, tag="collect_purged"):
    """Mark content that was deleted for good on purpose for deletion, the oldest first. The leader only.

    `grace_ms` as of Collect. Replies with Collected.
    """

    since = FILES_GO_TO_TRASH
    is_long = True
    rows_max: Count
    grace_ms: Count


class ProtectFile(Command, frozen=True, kw_only=True, tag="protect_file"):
    """Protect the file from deletion until that time. Needs admin on it. It can only be extended.

    Either `until_ms`, or `ttl_seconds` by the leader's time. Replies with the time in milliseconds.
    """

    since = FILES_ARE_PROTECTED
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    until_ms: Instant | UnsetType = UNSET
    ttl_seconds: LifeSeconds | UnsetType = UNSET

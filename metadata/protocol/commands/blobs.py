"""Commands about blobs and replicas. Apart from those about files: members propose them, never clients.

They say which node shall hold which blob, and what became of it.

The log decides and nodes act. A replica that is to go is *marked for deletion* in the log; its node reads
that, deletes the file, and reports. A marked one counts for nothing, and so does one on a node that is down,
returning, draining or removed.

`as_of` in these commands is a log index that was known before somebody looked at files: with it the state
machine sees whether what was found there can be gone since.
"""

from typing import Annotated, Literal

from msgspec import Meta

from metadata.protocol.commands.root import ITSELF, Command
from runtime.bounds import Count, Ids, Spans, Text

STEP_ROWS_MAX = 1000  # in one step; the leader asks for fewer, so that nobody waits for it
COLLECT_GRACE_MS = 24 * 60 * 60 * 1000

StepRows = Annotated[int, Meta(ge=1, le=STEP_ROWS_MAX)]


class Collect(Command, frozen=True, kw_only=True, tag="collect"):
    """Doom the replicas of blobs that no file has referred to for `grace_ms`. The leader only.

    At most about `rows_max` rows: the last blob may go beyond with its own. Replies with Collected.
    """

    is_long = True
    rows_max: StepRows = STEP_ROWS_MAX
    grace_ms: Count = COLLECT_GRACE_MS


class CollectOverQuota(Command, frozen=True, kw_only=True, tag="collect_over_quota"):
    """Doom replicas of blobs that were released by buckets which are over their quota on the disks.

    It marks the longest released first, and none within `grace_ms`, until no more lies there than the quota.
    Only the leader proposes it.

    At most about `rows_max` rows, as of Collect. Replies with Collected.
    """

    is_long = True
    rows_max: StepRows
    grace_ms: Count


class ReleaseReplica(Command, frozen=True, kw_only=True, tag="release_replica"):
    """Mark one replica for deletion. The leader only. Again for a marked one changes nothing.

    A conflict unless `others_min` others count, and never fewer than the write quorum; of a blob without
    references any may go.
    """

    sha256: Text
    node_id: Text
    others_min: Count


class AddReplica(Command, frozen=True, kw_only=True, tag="add_replica"):
    """A node holds this blob, whole and durable, and has said so after `as_of` was known to whoever asked.

    By the leader, or by the node itself. not_found without such a node, or a file that refers to the blob;
    unavailable when the replica is marked, or was reported gone after `as_of`: look again, then ask again.
    Replies with what the blob lacks still (an integer; see ShortBlob).
    """

    proposed_by = ITSELF

    sha256: Text
    node_id: Text
    as_of: Count


class ReportDropped(Command, frozen=True, kw_only=True, tag="report_dropped"):
    """What a node did with the marked replicas that it read in a list of `as_of`. Only by the node itself.

    `dropped`: the files are gone, durably. `spared`: they are needed here and stay; the log takes them back.
    A conflict when another report of the node came between: its list is older than what is known here, and
    nothing of it counts. So a node reads the next list when its last report was answered, and a process
    begins with an empty report, whose answer says that no report of an earlier one can come any more.
    Replies with Dropped.
    """

    proposed_by = ITSELF
    is_long = True
    node_id: Text
    as_of: Count
    dropped: Ids = []
    spared: Ids = []


class ReportLost(Command, frozen=True, kw_only=True, tag="report_lost"):
    """Replicas that a node should hold and does not: gone, or damaged and quarantined. Only by itself.

    Also for content that the log does not name this node for: whoever was told that it is here, and has yet
    to say so, is refused and looks again. What is damaged, the node keeps: see ReportDamaged. Replies with
    Lost.
    """

    proposed_by = ITSELF
    is_long = True
    node_id: Text
    sha256s: Ids
    reason: Literal["missing", "damaged"]


class ReportDamaged(Command, frozen=True, kw_only=True, tag="report_damaged"):
    """A node keeps a damaged copy of a blob, of which it has no replica: other bytes of it may be sound.

    Only by itself. `spans`: bytes that are known to be wrong there, ascending; not all of them before the
    copy was read to its end. Again for a copy that is known, this is what is known from now on. Passed over
    where no file refers to the blob, or the log names the node for a replica. Replies with None.
    """

    proposed_by = ITSELF
    node_id: Text
    sha256: Text
    spans: Spans


class ReportOrphans(Command, frozen=True, kw_only=True, tag="report_orphans"):
    """Content that came to a node, and that nobody has claimed since. Only by the node itself.

    What no file refers to, and the log does not name the node for, is an orphan: whoever was told before that
    it is there is refused from here on, so that the node may delete it if nobody was told since. Replies with
    the sha256s of these.
    """

    proposed_by = ITSELF
    is_long = True
    node_id: Text
    sha256s: Ids


class RecountReplicas(Command, frozen=True, kw_only=True, tag="recount_replicas"):
    """Go on with what the change of a node's state means for the blobs it holds. The leader only.

    At most `rows_max` replicas. Replies with Recounted.
    """

    is_long = True
    rows_max: StepRows = STEP_ROWS_MAX

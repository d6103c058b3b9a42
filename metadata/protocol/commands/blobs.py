"""Commands about blobs and replicas. Apart from those about files: members propose them, never clients.

They define which node should hold which blob, and report the results.

The log decides and nodes act. A replica that should go is *marked for deletion* in the log; its node reads
that, deletes the file, and reports. A marked one counts for nothing, and so does one on a node that is down,
returning, draining or removed.

`as_of` in these commands is a log index that was known before files were examined. With it, the state machine
can find out whether a file may have disappeared since.
"""

from typing import Annotated, Literal

from msgspec import Meta

from metadata.protocol.commands.root import ITSELF, Command
from runtime.bounds import Count, Ids, Spans, Text

STEP_ROWS_MAX = 1000  # in one step; the leader asks for fewer, so that others do not wait
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
    """Mark replicas of released blobs for deletion, for buckets whose content on the disks exceeds the quota.

    It starts with those released first, and spares those released within `grace_ms`, until the rest fits the
    quota. Only the leader proposes it.

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
    """A node has reported a whole, durable replica, after `as_of` was known to the one who asked it.

    Proposed by the leader, or by the node itself. not_found without such a node, or a file that refers to the
    blob. unavailable if the replica is marked for deletion, or was reported lost after `as_of`: check the
    node again, then repeat the command. Replies with the number of replicas that the blob still lacks (see
    ShortBlob).
    """

    proposed_by = ITSELF

    sha256: Text
    node_id: Text
    as_of: Count


class ReportDropped(Command, frozen=True, kw_only=True, tag="report_dropped"):
    """A node reports what it did with the marked replicas that it read in a list of `as_of`.

    Proposed by the node itself only. `dropped`: the files are deleted, durably. `spared`: they are needed
    here and stay; the log takes the mark back. It is a conflict, without any effect, if another report of the
    node came in between: its list is then outdated. So a node reads the next list after its last report was
    answered. A process begins with an empty report, whose answer guarantees that no report of an earlier
    process can follow. Replies with Dropped.
    """

    proposed_by = ITSELF
    is_long = True
    node_id: Text
    as_of: Count
    dropped: Ids = []
    spared: Ids = []


class ReportLost(Command, frozen=True, kw_only=True, tag="report_lost"):
    """A node reports missing replicas that it should hold: gone, or damaged and quarantined.

    Proposed by the node itself only. It may also report content that the log does not list for this node: a
    process that relies on it, and has not recorded it yet, is rejected and checks again. The node keeps
    damaged content: see ReportDamaged. Replies with Lost.
    """

    proposed_by = ITSELF
    is_long = True
    node_id: Text
    sha256s: Ids
    reason: Literal["missing", "damaged"]


class ReportDamaged(Command, frozen=True, kw_only=True, tag="report_damaged"):
    """A node keeps a damaged copy of a blob, without a replica of it: its other bytes may be intact.

    Proposed by the node itself only. `spans`: bytes that are known to be wrong there, ascending; incomplete
    before the copy was read to its end. Repeated for a known copy, it replaces the spans. Ignored if no file
    refers to the blob, or the log lists a replica on the node. Replies with None.
    """

    proposed_by = ITSELF
    node_id: Text
    sha256: Text
    spans: Spans


class ReportOrphans(Command, frozen=True, kw_only=True, tag="report_orphans"):
    """A node reports content that arrived there and was not claimed since.

    Proposed by the node itself only. Content that no file refers to, and that the log does not list for the
    node, is an orphan. A process that relies on it is rejected from now on, so the node may delete it unless
    it affirmed it since. Replies with the sha256s of the orphans.
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

"""Commands about job runs. Apart from those about files: any leader resumes the runs that it finds here."""

from metadata.model.records import Caller
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import Count, Document, Text

CANCELLED = "cancelled"
EXPIRE_ROWS_MAX = 1000  # in one Expire; the leader asks for far fewer, so that others do not wait


class TriggerJob(Command, frozen=True, kw_only=True, tag="trigger_job"):
    """An admin starts a job. Replies with the JobRunRecord. A conflict, naming the run, while one runs.

    `node_id` is stamped by the leader, which does the work; `parameters` is a JSON object.
    """

    proposed_by = NODES
    caller: Caller
    run_id: Text
    job_name: Text
    parameters: Document = "{}"
    node_id: Text = ""


class StartRun(Command, frozen=True, kw_only=True, tag="start_run"):
    """The schedule starts a job; only the leader itself proposes it. Otherwise as TriggerJob."""

    run_id: Text
    job_name: Text
    node_id: Text


class CancelRun(Command, frozen=True, kw_only=True, tag="cancel_run"):
    """An admin ends a run: it has failed, with the error CANCELLED. Replies with the JobRunRecord.

    Its work stops; finished steps stay. A conflict for a run that has ended otherwise.
    """

    proposed_by = NODES
    caller: Caller
    run_id: Text


class RecordRun(Command, frozen=True, kw_only=True, tag="record_run"):
    """Record the progress of a run, or (`status` not running) its result. The leader only.

    `result` is JSON text. A run that has ended does not change any more. Replies with the JobRunRecord.
    """

    run_id: Text
    node_id: Text
    status: Text
    result: Document


class Expire(Command, frozen=True, kw_only=True, tag="expire"):
    """End what is past its time, at most `rows_max` rows in all. The leader only. Replies with Expired.

    Uploads, retention (available to tombstoned), tombstones (to deleted), permissions, public tokens, join
    tokens.
    """

    is_long = True
    rows_max: Count = EXPIRE_ROWS_MAX
    tombstone_ms: Count = 24 * 60 * 60 * 1000

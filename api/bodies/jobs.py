"""Bodies of `/api/v1/jobs`."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Amount,
    Count,
    MaybeTimestamp,
    MemberId,
    NextCursor,
    Request,
    Timestamp,
    UserId,
    Uuid,
)
from metadata.model.jobs import GRACE_S_MAX

RunId = Annotated[Uuid, Meta(description="The run.")]
JobName = Annotated[
    str,
    Meta(
        description="The job.", examples=["expire"], extra_json_schema={"pattern": "^[a-z][a-z0-9_-]{0,63}$"}
    ),
]
RunStatus = Annotated[
    str,
    Meta(
        description="running until it ends; then completed, or failed.",
        examples=["completed"],
        extra_json_schema={"enum": ["running", "completed", "failed"]},
    ),
]


class TriggerJobBody(Request, frozen=True, kw_only=True):
    """Parameters of the run; each job takes some of them, most take none."""

    node_id: Annotated[
        MemberId | UnsetType,
        Meta(description="`drain`, `scrub`, `compare`: this node only.", examples=["n1"]),
    ] = UNSET
    yes_really: Annotated[
        bool | UnsetType,
        Meta(
            description="`gc`, `scrub`, `compare`: go on where the job would stop to ask, because a tenth or "
            "more would go.",
            examples=[False],
        ),
    ] = UNSET
    grace_s: Annotated[
        Annotated[int, Meta(ge=0, le=GRACE_S_MAX)] | UnsetType,
        Meta(
            description="`gc`: for how long content is kept that no file refers to, in the place of a day.",
            examples=[3600],
        ),
    ] = UNSET


class TriggeredRun(Struct, frozen=True, kw_only=True):
    """The run has begun."""

    run_id: RunId
    job_name: JobName
    status: RunStatus


class JobRunBody(Struct, frozen=True, kw_only=True):
    """One run of a job."""

    run_id: RunId
    job_name: JobName
    node_id: Annotated[MemberId, Meta(description="The coordinator that works on it.", examples=["c1"])]
    invoked_by: Annotated[
        UserId, Meta(description="The user that asked for it, or `schedule`.", examples=["admin"])
    ]
    started_at: Annotated[Timestamp, Meta(description="When it began.")]
    completed_at: Annotated[MaybeTimestamp, Meta(description='When it ended; "" while it runs.')]
    status: RunStatus
    result: Annotated[
        Any,
        Meta(
            description="What it has done so far, or what it came to; each job has its own.",
            examples=[{"looked_at": 12, "done": 12}],
        ),
    ]


class JobRunList(Struct, frozen=True, kw_only=True):
    """A page of runs, oldest first. Of each job, the newest hundred that ended are kept."""

    count: Count
    runs: Annotated[list[JobRunBody], Meta(description="The runs.")]
    next_cursor: NextCursor | UnsetType = UNSET


class JobBody(Struct, frozen=True, kw_only=True):
    """A job that can be triggered."""

    job_name: JobName
    description: Annotated[str, Meta(description="What it does.", examples=["Ends what is past its time."])]
    schedule_s: Annotated[
        Amount, Meta(description="Seconds between two runs of themselves; 0 for none.", examples=[60])
    ]
    last_run: Annotated[
        JobRunBody | UnsetType, Meta(description="Its newest run. Absent while it never ran.")
    ] = UNSET


class JobList(Struct, frozen=True, kw_only=True):
    """A page of jobs, by name."""

    count: Count
    jobs: Annotated[list[JobBody], Meta(description="The jobs.")]
    next_cursor: NextCursor | UnsetType = UNSET

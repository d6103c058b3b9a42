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
        description="running until the run ends; then completed or failed.",
        examples=["completed"],
        extra_json_schema={"enum": ["running", "completed", "failed"]},
    ),
]


class TriggerJobBody(Request, frozen=True, kw_only=True):
    """Parameters of the run. Most jobs accept none of them."""

    node_id: Annotated[
        MemberId | UnsetType,
        Meta(description="`drain`, `scrub`, `compare`: only this node.", examples=["n1"]),
    ] = UNSET
    yes_really: Annotated[
        bool | UnsetType,
        Meta(
            description=(
                "`gc`, `scrub`, `compare`: override the safety limit (the job stops if it "
                "would remove a tenth or more)."
            ),
            examples=[False],
        ),
    ] = UNSET
    grace_s: Annotated[
        Annotated[int, Meta(ge=0, le=GRACE_S_MAX)] | UnsetType,
        Meta(
            description=(
                "`gc`: how long content is kept after no file refers to it any more. If absent: a day."
            ),
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
    node_id: Annotated[MemberId, Meta(description="The coordinator that runs it.", examples=["c1"])]
    invoked_by: Annotated[
        UserId, Meta(description="The user who started it, or `schedule`.", examples=["admin"])
    ]
    started_at: Annotated[Timestamp, Meta(description="When the run began.")]
    completed_at: Annotated[MaybeTimestamp, Meta(description='When the run ended, or "" while it runs.')]
    status: RunStatus
    result: Annotated[
        Any,
        Meta(
            description="Progress so far, or the final result. The fields depend on the job.",
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
    description: Annotated[
        str,
        Meta(
            description="What it does.",
            examples=["Expires uploads, tombstones and permissions whose time has passed."],
        ),
    ]
    schedule_s: Annotated[
        Amount,
        Meta(
            description="Seconds between two scheduled runs, or 0 if the job has no schedule.", examples=[60]
        ),
    ]
    last_run: Annotated[
        JobRunBody | UnsetType, Meta(description="Its newest run. Absent if it has never run.")
    ] = UNSET


class JobList(Struct, frozen=True, kw_only=True):
    """A page of jobs, by name."""

    count: Count
    jobs: Annotated[list[JobBody], Meta(description="The jobs.")]
    next_cursor: NextCursor | UnsetType = UNSET

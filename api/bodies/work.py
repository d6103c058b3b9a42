"""Bodies of `/api/v1/work`. Apart from the handler, as those of every resource.

Tested by tests/cluster/test_command_work.py.
"""

from typing import Annotated

from msgspec import Meta, Struct

from api.bodies.fields import Amount, Count, MaybeTimestamp, Text

Worker = Annotated[
    Amount, Meta(description="The worker process of the member that does the work.", examples=[0])
]


class WorkBody(Struct, frozen=True, kw_only=True):
    """One background work of a process, which takes one step after the other."""

    worker: Worker
    name: Annotated[Text, Meta(description="Name of the work.", examples=["scrub"])]
    target: Annotated[
        Text, Meta(description='The member that the work is for, or "" for none.', examples=["c2"])
    ]
    state: Annotated[
        str,
        Meta(
            description=(
                "working during a step; waiting for the next step; failing while it pauses "
                "after a failed step."
            ),
            examples=["waiting"],
            extra_json_schema={"enum": ["working", "waiting", "failing"]},
        ),
    ]
    steps: Annotated[Amount, Meta(description="Number of steps that have ended.", examples=[118])]
    failures: Annotated[Amount, Meta(description="Number of steps that failed.", examples=[2])]
    failures_in_row: Annotated[
        Amount, Meta(description="Number of failures since the last successful step.", examples=[0])
    ]
    reason: Annotated[
        Text, Meta(description='Why the last step failed, or "" if it succeeded.', examples=["No leader."])
    ]
    began_at: Annotated[
        MaybeTimestamp, Meta(description=('When the last step began, or "" before the first step.'))
    ]
    took_ms: Annotated[Amount, Meta(description="Duration of the last completed step.", examples=[12])]
    failed_at: Annotated[MaybeTimestamp, Meta(description='When a step last failed, or "" for never.')]
    next_at: Annotated[
        MaybeTimestamp,
        Meta(
            description=(
                'When the next step is due, or "" if a step is running or an event starts the next one.'
            )
        ),
    ]


class WorkList(Struct, frozen=True, kw_only=True):
    """The background work of one member."""

    count: Count
    work: Annotated[list[WorkBody], Meta(description="The work, by worker and name.")]
    silent_workers: Annotated[
        list[Worker],
        Meta(description="Worker processes of the member that do not answer.", examples=[[2]]),
    ]

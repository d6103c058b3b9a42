"""Bodies of `/api/v1/work`. Apart from the handler, as those of every resource."""

from typing import Annotated

from msgspec import Meta, Struct

from api.bodies.fields import Amount, Count, MaybeTimestamp, Text

Worker = Annotated[Amount, Meta(description="Which worker process of the member does it.", examples=[0])]


class WorkBody(Struct, frozen=True, kw_only=True):
    """One background work of a process, which takes one step after the other."""

    worker: Worker
    name: Annotated[Text, Meta(description="What it does.", examples=["scrub"])]
    target: Annotated[Text, Meta(description='The member that it is for; "" for none.', examples=["c2"])]
    state: Annotated[
        str,
        Meta(
            description="working while a step lasts; waiting for the next; failing while it rests after a "
            "step that failed.",
            examples=["waiting"],
            extra_json_schema={"enum": ["working", "waiting", "failing"]},
        ),
    ]
    steps: Annotated[Amount, Meta(description="Steps that have ended.", examples=[118])]
    failures: Annotated[Amount, Meta(description="Those of them that failed.", examples=[2])]
    failures_in_row: Annotated[
        Amount, Meta(description="Failures since a step went well the last time.", examples=[0])
    ]
    reason: Annotated[
        Text, Meta(description='Why the last step failed; "" if it went well.', examples=["No leader."])
    ]
    began_at: Annotated[MaybeTimestamp, Meta(description='When the last step began; "" before the first.')]
    took_ms: Annotated[Amount, Meta(description="How long the last step that ended took.", examples=[12])]
    failed_at: Annotated[MaybeTimestamp, Meta(description='When a step failed the last time; "" for never.')]
    next_at: Annotated[
        MaybeTimestamp,
        Meta(description='When the next step is due; "" if one lasts, or an event begins it.'),
    ]


class WorkList(Struct, frozen=True, kw_only=True):
    """The background work of one member."""

    count: Count
    work: Annotated[list[WorkBody], Meta(description="The work, by worker and name.")]
    silent_workers: Annotated[
        list[Worker],
        Meta(description="Worker processes of the member that do not answer.", examples=[[2]]),
    ]

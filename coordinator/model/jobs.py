"""The background jobs that there are: names, what they do, when they run by themselves. No I/O here.

`coordinator.reconcile.job_runs` does the work, on the leader.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ca.errors import InvalidRequest, NotFound
from coordinator.model.bounds import Text

EXPIRE = "expire"
SNAPSHOT = "snapshot"
REPAIR = "repair"
DRAIN = "drain"
REBALANCE = "rebalance"
TRIM = "trim"
GC = "gc"
SCRUB = "scrub"
COMPARE = "compare"
BY_THE_CLOCK = frozenset({EXPIRE, GC})  # what they end because its time is over is gone
GRACE_S_MAX = 366 * 86_400
SCHEDULE_S_MAX = 366 * 86_400

GraceSeconds = Annotated[int, Meta(ge=0, le=GRACE_S_MAX)]


class JobParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a run may be given; each job takes some of these."""

    node_id: Text = ""
    yes_really: bool = False
    grace_s: GraceSeconds | None = None

    def grace_ms(self, default_ms: int) -> int:
        """How long a blob is kept that no file refers to."""
        return default_ms if self.grace_s is None else self.grace_s * 1000


class JobKind(Struct, frozen=True, kw_only=True):
    """A job that an admin may trigger.

    `schedule_s` 0: it runs only then, else also every so many seconds, if there is something to do. `takes`:
    which of the JobParameters.
    """

    name: str
    description: str
    schedule_s: float = 0.0
    takes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Amounts:
    """How far a run is, whatever its job calls that. `left` is None while the job does not know it."""

    looked: int
    done: int
    left: int | None
    size_bytes: int


def amounts_of(result: Mapping[str, object]) -> Amounts:
    """From the result of a run. What a job counts as done is the last step of its work."""
    counts = {name: value for name, value in result.items() if isinstance(value, int)}

    def first(*names: str) -> int:
        return next((counts[name] for name in names if name in counts), 0)

    return Amounts(
        looked=first("looked", "looked_at", "blobs", "done"),
        done=first("done", "dropped", "released", "copied", "looked"),
        left=counts.get("left"),
        size_bytes=first("bytes", "blob_bytes"),
    )


JOBS = (
    JobKind(
        name=EXPIRE,
        description=(
            "Ends what is past its time: uploads, retention periods, tombstones, permissions, public tokens"
            " and join tokens. By itself it runs only when something is due."
        ),
        schedule_s=60.0,
    ),
    JobKind(
        name=SNAPSHOT,
        description=(
            "Copies all metadata to a file in the directory backups/ of the leading coordinator, for"
            " `filestore coordinator restore`. The newest seven are kept. Where its offsite.json says, it is"
            " sent too, by itself once a day."
        ),
    ),
    JobKind(
        name=REPAIR,
        description=(
            "Makes new replicas of blobs that lack some, the most endangered first. By itself it runs as soon"
            " as there are any that can be helped."
        ),
        schedule_s=2.0,
    ),
    JobKind(
        name=DRAIN,
        description=(
            "Empties draining nodes: each replica leaves when enough others count. By itself it runs while"
            " one of them holds anything."
        ),
        schedule_s=5.0,
        takes=("node_id",),
    ),
    JobKind(
        name=REBALANCE,
        description=(
            "Moves replicas from fuller nodes to emptier ones. By itself it runs when used space differs by"
            " more than a tenth."
        ),
        schedule_s=600.0,
    ),
    JobKind(
        name=TRIM,
        description=(
            "Releases replicas of blobs that have more than are wanted, as after a node came back, or the"
            " same content was uploaded several times. By itself it runs while it finds some."
        ),
        schedule_s=5.0,
    ),
    JobKind(
        name=GC,
        description=(
            "Deletes blobs that no file has referred to for a day (grace_s). It stops when that is more than"
            " a tenth of all, unless yes_really is given."
        ),
        schedule_s=3600.0,
        takes=("grace_s", "yes_really"),
    ),
    JobKind(
        name=SCRUB,
        description="Has nodes read again what they have not read for long, and find damage.",
        schedule_s=86_400.0,
        takes=("node_id", "yes_really"),
    ),
    JobKind(
        name=COMPARE,
        description=(
            "Has nodes compare their disks with the log: what is missing is made again, what is unknown put"
            " aside. A node that comes back does so before its replicas count."
        ),
        takes=("node_id", "yes_really"),
    ),
)
_BY_NAME = {job.name: job for job in JOBS}


def job_kind(name: str) -> JobKind:
    """The job of this name. Raises NotFound."""
    if (kind := _BY_NAME.get(name)) is None:
        raise NotFound(f"There is no such job. There are: {', '.join(sorted(_BY_NAME))}.")
    return kind


def check_parameters(kind: JobKind, parameters: str) -> None:
    """Raises InvalidRequest unless `parameters` is a JSON object that the job understands."""
    try:
        given = msgspec.json.decode(parameters, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest("parameters: a JSON object is expected.") from error
    if unknown := sorted(set(given) - set(kind.takes)):
        taken = ", ".join(kind.takes) or "nothing"
        raise InvalidRequest(f"{unknown[0]}: the job {kind.name} takes {taken}.")
    decode_parameters(parameters)


def decode_parameters(parameters: str) -> JobParameters:
    """What a run was given. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(parameters, type=JobParameters)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"parameters: {error}") from error


def check_schedules(schedules: Mapping[str, float]) -> None:
    """Raises InvalidRequest for a job that there is not."""
    for name in schedules:
        if name not in _BY_NAME:
            raise InvalidRequest(f"schedules: there is no job {name}.")

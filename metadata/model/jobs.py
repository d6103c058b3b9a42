"""The background jobs: what each does, accepts and counts, and when it runs automatically.

No I/O here. `coordinator.reconcile.jobs` has the work of each job, and knows whether there is any. A
coordinator does not start if the two lists differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ca.errors import InvalidRequest, NotFound
from runtime.bounds import Text

GRACE_S_MAX = 366 * 86_400
SCHEDULE_S_MAX = 366 * 86_400

GraceSeconds = Annotated[int, Meta(ge=0, le=GRACE_S_MAX)]


class JobParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters of a run. Each job accepts some of them."""

    node_id: Text = ""
    yes_really: bool = False
    grace_s: GraceSeconds | None = None

    def grace_ms(self, default_ms: int) -> int:
        """How long a blob is kept that no file refers to."""
        return default_ms if self.grace_s is None else self.grace_s * 1000


@dataclass(frozen=True, slots=True)
class Amounts:
    """The progress of a run, independent of the job's names for it. `left` is None while unknown."""

    looked: int
    done: int
    left: int | None
    size_bytes: int


class JobKind(Struct, frozen=True, kw_only=True):
    """A job that an admin may trigger.

    `schedule_s`: if not 0, the job also runs at this interval if there is something to do. `takes`: the
    accepted JobParameters. `ends_by_the_clock`: the job waits while the clock is in doubt, because what
    it expires is lost. `looked`, `done`, `size_bytes` are the names of such counts in a result; the first
    existing one is used.
    """

    name: str
    description: str
    schedule_s: float = 0.0
    takes: tuple[str, ...] = ()
    ends_by_the_clock: bool = False
    looked: tuple[str, ...] = ("looked", "looked_at", "blobs", "done")
    done: tuple[str, ...] = ("done", "dropped", "released", "copied", "looked")
    size_bytes: tuple[str, ...] = ("bytes", "blob_bytes")

    def amounts(self, result: Mapping[str, object]) -> Amounts:
        """Return the amounts in the result of a run."""
        counts = {name: value for name, value in result.items() if isinstance(value, int)}

        def first(names: tuple[str, ...]) -> int:
            return next((counts[name] for name in names if name in counts), 0)

        return Amounts(first(self.looked), first(self.done), counts.get("left"), first(self.size_bytes))


EXPIRE: Final = JobKind(
    name="expire",
    description=(
        "Expires uploads, retention periods, tombstones, files in the trash, protections, permissions, "
        "public tokens and join tokens whose time has passed. Runs automatically when something is due."
    ),
    schedule_s=60.0,
    ends_by_the_clock=True,
)
SNAPSHOT: Final = JobKind(
    name="snapshot",
    description=(
        "Writes a copy of all metadata into backups/ on the leading coordinator, once a day, for `filestore "
        "coordinator restore`. Keeps the newest seven, and the content that they refer to for some days. If "
        "offsite.json is configured, also sends the copy there."
    ),
    schedule_s=86_400.0,
)
REHEARSE: Final = JobKind(
    name="rehearse",
    description=(
        "Fetches the newest snapshot from the place in offsite.json, and restores it into a scratch "
        "directory on the leading coordinator, which is deleted again. Runs once a week if there is such a "
        "place."
    ),
    schedule_s=7 * 86_400.0,
)
REPAIR: Final = JobKind(
    name="repair",
    description=(
        "Creates the missing replicas of blobs, starting with the most endangered blobs. Runs "
        "automatically when there are any that it can repair."
    ),
    schedule_s=2.0,
)
DRAIN: Final = JobKind(
    name="drain",
    description=(
        "Empties draining nodes. Each replica leaves as soon as enough others exist. Runs "
        "automatically while a draining node holds anything."
    ),
    schedule_s=5.0,
    takes=("node_id",),
)
REBALANCE: Final = JobKind(
    name="rebalance",
    description=(
        "Moves replicas from fuller nodes to emptier ones. Runs automatically when their used space "
        "differs by more than a tenth."
    ),
    schedule_s=600.0,
)
TRIM: Final = JobKind(
    name="trim",
    description=(
        "Deletes surplus replicas, for example after a node has come back, or after the same content "
        "was uploaded several times. Runs automatically while it finds some."
    ),
    schedule_s=5.0,
)
GC: Final = JobKind(
    name="gc",
    description=(
        "Deletes blobs that no file has used for a day (grace_s). Stops if that would delete more than "
        "a tenth of all blobs, unless yes_really is given."
    ),
    schedule_s=3600.0,
    takes=("grace_s", "yes_really"),
    ends_by_the_clock=True,
)
SCRUB: Final = JobKind(
    name="scrub",
    description="Makes nodes read the content that was not checked recently, to find damage.",
    schedule_s=86_400.0,
    takes=("node_id", "yes_really"),
)
COMPARE: Final = JobKind(
    name="compare",
    description=(
        "Makes nodes compare their disks with the log. Missing replicas are created again, and unknown "
        "ones are quarantined. A node that comes back does this before its replicas count."
    ),
    takes=("node_id", "yes_really"),
)
FREEZE: Final = JobKind(
    name="freeze",
    description=(
        "Makes nodes store replicas as compressed chunks, each chunk once per node (cold): backups and "
        "project files after a day, images after 14 days without a read, or as their bucket says. "
        "Replicas that are read often become whole files again."
    ),
    takes=("node_id",),
)
THAW: Final = JobKind(
    name="thaw",
    description="Makes nodes store all cold replicas as whole files again.",
    takes=("node_id",),
)
JOBS: Final = tuple(kind for kind in list(vars().values()) if isinstance(kind, JobKind))
_BY_NAME: Final = {job.name: job for job in JOBS}


def amounts_of(job_name: str, result: Mapping[str, object]) -> Amounts:
    """Return the amounts of a run of this job; for an unknown job, use the common names of counts."""
    return _BY_NAME.get(job_name, JobKind(name=job_name, description="")).amounts(result)


def job_kind(name: str) -> JobKind:
    """The job of this name. Raises NotFound."""
    if (kind := _BY_NAME.get(name)) is None:
        raise NotFound(f"No such job. The jobs are: {', '.join(sorted(_BY_NAME))}.")
    return kind


def check_parameters(kind: JobKind, parameters: str) -> None:
    """Raises InvalidRequest unless `parameters` is a JSON object that the job understands."""
    try:
        given = msgspec.json.decode(parameters, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest("parameters: expected a JSON object.") from error
    if unknown := sorted(set(given) - set(kind.takes)):
        taken = ", ".join(kind.takes) or "nothing"
        raise InvalidRequest(f"{unknown[0]}: unknown parameter. The job {kind.name} takes {taken}.")
    decode_parameters(parameters)


def decode_parameters(parameters: str) -> JobParameters:
    """Decode the parameters of a run. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(parameters, type=JobParameters)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"parameters: {error}") from error


def check_schedules(schedules: Mapping[str, float]) -> None:
    """Raises InvalidRequest for a job that there is not."""
    for name in schedules:
        if name not in _BY_NAME:
            raise InvalidRequest(f"schedules: no such job: {name}.")


class Expired(Struct, frozen=True, kw_only=True):
    """Count what one Expire ended, in rows. `more`: it stopped at its bound."""

    uploads: int = 0
    retained: int = 0
    tombstones: int = 0
    permissions: int = 0
    public_tokens: int = 0
    join_tokens: int = 0
    burials: int = 0
    trashed: int = 0
    protections: int = 0
    more: bool = False

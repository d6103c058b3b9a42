"""The background jobs that there are: names, what they do, when they run by themselves. No I/O here.

`coordinator.job_runs` does the work, on the leader.
"""

import msgspec
from msgspec import Struct

from ca.errors import InvalidRequest, NotFound

EXPIRE = "expire"
SNAPSHOT = "snapshot"


class JobKind(Struct, frozen=True, kw_only=True):
    """A job that an admin may trigger. `schedule_s` 0: it runs only then, else also every so many seconds."""

    name: str
    description: str
    schedule_s: float = 0.0


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
            " `filestore coordinator restore`. The newest seven are kept."
        ),
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
    if given:
        raise InvalidRequest(f"{sorted(given)[0]}: the job {kind.name} takes no parameters.")

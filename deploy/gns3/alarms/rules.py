"""Decide what needs attention about the backups of a server, by its reports. Pure.

A run knows what failed, and writes that into its report. Only what depends on the time is decided here:
whether runs end, and whether a backup is known to be current. `api/console/static/lab-alarms.js` has the same
rules for the console; `tests/unit/deploy/gns3/alarms/cases.json` has the cases of both.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

OVERDUE_S: Final = 26 * 3600  # a night, its random delay of half an hour, and an hour and a half for the run

NO_RUN: Final = "no_run"
RUN_FAILED: Final = "run_failed"
OVERDUE: Final = "overdue"
FAILED: Final = "failed"
GONE: Final = "gone"
NO_BACKUP: Final = "no_backup"
CHECK_FAILED: Final = "check_failed"
DAMAGED: Final = "damaged"


class Alarm(Struct, frozen=True, kw_only=True):
    """A fact that needs attention. `project_id`: "" if it is about the whole server.

    `since`: the time that belongs behind the text, RFC 3339; "" for none.
    """

    code: str
    text: str
    project_id: str = ""
    name: str = ""
    since: str = ""


class ReportedProject(Struct, frozen=True, kw_only=True):
    """A project as the last run left it. `good_at`: when its backup was last known to be current.

    `status`: the result of the last run that tried it.
    """

    name: str
    good_at: str
    status: str = ""


class RunReport(Struct, frozen=True, kw_only=True):
    """The report of the runs of one server. `kind`: which backups the last run of all projects has made.

    `ended_at`: when that run ended. `alarms`: what runs know to need attention, at any time.
    """

    version: int = 1
    server_id: str
    server: str
    kind: str
    overdue_after_s: float
    written_at: str
    ended_at: str
    projects: Mapping[str, ReportedProject]
    alarms: tuple[Alarm, ...] = ()


class CheckVerdict(Struct, frozen=True, kw_only=True):
    """The result of `verify` for a backup. `error`: "" if no problem was found."""

    project_id: str
    name: str
    kind: str
    at: str
    error: str = ""


class CheckReport(Struct, frozen=True, kw_only=True):
    """The report of the checks of one server's backups, by their file_uuids."""

    version: int = 1
    server_id: str
    server: str
    backups: Mapping[str, CheckVerdict]


def alarms_of(
    run: RunReport | None, checks: CheckReport | None, newest: Collection[str], *, now_s: float
) -> list[Alarm]:
    """Return the alarms of a server by its reports, if it has them. `now_s`: seconds since 1970.

    `newest`: the file_uuids of the newest backups of each project. Checks of older ones count no more.
    """
    of_runs = [*_of_time(run, now_s), *run.alarms] if run is not None else []
    return [*of_runs, *_of_checks(checks, newest)]


def _of_time(run: RunReport, now_s: float) -> Iterator[Alarm]:
    if _is_old(run.ended_at, run.overdue_after_s, now_s):
        yield Alarm(code=NO_RUN, text="No run of all projects has ended", since=run.ended_at)
    for project_id, each in run.projects.items():
        if _is_old(each.good_at, run.overdue_after_s, now_s):
            running = "Its nodes ran during the last run. " if each.status == "running" else ""
            text = f"{running}No backup is known to be current"
            yield Alarm(code=OVERDUE, text=text, project_id=project_id, name=each.name, since=each.good_at)


def _of_checks(checks: CheckReport | None, newest: Collection[str]) -> Iterator[Alarm]:
    for file_uuid, each in (checks.backups if checks is not None else {}).items():
        if each.error and file_uuid in newest:
            text = f"The last check of the newest backup failed: {each.error}"
            yield Alarm(code=CHECK_FAILED, text=text, project_id=each.project_id, name=each.name)


def _is_old(at: str, after_s: float, now_s: float) -> bool:
    """Whether a time is longer ago, or as far in the future, which a wrong clock leaves; "" is never."""
    try:
        return abs(now_s - datetime.fromisoformat(at).astimezone(UTC).timestamp()) > after_s
    except ValueError:
        return True

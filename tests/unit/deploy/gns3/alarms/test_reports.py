"""What the report of a run says, by its journal."""

from pathlib import Path

import pytest

from deploy.gns3 import journal
from deploy.gns3.alarms.reports import run_report
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.records import LabProject

CLUSTER = "0123456789abcdef"
LAB = ServerIdentity("9f86d081884c7d65", "lab")
P1, P2 = LabProject(project_id="p1", name="one"), LabProject(project_id="p2", name="two")
FOLDER = LabProject(project_id="gns3-server-configuration", name="server configuration")
NIGHT, DAY_S = 1_800_000_000.0, 86400.0


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def alarms(remembered: journal.Journal) -> list[tuple[str, str]]:
    return [(each.code, each.project_id) for each in run_report(remembered, LAB, now_s=NIGHT).alarms]


def test_unchanged_project_is_current_when_a_run_has_looked_at_it() -> None:
    for night in (NIGHT, NIGHT + DAY_S):
        with journal.opened(LAB, CLUSTER) as remembered:
            remembered.expect("full", overdue_after_s=93600)
            remembered.seen([P1], at=night)
            remembered.good("p1", at=night, kind="full")
            remembered.note_result(P1, kind="full", status="unchanged", error="", at=night)
            remembered.note_end("", at=night, of_all=True)
    with journal.opened(LAB, CLUSTER) as remembered:
        report = run_report(remembered, LAB, now_s=night)
    assert (report.kind, report.server, report.alarms) == ("full", "lab", ())
    assert report.projects["p1"].good_at == report.ended_at == "2027-01-16T08:00:00.000Z"


def test_result_is_an_alarm_until_the_next_good_one() -> None:
    with journal.opened(LAB, CLUSTER) as remembered:
        remembered.expect("export", overdue_after_s=93600)
        remembered.seen([P1, P2], at=NIGHT)
        remembered.not_good("p1", kind="export", lacks_backup=True)
        for project, status in ((P1, "failed"), (P2, "stored")):
            remembered.note_result(
                project, kind="export", status=status, error="conflict: x" * (project == P1), at=NIGHT
            )
        remembered.note_end("unavailable: no answer", at=NIGHT, of_all=False)
        assert alarms(remembered) == [("run_failed", ""), ("failed", "p1"), ("no_backup", "p1")]
    with journal.opened(LAB, CLUSTER) as remembered:
        remembered.note_result(P1, kind="export", status="stored", error="", at=NIGHT)
        remembered.seen([P1], at=NIGHT)
        remembered.note_end("", at=NIGHT, of_all=True)
        assert alarms(remembered) == [("gone", "p2")]


def test_export_by_hand_makes_no_project_good_that_full_backups_are_expected_of() -> None:
    with journal.opened(LAB, CLUSTER) as remembered:
        remembered.expect("full", overdue_after_s=93600)
        remembered.seen([P1], at=NIGHT)
        remembered.not_good("p1", kind="full", lacks_backup=True)
        remembered.note_result(P1, kind="full", status="running", error="", at=NIGHT)
        remembered.good("p1", at=NIGHT + DAY_S, kind="export")
        remembered.not_good("p1", kind="export", lacks_backup=True)
        remembered.note_result(P1, kind="export", status="stored", error="", at=NIGHT + DAY_S)
        assert alarms(remembered) == [("no_backup", "p1")]
        assert remembered.good_at() == {"p1": NIGHT}
        remembered.good("p1", at=NIGHT + DAY_S, kind="full")
        remembered.note_result(P1, kind="full", status="stored", error="", at=NIGHT + DAY_S)
        assert (alarms(remembered), remembered.good_at()) == ([], {"p1": NIGHT + DAY_S})


def test_folders_of_the_server_count_as_long_as_runs_of_all_back_them_up() -> None:
    apart = ServerIdentity(f"{LAB.id}-server", "lab")
    with journal.opened(LAB, CLUSTER) as remembered, journal.opened(apart, CLUSTER) as folders:
        remembered.expect("full", overdue_after_s=93600)
        folders.good(FOLDER.project_id, at=NIGHT)
        folders.note_result(FOLDER, kind="full", status="failed", error="forbidden", at=NIGHT)
        remembered.note_folders(folders)
        assert alarms(remembered) == [("failed", FOLDER.project_id)]
        assert remembered.good_at() == {FOLDER.project_id: NIGHT}
        remembered.note_folders(None)
        assert (alarms(remembered), remembered.good_at()) == ([], {})

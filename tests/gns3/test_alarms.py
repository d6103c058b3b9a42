"""What needs attention, by the reports that runs and checks leave in the store."""

import json
import secrets
from datetime import datetime
from typing import Any

import pytest

from deploy.processes import wait_until
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_damage import damage, wait_noticed
from tests.gns3.test_images import MIB, an_image, qcow2
from tests.gns3.test_local import local, settle
from tests.gns3.test_nights import keeper, lab
from tests.gns3.test_restore import with_image

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
__all__ = ["keeper", "lab"]  # fixtures


def server_id(keeper: Operator) -> str:
    [row] = keeper.json("servers")
    return str(row["server_id"])


def status(keeper: Operator) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Code and project of each alarm of the server, and the row."""
    code, out, err = keeper.run("status", "--from", server_id(keeper), "--json")
    [row] = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (10 if row["alarms"] else 0, "")
    return [(each["code"], each["name"]) for each in row["alarms"]], row


def report_files(keeper: Operator) -> list[dict[str, Any]]:
    """The records of all reports of the server."""
    named = f"gns3-report-{server_id(keeper)}"
    found: list[dict[str, Any]] = keeper.store.get(f"/backups?filename={named}").json["backups"]
    return found


def test_each_run_replaces_the_report_which_says_how_current_each_project_is(
    keeper: Operator, lab: LabServer
) -> None:
    one_id, two_id = lab.make_project("one"), lab.make_project("two")
    assert keeper.backup("one") == {"one": "stored"}
    code, _, err = keeper.run("status", "--from", server_id(keeper))
    assert (code, "No report is stored" in err) == (4, True), err  # nothing is expected of backups by hand
    assert keeper.backup("--all") == {"one": "unchanged", "two": "stored"}
    alarms, first = status(keeper)
    assert (alarms, first["kind"], set(first["projects"])) == ([], "export", {one_id, two_id})
    assert keeper.backup("--all") == {"one": "unchanged", "two": "unchanged"}
    alarms, second = status(keeper)
    for project_id in (one_id, two_id):
        assert first["ended_at"] < second["projects"][project_id] < second["ended_at"]
    [record] = report_files(keeper)
    assert (record["status"], record["protected_until"]) == ("available", "")
    trash = keeper.store.get("/trash").json["files"]
    assert not [each for each in trash if each["filename"] == record["filename"]]
    told = keeper.do("status", "--from", server_id(keeper))
    assert told.startswith(f"lab ({server_id(keeper)}): 2 projects, exports, last run ")


def test_report_is_exempt_from_the_protection_of_its_bucket(keeper: Operator, lab: LabServer) -> None:
    lab.make_project("one")
    bucket = f"protected {secrets.token_hex(3)}"
    created = keeper.store.post("/buckets", {"name": bucket})
    changed = keeper.store.request("PATCH", f"/buckets/{created.json['bucket_id']}", body={"protect_days": 1})
    assert changed.status == 200, changed.body
    for _ in range(2):
        keeper.do("backup", "--all", "--bucket", bucket)
    [record] = report_files(keeper)
    assert (record["bucket_id"], record["protected_until"]) == (created.json["bucket_id"], "")


def test_backup_is_overdue_by_the_time_alone(keeper: Operator, lab: LabServer) -> None:
    lab.make_project("one")
    keeper.do("backup", "--all", "--overdue-after", "1s")
    wait_until(lambda: len(status(keeper)[0]) == 2, what="an alarm", timeout_s=30)
    alarms, row = status(keeper)
    assert alarms == [("no_run", ""), ("overdue", "one")]
    assert [each["since"] for each in row["alarms"]] == [row["ended_at"], *row["projects"].values()]
    keeper.do("backup", "--all")
    assert status(keeper)[0] == []


def test_run_that_reaches_no_server_is_an_alarm_and_keeps_the_times(keeper: Operator, lab: LabServer) -> None:
    lab.make_project("one")
    keeper.do("backup", "--all")
    _, before = status(keeper)
    lab.kill()
    assert keeper.run("backup", "--all", "--deadline", "1")[0] == 6
    alarms, row = status(keeper)
    assert alarms == [("run_failed", "")]
    assert (row["ended_at"], row["projects"]) == (before["ended_at"], before["projects"])
    told = keeper.run("status", "--from", server_id(keeper))[1]
    assert "run_failed: The last run failed: unavailable: GNS3 server lab" in told
    lab.start()
    keeper.do("backup", "--all")
    assert status(keeper)[0] == []


def test_project_that_fails_or_is_gone_is_an_alarm_until_it_is_mended(
    keeper: Operator, lab: LabServer
) -> None:
    bad_id = lab.make_project("bad")
    lab.make_project("good")
    second = lab.projects_path / bad_id / "second.gns3"
    second.write_bytes((lab.projects_path / bad_id / "bad.gns3").read_bytes())
    keeper.backup("--all", codes=[5])
    assert keeper.backup("good") == {"good": "unchanged"}  # and the report has both
    alarms, row = status(keeper)
    assert alarms == [("failed", "bad"), ("no_backup", "bad")]
    assert "Its folder has 2 topologies" in row["alarms"][0]["text"]
    second.unlink()
    keeper.do("backup", "--all")
    assert status(keeper)[0] == []
    lab.call("DELETE", f"/projects/{bad_id}")
    assert keeper.run("backup", "--all")[0] == 4
    alarms, row = status(keeper)
    assert alarms == [("gone", "bad")]
    assert datetime.fromisoformat(row["alarms"][0]["since"])
    keeper.do("forget", "bad")
    keeper.do("backup", "--all")
    assert (status(keeper)[0], len(row["projects"])) == ([], 2)


def test_export_is_no_full_backup_where_one_is_expected(keeper: Operator, lab: LabServer) -> None:
    project_id = lab.make_project("runs")
    keeper.do("backup", "--all")
    lab.start_nodes(project_id)
    settle()
    assert keeper.backup("--all", "--leave-running", *local(lab)) == {"runs": "running"}
    alarms, row = status(keeper)
    assert (alarms, row["kind"]) == ([("no_backup", "runs")], "full")
    assert row["alarms"][0]["text"] == "The project has no full backup"
    lab.call("POST", f"/projects/{project_id}/nodes/stop")
    assert keeper.backup("runs") == {"runs": "unchanged"}  # an export by hand
    assert status(keeper)[0] == [("no_backup", "runs")]
    settle()
    keeper.do("backup", "--all", *local(lab))
    assert status(keeper)[0] == []


def test_failed_check_is_an_alarm_until_a_good_one_or_a_newer_backup(
    keeper: Operator, lab: LabServer
) -> None:
    name, image = f"checked {secrets.token_hex(3)}", an_image()
    lab.upload_image(image, qcow2(MIB))
    project_id = with_image(lab, name, image)
    keeper.do("backup", "--all")  # without its image
    assert keeper.run("verify", project_id)[0] == 4
    alarms, row = status(keeper)
    assert alarms == [("check_failed", name)]
    assert image in row["alarms"][0]["text"]
    keeper.do("images", "push", image)
    keeper.do("verify", project_id)
    assert status(keeper)[0] == []
    assert len(report_files(keeper)) == 2


def test_damage_of_the_newest_backup_is_an_alarm_until_the_next_run(keeper: Operator, lab: LabServer) -> None:
    lab.make_project("lost", {"project-files/disk": secrets.token_bytes(MIB)})
    [row] = keeper.json("backup", "--all")
    sha256 = keeper.store.get(f"/project-files/{row['file_uuid']}").json["blob_sha256"]
    damage(keeper.store, sha256, MIB // 2)
    assert keeper.run("verify", row["project_id"], "--read-data")[0] == 5
    wait_noticed(keeper.store, sha256)
    assert status(keeper)[0] == [("check_failed", "lost"), ("damaged", "lost")]
    assert keeper.backup("--all") == {"lost": "stored"}
    assert status(keeper)[0] == []
    keeper.store.request("DELETE", f"/files/{row['file_uuid']}?now=1")  # which other tests would find

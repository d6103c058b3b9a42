"""`filestore gns3 status` reads reports of others: names that are none, texts for a terminal, huge ones."""

import json

from deploy.gns3.alarms import reports
from tests.cluster.connections import client_of
from tests.cluster.harness import Cluster

OWNER = "reporter-of-nights"
SERVER_ID = "9f86d081884c7d65"
ESCAPE = "\x1b]0;mine\x07"
REPORT = {
    "version": 1,
    "server_id": SERVER_ID,
    "server": f"lab{ESCAPE}",
    "kind": "full",
    "overdue_after_s": 1e12,
    "written_at": "",
    "ended_at": ESCAPE,
    "projects": {"p1": {"name": ESCAPE, "good_at": ESCAPE}},
    "alarms": [
        {"code": f"failed{ESCAPE}", "text": ESCAPE, "project_id": "p1", "name": ESCAPE, "since": ESCAPE}
    ],
}


def status(cluster: Cluster) -> tuple[int, str]:
    done = cluster.filestore("gns3", "status", "--owner", OWNER)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def test_reports_of_others_are_text_and_bounded(cluster: Cluster) -> None:
    name, report = f"gns3-report-{SERVER_ID}.run.json", json.dumps(REPORT).encode()
    unread = [
        (f"gns3-report-{'z' * 16}.run.json", report),
        (name, b"no report"),
        (name, json.dumps(REPORT | {"version": 2}).encode()),
        (name, report.ljust(reports.REPORT_BYTES_MAX + 1)),
    ]
    with client_of(cluster, token=cluster.user_token(OWNER)) as client:
        for filename, content in unread:
            client.files.upload(content, kind="backup", filename=filename)
            assert status(cluster)[0] == 4, filename
        client.files.upload(report, kind="backup", filename=name)
    code, told = status(cluster)
    assert code == 10
    assert f"lab?]0;mine? ({SERVER_ID}): 1 projects, full backups, last run ?]0;mine?" in told
    assert "  failed?]0;mine?: ?]0;mine?: ?]0;mine? since ?]0;mine?" in told
    assert "\x1b" not in told

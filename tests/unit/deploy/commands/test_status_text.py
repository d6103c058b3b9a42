"""What `filestore status` and the other tables show of text from outside: the text, whatever is in it."""

from typing import Any

import pytest

from deploy.base.output import moment
from deploy.base.tables import table_console
from deploy.commands import status
from deploy.commands.status import print_status

ANSWER: dict[str, Any] = {
    "cluster": "lab",
    "files": 2,
    "blobs": 1,
    "blob_bytes": 1 << 30,
    "coordinators": [{"id": "c1", "role": "leader", "clock_offset_ms": 80}],
    "nodes": [
        {"id": "n1", "url": "https://[fd00::4]:7443", "state": "healthy", "clock_offset_ms": -599_974},
        {"id": "n2", "url": "https://10.0.0.2:7443", "state": ":warning:", "clock_offset_ms": None},
    ],
    "problems": ["The node [bold]n9[/bold] is down."],
    "findings": [{"problem": "The node [bold]n9[/bold] is down."}],
    "runs": [],
}


def test_text_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(ANSWER, at_s=0.0)
    shown = capsys.readouterr().out
    assert "https://[fd00::4]:7443" in shown
    assert "! The node [bold]n9[/bold] is down." in shown
    assert ":warning:" in shown


def test_clock_is_told_in_words_and_half_a_round_trip_is_no_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_status(ANSWER, at_s=0.0)
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("c1")).split()[-1] == "right"
    assert next(line for line in lines if line.startswith("n1")).endswith("10 min behind")


def test_damaged_files_are_named_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    file = {"file_uuid": "1", "filename": "[red]lab[/red].gns3p"}
    content = {"files": [file], "size_bytes": 1, "lost_ranges": [], "nodes": ["n1"]}
    table_console().print_table([""] * 5, status._contents([content]))
    assert "[red]lab[/red].gns3p" in capsys.readouterr().out


def test_problem_is_told_with_since_when_and_where_to_read_on(capsys: pytest.CaptureFixture[str]) -> None:
    known = {"problem": "The node n1 is down.", "since": "2026-11-26T20:00:00.000Z"}
    findings = [known | {"runbook": "FilestoreNodeDown"}, {"problem": "Other.", "runbook": "X", "since": ""}]
    print_status(ANSWER | {"findings": findings}, at_s=0.0)
    shown = capsys.readouterr().out
    assert (
        f"! The node n1 is down. (since {moment(known['since'])}, runbook: FilestoreNodeDown)\n"
        "! Other. (runbook: X)\n"
    ) in shown
    assert "n9" not in shown  # each once


def test_disk_of_a_node_that_nobody_has_heard_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    unheard = {"id": "n3", "url": "https://10.0.0.3:7443", "state": "unheard", "total_bytes": 0, "disk": "ok"}
    print_status(ANSWER | {"nodes": [unheard | {"heard_ms_ago": 0, "free_bytes": 0}]}, at_s=0.0)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("n3")]
    assert line.split() == ["n3", "https://10.0.0.3:7443", "unheard"]

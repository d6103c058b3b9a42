"""`filestore job ls` on a terminal of 100 columns, with every job and every outcome."""

import io
import sys
from typing import Any, Final

import pytest
from rich.cells import cell_len

from deploy.commands.jobs import print_jobs
from metadata.model.jobs import JOBS

COLUMNS: Final = 100
STATUSES: Final = ("running", "completed", "failed")


def listed(status: str) -> list[dict[str, Any]]:
    """What the API says of all jobs, each with a run that ended like this."""
    run = {"status": status, "started_at": "2026-11-30T12:00:00.000Z"}
    return [
        {
            "job_name": kind.name,
            "schedule_s": kind.schedule_s,
            "description": kind.description,
            "last_run": run,
        }
        for kind in JOBS
    ]


class Screen(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("status", STATUSES)
def test_list_of_jobs_fits_a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    screen = Screen()
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(sys, "stdout", screen)
    print_jobs(listed(status))
    lines = screen.getvalue().splitlines()
    assert [line for line in lines if cell_len(line) > COLUMNS] == []
    named = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert named == ["job", *(kind.name for kind in JOBS)]
    words = {word for line in lines for word in line.split()}
    assert status in words
    for kind in JOBS:
        first_sentence = kind.description.partition(". ")[0].rstrip(".")
        assert set(first_sentence.split()) <= words, kind.name

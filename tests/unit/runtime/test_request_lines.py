"""The line of an answer says the same whichever way it was written."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime import logs

PATHS = [
    "/api/v1/files/01930000-0000-7000-8000-00000000000a",
    '/api/v1/"}{"',
    "/api/v1/\\u000a",
    "/api/v1/\n\x1b[31m\x7f\x9b",
    "/api/v1/ä\u2028",
]


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """As it is without logs.setup, afterwards too."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def log(path: str) -> None:
    logs.log_request(
        logging.INFO,
        request_id="r-1",
        remote="::1",
        method="GET",
        path=path,
        status=206,
        size_bytes=7,
        duration_s=0.0012344,
    )


def log_call(text: str) -> None:
    logs.log_call(
        logging.INFO, request_id=text, caller="node-1", call="GetFile", status="", duration_s=0.0012344
    )


@pytest.mark.parametrize("log", [log, log_call])
@pytest.mark.parametrize("path", PATHS)
def test_line_of_an_answer_is_the_one_that_any_record_gets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    root_logger: logging.Logger,
    log: Callable[[str], None],
    path: str,
) -> None:
    with (tmp_path / "log").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.setup("node")
        log(path)
        root_logger.addHandler(logging.NullHandler())  # then it is a record like any other
        log(path)
    text = (tmp_path / "log").read_bytes()
    assert text.isascii()
    quick, ordinary = (json.loads(line) for line in text.splitlines())
    quick.pop("time")
    ordinary.pop("time")
    assert quick == ordinary
    assert list(quick) == list(ordinary)


def test_answers_below_the_level_are_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root_logger: logging.Logger
) -> None:
    with (tmp_path / "log").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.setup("node", "warning")
        log(PATHS[0])
    assert (tmp_path / "log").read_bytes() == b""


def test_stderr_that_is_no_file_gets_the_line_too(
    monkeypatch: pytest.MonkeyPatch, root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.setup("node")  # capsys stands for it in memory
    log(PATHS[0])
    assert json.loads(capsys.readouterr().err)["path"] == PATHS[0]


async def test_lines_of_answers_come_in_order_before_what_is_logged_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root_logger: logging.Logger
) -> None:
    with (tmp_path / "log").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.setup("node")
        for number in range(3 * logs.LINES_WAITING_MAX + 1):
            log(f"/{number}")
        root_logger.warning("after them")
        log("/last")
        shown = (tmp_path / "log").read_text().splitlines()
        await asyncio.sleep(0)  # the end of this turn
        text = (tmp_path / "log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    numbers = [f"/{number}" for number in range(3 * logs.LINES_WAITING_MAX + 1)]
    assert [line.get("path", line["message"]) for line in lines] == [*numbers, "after them", "/last"]
    assert text.splitlines()[: len(shown)] == shown
    assert len(shown) == len(numbers) + 1


async def test_lines_that_are_held_back_are_written_when_logging_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root_logger: logging.Logger
) -> None:
    with (tmp_path / "log").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.setup("node")
        log(PATHS[0])
        root_logger.handlers[0].flush()
        assert json.loads((tmp_path / "log").read_text())["path"] == PATHS[0]

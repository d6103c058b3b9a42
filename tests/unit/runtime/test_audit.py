"""The audit log: bounded, and whole whoever writes to it."""

import json
import multiprocessing
from pathlib import Path

from runtime.audit import AuditLog

FAILED = "failed_attempts.log"
WRITERS, LINES = 3, 200


def objects(paths: list[Path]) -> list[str]:
    return [json.loads(line)["object"] for path in paths for line in path.read_text().splitlines()]


def write(path: Path, writer: int, size_bytes_max: int, kept: int) -> None:
    log = AuditLog(path, rotated=kept, size_bytes_max=size_bytes_max)
    for number in range(LINES):
        log.record("act", principal="p", object=f"{writer}-{number}", outcome="ok", request_id="")
    log.close()


def test_full_log_is_moved_away_and_the_oldest_goes(tmp_path: Path) -> None:
    write(tmp_path / "audit.log", 0, 1000, 2)
    found = sorted(tmp_path.iterdir())
    assert [path.name for path in found] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(path.stat().st_size < 1200 for path in found)
    told = objects([tmp_path / "audit.log.2", tmp_path / "audit.log.1", tmp_path / "audit.log"])
    assert told == [f"0-{number}" for number in range(LINES - len(told), LINES)]
    assert len(told) > 10


def test_processes_that_share_a_log_lose_no_line_of_it_when_it_is_full(tmp_path: Path) -> None:
    """Each file holds a few lines, so that all of them find it full again and again."""
    path, kept = tmp_path / "audit.log", WRITERS * LINES
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write, args=(path, at, 500, kept)) for at in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    expected = [f"{at}-{number}" for at in range(WRITERS) for number in range(LINES)]
    assert sorted(objects(list(tmp_path.iterdir()))) == sorted(expected)


def test_failed_attempts_push_nothing_out_but_each_other(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", failed=AuditLog(tmp_path / FAILED, rotated=1, size_bytes_max=1000))
    log.record("act", principal="p", object="kept", outcome="ok", request_id="")
    for number in range(LINES):
        log.failed.record("authenticate", principal="-", object=str(number), outcome="no", request_id="")
    log.close()
    assert objects([tmp_path / "audit.log"]) == ["kept"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.log", FAILED, f"{FAILED}.1"]
    assert sum(path.stat().st_size for path in tmp_path.glob(f"{FAILED}*")) < 2400

"""Pages of the audit log: the newest entries first, each once, whatever the files are like."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ca.errors import InvalidRequest, Unavailable
from runtime import audit_pages
from runtime.audit import AuditLog
from runtime.audit_pages import AuditEntry, AuditFilter, AuditPage, AuditPages
from runtime.timestamps import rfc3339

AT_MS = 1_800_000_000_000
ROTATED = 9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def line(number: int, **fields: Any) -> bytes:
    """The entry of this number, a second after the one before."""
    entry = {
        "time": rfc3339(AT_MS + number * 1000),
        "action": "act",
        "principal": "ann",
        "object": f"file {number}",
        "outcome": "ok",
        "request_id": f"r{number}",
    }
    return json.dumps(entry | fields).encode() + b"\n"


def numbers(entries: list[AuditEntry]) -> list[int]:
    return [int(entry.object.split()[1]) for entry in entries]


def read(path: Path, limit: int = 1000, cursor: str = "", **wanted: Any) -> AuditPage:
    pages = AuditPages(AuditLog(path, rotated=ROTATED).paths)
    return asyncio.run(pages.read(AuditFilter(**wanted), limit=limit, cursor=cursor))


def all_of(path: Path, limit: int = 1000, **wanted: Any) -> list[int]:
    found: list[int] = []
    cursor = ""
    for _ in range(10_000):
        page = read(path, limit, cursor, **wanted)
        assert len(page.entries) <= limit
        found += numbers(page.entries)
        if not (cursor := page.next_cursor):
            return found
    raise AssertionError("pages without end")


def test_log_that_is_not_there_or_empty_has_no_entries(path: Path) -> None:
    assert read(path) == AuditPage([], "")
    path.touch()
    assert read(path) == AuditPage([], "")


def test_entries_are_those_that_were_recorded(path: Path) -> None:
    log = AuditLog(path)
    log.record(
        "delete_file",
        principal="ann",
        object="file 1",
        outcome="ok",
        request_id="r",
        client_address="192.0.2.1",
    )
    log.record("act", principal="\u00e4 \ud800\n", object='"x"', outcome="forbidden", request_id="")
    entries = read(path).entries
    assert [entry.action for entry in entries] == ["act", "delete_file"]
    assert (entries[0].principal, entries[0].object) == ("\u00e4 \ufffd\n", '"x"')
    assert (entries[1].outcome, entries[1].request_id) == ("ok", "r")
    assert [entry.client_address for entry in entries] == ["", "192.0.2.1"]
    log.close()


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_pages_go_over_all_files_without_gap_or_repeat(path: Path, limit: int) -> None:
    log = AuditLog(path, rotated=ROTATED, size_bytes_max=1000)
    for number in range(40):
        log.record("act", principal="p", object=f"file {number}", outcome="ok", request_id="")
    log.close()
    assert path.with_name("audit.log.3").exists()
    assert all_of(path, limit) == list(reversed(range(40)))


def test_entries_that_come_and_files_that_are_moved_away_shift_no_page(path: Path) -> None:
    path.write_bytes(b"".join(line(number) for number in range(10)))
    first = read(path, 4)
    assert numbers(first.entries) == [9, 8, 7, 6]
    path.rename(path.with_name("audit.log.1"))
    path.write_bytes(line(10))
    second = read(path, 4, first.next_cursor)
    assert numbers(second.entries) == [5, 4, 3, 2]
    path.with_name("audit.log.1").rename(path.with_name("audit.log.2"))
    assert numbers(read(path, 4, second.next_cursor).entries) == [1, 0]
    path.with_name("audit.log.2").unlink()
    assert read(path, 4, second.next_cursor) == AuditPage([], "")  # nothing older is left
    assert numbers(read(path).entries) == [10]


def test_file_that_is_moved_away_while_it_is_read_is_met_once(path: Path) -> None:
    path.write_bytes(line(0))
    os.link(path, path.with_name("audit.log.1"))
    assert all_of(path) == [0]


@pytest.mark.parametrize(
    "torn",
    [
        line(5)[:-20],
        line(5)[20:],
        b"\n\n\n",
        b"\x00" * 5000 + b"\n",
        b"\x00" * 300_000 + b"\n",
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b'{"time": "' + bytes(24) + b'"}\n',
        b'{"time": "2026-99-99T99:99:99.999Z"}\n',
        b'{"time": "2027-01-15T08:00:00.000Z"}\n',
        line(5, action=7),
        line(5, object=None),
        b"null\n17\n[]\n{}\n",
    ],
)
def test_torn_lines_are_passed_over(path: Path, torn: bytes) -> None:
    before, after = [line(number) for number in range(3)], [line(number) for number in range(6, 9)]
    glued = b"" if torn.endswith(b"\n") else b"\n"
    path.write_bytes(b"".join([*before, torn, glued, *after]))
    path.with_name("audit.log.1").write_bytes(torn + line(4)[:-7])
    assert all_of(path) == [8, 7, 6, 2, 1, 0]
    assert all_of(path, 1) == [8, 7, 6, 2, 1, 0]
    assert all_of(path, since_ms=AT_MS + 1000) == [8, 7, 6, 2, 1]


def test_lines_at_the_ends_of_blocks_are_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"".join(line(number) for number in range(20)))
    for block_bytes in (1, 2, 3, 50, 127, 128, 129):
        monkeypatch.setattr(audit_pages, "BLOCK_BYTES", block_bytes)
        assert numbers(read(path).entries) == list(reversed(range(20)))


def test_page_looks_at_so_much_and_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_pages, "SCAN_BYTES_MAX", 1000)
    monkeypatch.setattr(audit_pages, "BLOCK_BYTES", 300)
    path.write_bytes(line(0, principal="bob") + b"".join(line(number) for number in range(1, 50)))
    page = read(path, principal="bob")
    assert page.entries == []
    assert page.next_cursor
    assert all_of(path, principal="bob") == [0]
    path.write_bytes(line(0) + b"\x00" * 100_000 + b"\n" + line(1))
    assert all_of(path) == [1, 0]


def test_entries_are_narrowed(path: Path) -> None:
    uuid = "019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"
    path.write_bytes(
        line(0)
        + line(1, principal="bob")
        + line(2, action="delete_file")
        + line(3, object=f"file 3 {uuid} public token")
        + line(4, principal="bobby", object=f"file 4 {uuid}x", action="delete_files")
        + line(5, principal='"bob"')
        + line(6, object=f"file 6 {uuid}: read for user bob", principal="eve")
    )
    assert all_of(path, principal="bob") == [1]
    assert all_of(path, principal='"bob"') == [5]
    assert all_of(path, action="delete_file") == [2]
    assert all_of(path, target=uuid) == [6, 3]
    assert all_of(path, principal="ann", action="act") == [3, 0]
    assert all_of(path, principal="nobody") == []
    assert all_of(path, since_ms=AT_MS + 2000) == [6, 5, 4, 3, 2]
    assert all_of(path, until_ms=AT_MS + 2000) == [1, 0]
    assert all_of(path, since_ms=AT_MS + 1000, until_ms=AT_MS + 3000) == [2, 1]
    assert all_of(path, since_ms=1, until_ms=AT_MS * 2) == [6, 5, 4, 3, 2, 1, 0]


def test_what_is_much_older_ends_the_search_and_what_is_much_newer_is_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = [line(hour * 3600) for hour in range(9)]
    for number in range(3):  # the oldest file has the first three hours
        path.with_name(f"audit.log.{3 - number}").write_bytes(b"".join(hours[number * 3 : number * 3 + 3]))
    assert all_of(path, since_ms=AT_MS + 5 * 3_600_000) == [hour * 3600 for hour in (8, 7, 6, 5)]
    monkeypatch.setattr(audit_pages, "SCAN_BYTES_MAX", len(hours[0]) * 4)
    page = read(path, until_ms=AT_MS + 2 * 3_600_000)
    assert numbers(page.entries) == [3600, 0]


@pytest.mark.parametrize(
    "cursor", ["x", "1", "1-2", "1-2-3-4", "-1-2-3", "1-2-3\n", "\u0661-2-3", "1" * 17 + "-2-3"]
)
def test_malformed_cursor_is_refused(path: Path, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        read(path, cursor=cursor)


@pytest.mark.parametrize("place", ["0", "5", "999999999999"])
def test_cursor_to_nowhere_finds_nothing_or_less(path: Path, place: str) -> None:
    path.write_bytes(line(0))
    assert read(path, cursor=f"1-1-{place}") == AuditPage([], "")
    name = f"{AT_MS}-{path.stat().st_ino}"
    assert read(path, cursor=f"{name}-{place}") == AuditPage([], "")


def test_log_that_cannot_be_read_is_told(path: Path) -> None:
    path.mkdir()
    with pytest.raises(Unavailable, match="audit log"):
        read(path)


async def test_no_more_than_so_many_pages_are_asked_for_at_once(path: Path) -> None:
    path.write_bytes(line(0))
    pages = AuditPages(AuditLog(path, rotated=ROTATED).paths)
    asked = [
        asyncio.create_task(pages.read(AuditFilter(), limit=1)) for _ in range(audit_pages.WAITING_MAX + 3)
    ]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in done].count(Unavailable) == 3
    assert numbers((await pages.read(AuditFilter(), limit=1)).entries) == [0]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_log_of_failed_attempts_is_read_with_the_other_in_the_order_of_time(path: Path, limit: int) -> None:
    failed = path.with_name("failed_attempts.log")
    path.write_bytes(b"".join(line(number) for number in (0, 1, 4, 8)))
    failed.write_bytes(b"".join(line(number, action="authenticate") for number in (2, 3, 5, 6, 7, 9)))
    pages, found, cursor = AuditLog.of_people(path).pages, list[int](), ""
    for _ in range(20):
        page = asyncio.run(pages.read(AuditFilter(), limit=limit, cursor=cursor))
        assert len(page.entries) <= limit
        found += numbers(page.entries)
        for log in (path, failed):  # what comes meanwhile shifts nothing
            with log.open("ab") as file:
                file.write(line(100 + len(found)))
        if not (cursor := page.next_cursor):
            break
    assert found == list(reversed(range(10)))


def test_search_that_has_not_found_the_end_of_one_log_shows_nothing_older_of_the_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = path.with_name("failed_attempts.log")
    path.write_bytes(line(0, action="delete_file"))
    failed.write_bytes(line(1, action="delete_file") + b"".join(line(number) for number in range(2, 2000)))
    monkeypatch.setattr(audit_pages, "SCAN_BYTES_MAX", failed.stat().st_size // 3)
    monkeypatch.setattr(audit_pages, "BLOCK_BYTES", 1024)
    pages, found, cursor = AuditLog.of_people(path).pages, list[list[int]](), ""
    for _ in range(20):
        wanted = AuditFilter(action="delete_file")
        page = asyncio.run(pages.read(wanted, limit=10, cursor=cursor))
        found.append(numbers(page.entries))
        if not (cursor := page.next_cursor):
            break
    assert [number for page in found for number in page] == [1, 0]
    assert found[0] == []


def test_cursor_of_a_version_with_one_log_goes_on_in_that(path: Path) -> None:
    path.write_bytes(b"".join(line(number) for number in range(10)))
    cursor = read(path, 4).next_cursor
    path.with_name("failed_attempts.log").write_bytes(line(11))
    page = asyncio.run(AuditLog.of_people(path).pages.read(AuditFilter(), limit=100, cursor=cursor))
    assert (numbers(page.entries), page.next_cursor) == ([5, 4, 3, 2, 1, 0], "")

"""Read pages of the audit log, newest entries first, over all rotated files.

A page examines a bounded number of bytes, so it may be short or empty and still have a next one. A cursor
identifies a file by properties that survive rotation, and a position in it, so that new entries shift no
page. Several logs are merged by time; their cursor has a position in each. Torn and foreign lines are
skipped.

A machine's clock may be set back, so times need not rise along the log. A search by time finds entries if the
clock went back by at most CLOCK_BACK_MS.
"""

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ca.errors import InvalidRequest, Unavailable
from runtime.timestamps import parse_rfc3339, rfc3339

SCAN_BYTES_MAX: Final = 4 << 20  # of one page: some 20,000 lines
BLOCK_BYTES: Final = 64 << 10
LINE_BYTES_MAX: Final = 64 << 10  # a line of ours has a tenth of that
HEAD_BYTES: Final = 4096  # of a file, in which its first line is sought
CLOCK_BACK_MS: Final = 3_600_000
WAITING_MAX: Final = 8  # pages that are asked for at once; one is read at a time
END: Final = "end"  # in place of a place: nothing is left of that log
_PLACE: Final = f"([0-9]{{1,16}}-[0-9]{{1,20}}-[0-9]{{1,12}}|{END})"
CURSOR: Final = f"{_PLACE}(_{_PLACE})?"
_CURSOR: Final = re.compile(CURSOR, re.ASCII)
_TIMED: Final = re.compile(rb'^\{"time": "([0-9T:.-]{23}Z)"', re.MULTILINE)
_NAMES: Final = ("time", "action", "principal", "object", "outcome", "request_id")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class AuditEntry(Struct, frozen=True):
    """A line of the log, with its fields."""

    time: str
    action: str
    principal: str
    object: str
    outcome: str
    request_id: str
    client_address: str = ""  # until 0.3.0: lines of 0.1.0 do not tell it


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries are wanted; "" and None are any.

    `target`: a word of the object. From `since_ms` on, and before `until_ms`.
    """

    principal: str = ""
    action: str = ""
    target: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, the newest first, and where the next page begins; "" when nothing remains."""

    entries: list[AuditEntry]
    next_cursor: str


class AuditPages:
    """Reads logs as one, in a thread of its own, which starts with the first page."""

    def __init__(self, *logs: Sequence[Path]) -> None:
        """Each log by its files: the one that is written, then the full ones, the newest first."""
        self._logs = logs
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def read(self, wanted: AuditFilter, *, limit: int, cursor: str = "") -> AuditPage:
        """One page.

        Raises InvalidRequest for a malformed cursor, Unavailable when the log cannot be read, or too many
        ask for it.
        """
        if cursor and _CURSOR.fullmatch(cursor) is None:
            raise InvalidRequest("cursor: expected the next_cursor of a previous page")
        if self._waiting >= WAITING_MAX:
            raise Unavailable(
                "Too many clients are reading the audit log. Try again in a moment.", retry_after_s=1
            )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="audit")
        reading = asyncio.wrap_future(self._pool.submit(read_page, self._logs, wanted, limit, cursor))
        self._waiting += 1  # until it is read, even if the client has stopped waiting
        reading.add_done_callback(self._one_less)
        try:
            return await asyncio.shield(reading)
        except OSError as error:
            raise Unavailable(f"The audit log cannot be read: {error.strerror}.", retry_after_s=30) from error

    def _one_less(self, ended: "asyncio.Future[AuditPage]") -> None:
        self._waiting -= 1
        if not ended.cancelled():
            ended.exception()  # seen


def read_page(logs: Sequence[Sequence[Path]], wanted: AuditFilter, limit: int, cursor: str) -> AuditPage:
    """A page of all logs. Raises OSError."""
    places = cursor.split("_") if cursor else [""] * len(logs)
    places += [END] * (len(logs) - len(places))  # the cursor is of a version with fewer logs
    pages = [_page_of(paths, wanted, limit, place) for paths, place in zip(logs, places, strict=False)]
    entries = list[AuditEntry]()
    # A page that ends before its log does may hide what is newer than the others' entries.
    while len(entries) < limit and not any(page.is_cut_off for page in pages):
        page = max((page for page in pages if page.entries), key=lambda each: each.newest, default=None)
        if page is None:
            break
        entries.append(page.take())
    left = [page.place for page in pages]
    return AuditPage(entries, "" if set(left) == {END} else "_".join(left))


def _page_of(paths: Sequence[Path], wanted: AuditFilter, limit: int, cursor: str) -> "_Page":
    """A page of one log. Raises OSError."""
    page = _Page(wanted, limit, cursor)
    if cursor == END:
        return page
    is_found = not cursor
    for file in _files(paths):
        with closing(file):
            name = _name_of(file)
            if is_found:
                end = os.fstat(file.fileno()).st_size
            elif cursor.startswith(f"{name}-"):
                is_found, end = True, int(cursor.rpartition("-")[2])
            else:
                continue
            if end == 0:
                continue
            page.place = page.place or f"{name}-{end}"
            if page.may_hold(name) and page.read_from(file, name, end):
                break
    page.end()
    return page


class _Page:
    """A page of one log, to which entries are added one by one.

    `place` is the position after the entries so far, or END if the log has no more.
    """

    def __init__(self, wanted: AuditFilter, limit: int, place: str) -> None:
        self.entries = deque[tuple[AuditEntry, str]]()  # each with the place behind it
        self.place = place
        self._next = END
        self._wanted = wanted
        self._limit = limit
        self._left_bytes = SCAN_BYTES_MAX
        since_ms, until_ms = wanted.since_ms, wanted.until_ms
        self._before = "" if until_ms is None else rfc3339(until_ms)
        self._since = "" if since_ms is None else rfc3339(since_ms)
        ends_ms = max(1, since_ms - CLOCK_BACK_MS) if since_ms is not None else 0
        self._ends_at = rfc3339(ends_ms)  # older entries end the search
        texts = (wanted.principal, wanted.action, wanted.target)
        self._needles = [json.dumps(text)[1:-1].encode("ascii") for text in texts if text]

    def may_hold(self, name: str) -> bool:
        """Whether the file of this name may have what is wanted, by the time of its first line."""
        until_ms = self._wanted.until_ms
        return until_ms is None or int(name.partition("-")[0]) < until_ms + CLOCK_BACK_MS

    @property
    def newest(self) -> str:
        """The time of the entry that comes next."""
        return self.entries[0][0].time

    @property
    def is_cut_off(self) -> bool:
        """Return whether the page is full, and the log has more entries."""
        return not self.entries and self.place != END

    def take(self) -> AuditEntry:
        """The entry that comes next."""
        entry, self.place = self.entries.popleft()
        self.end()
        return entry

    def end(self) -> None:
        """If no entry is left, what was read without finding any more is behind, too."""
        if not self.entries:
            self.place = self._next

    def read_from(self, file: FileIO, name: str, end: int) -> bool:
        """Read what is wanted of the lines before `end`; whether the page ends with this file."""
        last = end
        for start, line in _lines_before(file, end):
            self._left_bytes -= last - start
            last = start
            timed = _TIMED.match(line)
            time = "" if timed is None else timed[1].decode("ascii")
            if time and time < self._ends_at and _parsed(line) is not None:
                return True
            entry = self._entry(line, time)
            if entry is not None:
                self.entries.append((entry, f"{name}-{start}"))
            if len(self.entries) >= self._limit or self._left_bytes <= 0:
                self._next = f"{name}-{start}"
                return True
        return False

    def _entry(self, line: bytes, time: str) -> AuditEntry | None:
        """The entry, if it is wanted, and is one."""
        if not time or (self._before and time >= self._before) or time < self._since:
            return None
        if any(needle not in line for needle in self._needles):
            return None
        entry = _parsed(line)
        wanted = self._wanted
        if entry is None or wanted.principal not in ("", entry.principal):
            return None
        if wanted.action not in ("", entry.action):
            return None
        words = entry.object.split()  # of a grant: `file UUID: read for user bob`
        return entry if wanted.target in ("", *words) or f"{wanted.target}:" in words else None


def _files(paths: Sequence[Path]) -> Iterator[FileIO]:
    """Each file once, the newest first: one that is moved away meanwhile is met again under its next name."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        file = FileIO(descriptor, "r")
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) in seen:
            file.close()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield file


def _name_of(file: FileIO) -> str:
    """Identify a file independently of its name: by its first time, and by its inode, which may be reused."""
    timed = _TIMED.search(os.pread(file.fileno(), HEAD_BYTES, 0))
    began_ms = 0
    if timed is not None:
        try:
            began_ms = parse_rfc3339(timed[1].decode("ascii"), "time")
        except InvalidRequest:
            began_ms = 0
    return f"{began_ms}-{os.fstat(file.fileno()).st_ino}"


def _lines_before(file: FileIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines before `end`, the last first, each with its position.

    Lines that are too long are replaced by empty ones.
    """
    begun, tail, is_skipping = end, b"", False
    while begun > 0:
        size_bytes = min(BLOCK_BYTES, begun)
        begun -= size_bytes
        block = os.pread(file.fileno(), size_bytes, begun)
        if len(block) < size_bytes:
            return  # it was cut off meanwhile
        pieces = (block + tail).split(b"\n")
        at = begun + len(block) + len(tail)
        if is_skipping:  # the end of the block is the beginning of a line that is too long
            at -= len(pieces.pop())
            is_skipping = not pieces
            at -= 0 if is_skipping else 1
        for piece in reversed(pieces[1:]):
            at -= len(piece)
            yield at, piece
            at -= 1
        tail = pieces[0] if pieces else b""
        if len(tail) > LINE_BYTES_MAX or is_skipping:
            is_skipping, tail = True, b""
            yield begun, b""
    if not is_skipping:
        yield 0, tail


def _parsed(line: bytes) -> AuditEntry | None:
    try:
        fields: Any = json.loads(line)
        texts = [fields[name] for name in _NAMES] + [fields.get("client_address", "")]
        parse_rfc3339(texts[0], "time")
    except (ValueError, KeyError, TypeError, RecursionError, InvalidRequest):
        return None
    if not all(isinstance(text, str) for text in texts):
        return None
    return AuditEntry(*(_SURROGATE.sub("\ufffd", text) for text in texts))

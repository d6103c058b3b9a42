"""Logs: one JSON object per line on stderr, so that no text of a user can forge a line.

Callers pass facts as `extra={...}`; they are added to `time`, `level`, `component`, `logger`, `message`.
Lines that are logged during a request have its `request_id`, on every member that works for it. No secret is
ever passed to a logger: not a token, key, `Authorization` header, query string or public link. A trouble that
lasts, such as a disk that fails, has two lines instead of thousands (`LastingTroubles`).

Tested by tests/unit/runtime/test_request_lines.py.
"""

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TextIO

from ca.errors import FilestoreError
from runtime.timestamps import rfc3339

# One write of more than 4 KiB to a pipe that other processes write to as well could be torn apart.
LINES_WAITING_MAX: Final = 6
LEVELS: Final = ("debug", "info", "warning", "error")
TEXT_CHARS_MAX: Final = 8192  # a traceback or a text of a user beyond this is cut
PATH_CHARS_MAX: Final = 256
PATH_SEGMENT_CHARS_MAX: Final = 40  # a UUID has 36; a longer segment may be a secret that someone put there
# The request that this task works for, "" for none. Tasks that it starts inherit it; calls carry it along.
REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")

ReadLevel = Callable[[], str]  # one of LEVELS; raises FilestoreError

_OWN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVEL_NAMES: Final = {logging.DEBUG: "debug", logging.INFO: "info"}  # of answers
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]*")  # what JSON in ASCII shows as it is
_log = logging.getLogger(__name__)
_requests = logging.getLogger("filestore.http.requests")
_calls = logging.getLogger("filestore.rpc.calls")
QUIET_S: Final = 60.0  # the condition is over after this time without another occurrence
TROUBLES_MAX: Final = 64  # at a time; of more the first lines are all logged


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON in ASCII: line ends and terminal escapes come out as \\uXXXX."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its line end."""
        line: dict[str, Any] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "component": self._component,
            "logger": record.name,
            "message": record.getMessage()[:TEXT_CHARS_MAX],
        }
        for name, value in vars(record).items():
            if name not in _OWN_ATTRIBUTES:
                line.setdefault(name, value[:TEXT_CHARS_MAX] if isinstance(value, str) else value)
        if request_id := REQUEST_ID.get():
            line.setdefault("request_id", request_id)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-TEXT_CHARS_MAX:]
        return json.dumps(line, default=str)


class LogLines(logging.StreamHandler[TextIO]):
    """The log handler of this process. Access lines, which are many, have a faster path.

    The access lines of one turn of the event loop are written together at its end, before any other line that
    comes in the meantime, and when LINES_WAITING_MAX of them wait.
    """

    def __init__(self, component: str) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(JsonLines(component))
        self._component = json.dumps(component)
        self._second = (0, "")
        self._waiting: deque[str] = deque()
        try:
            self._descriptor = self.stream.fileno()
        except (OSError, ValueError):  # something that is no file stands for stderr
            self._descriptor = -1

    def write_answer(self, level: int, logger: str, message: str, *, texts: str, facts: str) -> bool:
        """Write the line of an answer; False, and nothing is written, where a text has to be escaped.

        `facts`: the pairs of its JSON object, `texts`: the texts in them that come from elsewhere.
        """
        if self._descriptor < 0 or _PLAIN.fullmatch(texts) is None:
            return False
        line = (
            f'{{"time": "{self._now()}", "level": "{_LEVEL_NAMES[level]}", "component": {self._component},'
            f' "logger": "{logger}", "message": "{message}", {facts}}}\n'
        )
        self._waiting.append(line)
        if len(self._waiting) == 1:
            try:
                asyncio.get_running_loop().call_soon(self._write_waiting)
            except RuntimeError:
                self._write_waiting()
        elif len(self._waiting) >= LINES_WAITING_MAX:
            self._write_waiting()
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write any other line, behind those that were there before."""
        self._write_waiting()
        super().emit(record)

    def flush(self) -> None:
        """Write what is held back."""
        self._write_waiting()
        super().flush()

    def _write_waiting(self) -> None:
        """Write the waiting lines. Any thread may call it; each line is written once."""
        lines = []
        with suppress(IndexError):
            while True:
                lines.append(self._waiting.popleft())
        if lines:
            with suppress(OSError):  # as for any other line: a log that cannot be written stops nothing
                os.write(self._descriptor, "".join(lines).encode("ascii"))  # the stream holds nothing back

    def _now(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        second, text = self._second
        if second != now_ms // 1000:
            second, text = now_ms // 1000, rfc3339(now_ms)[: -len("000Z")]
            self._second = (second, text)
        return f"{text}{now_ms % 1000:03d}Z"


def setup(component: str, level: str = "info") -> None:
    """Send every log line of this process to stderr as JSON. `component`: which process this is.

    Calling it again replaces the earlier setup.
    """
    root = logging.getLogger()
    root.handlers[:] = [LogLines(component)]
    logging.captureWarnings(True)
    set_level(level)


def set_level(level: str) -> None:
    """Log from now on what is of that level, one of LEVELS, or graver."""
    logging.getLogger().setLevel(level.upper())


def usual_level() -> str:
    """Return the default log level."""
    return "info"


def reread_level(read_level: ReadLevel) -> str:
    """Set the log level from its source and return it; if it cannot be read, nothing changes."""
    try:
        set_level(read_level())
    except FilestoreError as error:
        _log.error("cannot read the log level", extra={"reason": error.details})
    return current_level()


def current_level() -> str:
    """Return the current log level."""
    return logging.getLevelName(logging.getLogger().level).lower()


def log_request(
    level: int,
    *,
    request_id: str,
    remote: str,
    method: str,
    path: str,
    status: int,
    size_bytes: int,
    duration_s: float,
) -> None:
    """One line for one answer. `size_bytes` is what it took on the connection."""
    if not _requests.isEnabledFor(level) or _is_written(
        level,
        _requests,
        "request",
        texts=f"{request_id}{remote}{method}{path}",
        facts=(
            f'"request_id": "{request_id}", "remote": "{remote}", "method": "{method}", "path": "{path}",'
            f' "status": {status}, "size_bytes": {size_bytes}, "duration_s": {duration_s:.6f}'
        ),
    ):
        return
    facts = {
        "request_id": request_id,
        "remote": remote,
        "method": method,
        "path": path,
        "status": status,
        "size_bytes": size_bytes,
        "duration_s": round(duration_s, 6),
    }
    _requests.log(level, "request", extra=facts)


def log_call(level: int, *, request_id: str, caller: str, call: str, status: str, duration_s: float) -> None:
    """One line for the answer to a call of a member that worked for a request.

    `status` is that of the wire, "" when it is done; `caller` the id of the member.
    """
    status = status or "ok"
    if not _calls.isEnabledFor(level) or _is_written(
        level,
        _calls,
        "call",
        texts=f"{request_id}{caller}{call}{status}",
        facts=(
            f'"request_id": "{request_id}", "caller": "{caller}", "call": "{call}",'
            f' "status": "{status}", "duration_s": {duration_s:.6f}'
        ),
    ):
        return
    facts = {
        "request_id": request_id,
        "caller": caller,
        "call": call,
        "status": status,
        "duration_s": round(duration_s, 6),
    }
    _calls.log(level, "call", extra=facts)


def _is_written(level: int, logger: logging.Logger, message: str, *, texts: str, facts: str) -> bool:
    """Whether the line took the short way, as in `LogLines.write_answer`."""
    lines = logging.root.handlers[0] if len(logging.root.handlers) == 1 else None
    return isinstance(lines, LogLines) and lines.write_answer(
        level, logger.name, message, texts=texts, facts=facts
    )


def shown_path(path: str, template: str | None) -> str:
    """The path of a request as a log may hold it.

    A template with a `{token}` or `{ticket}` in it stands for itself. Elsewhere, segments longer than any id
    become `...`.
    """
    if template is not None and ("{token}" in template or "{ticket}" in template):
        return template
    segments = path[:PATH_CHARS_MAX].split("/")
    return "/".join(segment if len(segment) <= PATH_SEGMENT_CHARS_MAX else "..." for segment in segments)


@dataclass(slots=True)
class _Trouble:
    loop: asyncio.AbstractEventLoop
    met_at_s: float
    count: int
    level: int  # of the line at its end


class LastingTroubles:
    """Troubles that one part of a process meets, each by its message: one line at its begin, one at its end.

    Without this each request, replica or pass would write a line of its own. On the event loop.
    """

    def __init__(self, log: logging.Logger, *, quiet_s: float = QUIET_S) -> None:
        self._log = log
        self._quiet_s = quiet_s
        self._met: dict[tuple[str, str], _Trouble] = {}

    def note(self, what: str, reason: str, *, level: int = logging.ERROR, **facts: object) -> None:
        """Record an occurrence: logged with the facts of the first one, at `level`."""
        loop, key = asyncio.get_running_loop(), (what, reason)
        known = self._met.get(key)
        if known is not None and known.loop is loop:
            known.met_at_s, known.count = loop.time(), known.count + 1
            return
        self._log.log(level, "%s", what, extra={"reason": reason, **facts})
        if len(self._met) < TROUBLES_MAX or known is not None:
            self._met[key] = _Trouble(loop, loop.time(), 1, min(level, logging.WARNING))
            loop.call_later(self._quiet_s, self._look, key)

    def _look(self, key: tuple[str, str]) -> None:
        trouble = self._met[key]
        left_s = trouble.met_at_s + self._quiet_s - trouble.loop.time()
        if left_s > 0:
            trouble.loop.call_later(left_s, self._look, key)
            return
        del self._met[key]
        what, reason = key
        facts = {"what": what, "reason": reason, "count": trouble.count}
        self._log.log(trouble.level, "no repetition of this message for %.0f s", self._quiet_s, extra=facts)

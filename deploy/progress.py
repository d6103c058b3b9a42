"""What people see on a terminal: a progress bar on stderr, tables on stdout; in a pipe only results."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

PIPE_COLUMNS = 1000  # what reads a pipe wants whole values, however long the lines get


def table_console() -> Console:
    """Where tables go: as wide as the terminal, or wide enough for everything in a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)


class ProgressBar:
    """Use as a context manager; `set` takes the bytes done and, once known, the bytes in all."""

    def __init__(self, label: str) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(escape(label), total=None)

    def set(self, done_bytes: int, total_bytes: int | None) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done_bytes, total=total_bytes)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

"""The output on a terminal: a progress bar on stderr, tables on stdout; in a pipe only results.

These write to the terminal past the guard of the standard streams, so they make each text in them printable.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from deploy.base.printed import printable_name, steering

SetProgress = Callable[[int, int | None], None]

PIPE_COLUMNS = 1000  # what reads a pipe wants whole values, however long the lines get


class TableConsole(Console):
    """A console on standard output that shows each text as it is, on one line and printable."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else PIPE_COLUMNS
        # `https://[fd00::4]:7443` has no markup in it, nor has a file's name.
        super().__init__(file=steering(sys.stdout), width=width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Called by rich for each cell, title and line."""
        return super().render_str(printable_name(text), **options)


def table_console() -> TableConsole:
    """Return the console for tables: as wide as the terminal, or wide enough for all content in a pipe."""
    return TableConsole()


def end_at_once_when_interrupted() -> None:
    """For who reads or writes a pipe: a thread that waits for the other end cannot be called back."""

    def end(*_: object) -> None:
        Console(file=steering(sys.stderr)).show_cursor()
        with suppress(OSError):  # the reader may have gone
            os.write(sys.stderr.fileno(), b"\ninterrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


class ProgressBars:
    """Progress bars as a context manager; `bar` adds one for each concurrent transfer."""

    def __init__(self) -> None:
        console = Console(file=steering(sys.stderr))
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    @contextmanager
    def bar(self, label: str) -> Iterator[SetProgress]:
        """A bar until the context ends; it is set to the bytes done and, once known, the bytes in all."""
        task = self._progress.add_task(printable_name(label), total=None)

        def move(done_bytes: int, total_bytes: int | None) -> None:
            self._progress.update(task, completed=done_bytes, total=total_bytes)

        try:
            yield move
        finally:
            self._progress.remove_task(task)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

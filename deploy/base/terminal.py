"""Apart from the tables, which need rich: shows progress bars on a terminal, and puts its cursor back.

Tested by tests/cluster/test_command_printing.py.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from deploy.base.printed import printable_name

if TYPE_CHECKING:
    from rich.progress import Progress

SetProgress = Callable[[int, int | None], None]

_SHOW_CURSOR: Final = b"\x1b[?25h"


def end_at_once_when_interrupted() -> None:
    """For who reads or writes a pipe: a thread that waits for the other end cannot be called back."""

    def end(*_: object) -> None:
        cursor = _SHOW_CURSOR if sys.stderr.isatty() else b""
        with suppress(OSError):  # it may be unreadable for this user
            os.write(sys.stderr.fileno(), cursor + b"\ninterrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


class ProgressBars:
    """Progress bars as a context manager; `bar` adds one for each concurrent transfer.

    Only a terminal shows them.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            from deploy.base.tables import transfer_progress  # here: without a terminal, nothing needs it

            self._progress = transfer_progress()

    @contextmanager
    def bar(self, label: str) -> Iterator[SetProgress]:
        """A bar until the context ends; it is set to the bytes done and, once known, the bytes in all."""
        progress = self._progress
        if progress is None:
            yield lambda _done_bytes, _total_bytes: None
            return
        task = progress.add_task(printable_name(label), total=None)

        def move(done_bytes: int, total_bytes: int | None) -> None:
            progress.update(task, completed=done_bytes, total=total_bytes)

        try:
            yield move
        finally:
            progress.remove_task(task)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

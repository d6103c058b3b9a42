"""Tables and progress bars by rich, which takes a while to load: import this where one is shown.

`screen` alone decides what a stream gets: a terminal gets codes, and colours unless NO_COLOR is set.
FORCE_COLOR, which CI systems set, has no effect: codes do not belong into a log.

These write to the terminal past the guard of the standard streams, so they make each text in them printable.

Tested by tests/unit/deploy/commands/test_status_text.py.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from deploy.base.printed import printable_name, terminal_stream

WRAPPED_COLUMNS_MIN = 40  # an id has 36
PIPE_COLUMNS = 1000  # what reads a pipe wants whole values, however long the lines get


def screen(stream: TextIO) -> dict[str, Any]:
    """Return what a console of rich on this stream is made with."""
    is_terminal = stream.isatty()
    has_colours = is_terminal and not os.environ.get("NO_COLOR")
    return {
        "file": terminal_stream(stream),
        "force_terminal": is_terminal,
        "color_system": "auto" if has_colours else None,
    }


class TableConsole(Console):
    """A console on standard output that shows each text as it is, on one line and printable."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else PIPE_COLUMNS
        # `https://[fd00::4]:7443` has no markup in it, nor has a file's name.
        super().__init__(**screen(sys.stdout), width=width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Called by rich for each cell, title and line."""
        return super().render_str(printable_name(text), **options)

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table as wide as the terminal; wider, if a word in it is: no id and no name is ever cut.

        Only wide columns with spaces in their values are wrapped. Without titles (all "") it has no head.
        """
        cells = [list(map(printable_name, row)) for row in rows]
        table = Table(box=None, pad_edge=False, header_style="", show_header=any(columns))
        for at, title in enumerate(columns):
            if any(" " in row[at] and len(row[at]) > WRAPPED_COLUMNS_MIN for row in cells):
                table.add_column(title, overflow="fold")
            else:
                widest = max((cell_len(row[at]) for row in cells), default=0)
                table.add_column(title, no_wrap=True, min_width=max(widest, cell_len(title)))
        for row in cells:
            table.add_row(*row)
        wide = self.options.update(width=PIPE_COLUMNS)
        shown, self.width = self.width, max(self.width, Measurement.get(self, wide, table).minimum)
        with self.capture() as captured:
            self.print(table)
        self.width = shown
        for line in captured.get().splitlines():
            self.file.write(f"{line.rstrip()}\n")
        self.file.flush()


def table_console() -> TableConsole:
    """Return the console for tables: as wide as the terminal, or wide enough for all content in a pipe."""
    return TableConsole()


def transfer_progress() -> Progress:
    """Return the bars of transfers on standard error; they disappear at the end."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(**screen(sys.stderr)),
        transient=True,
    )

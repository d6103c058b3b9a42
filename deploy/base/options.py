"""Options that commands of both roles have."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[int]):
    """A number with s, m, h or d behind it, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds; fails the command for anything else."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no duration: 90s, 30m, 12h or 7d are.", param, ctx)
        return int(found[1]) * _SECONDS[found[2]]


def data_option(whose: str | None = None) -> Callable[[Any], Any]:
    """`--data`: a directory of a member that is there already; `whose` is its help."""
    existing = click.Path(exists=True, file_okay=False, path_type=Path)
    return click.option("--data", type=existing, required=True, help=whose)


http_option = click.option(
    "--http",
    default=None,
    metavar="127.0.0.1:PORT",
    help="Also serve plain HTTP on loopback, for a proxy on this host.",
)

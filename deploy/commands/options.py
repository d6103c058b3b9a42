"""Options that commands of both roles have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


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

"""Files that a command writes for its user, such as tokens. Shared by contexts, tokens and GNS3 logins.

Tested by tests/cluster/test_command_files.py.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from ca.secretfiles import write_durable

_SECRET_MODE: Final = 0o600


class UserPath(click.Path):
    """A path on the command line, in a variable or in a file.

    `~` is a home directory: no shell has expanded it in `--ca=~/ca.pem` or in a unit of systemd.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fail the command for one that is not what is wanted."""
        return super().convert(own_path(value), param, ctx)


def own_path(value: str | os.PathLike[str]) -> str:
    """Return a path with `~` expanded; a file that really has such a name is meant itself."""
    text = os.fspath(value)
    return text if os.path.lexists(text) else os.path.expanduser(text)  # noqa: PTH111  # that of Path raises


def write_own(path: Path, data: bytes, *, mode: int = _SECRET_MODE) -> None:
    """Replace a file of this user in one rename. Raises OSError.

    If `path` is a link of this user or root (people keep configuration elsewhere), the target of the link is
    replaced. A link of another user is replaced itself.
    """
    write_durable(_place(path), data, mode=mode)


def require_writable(path: Path) -> Path:
    """Return the path of a file that can be written. Raises click.BadParameter.

    To be asked before a token is minted: one that cannot be written is lost.
    """
    directory = _place(path).parent
    if path.is_dir():
        raise click.BadParameter(f"{path} is a directory.")
    if not directory.is_dir():
        raise click.BadParameter(f"{directory} is no directory.")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise click.BadParameter(f"nothing can be written in {directory}.")
    return path


def secret_output_option(text: str) -> Callable[[Any], Any]:
    """`--output FILE` of a command that makes a secret; `text` is its help."""
    return click.option("--output", "-o", type=UserPath(path_type=Path), callback=_checked, help=text)


def _checked(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    return None if path is None else require_writable(path)


def _place(path: Path) -> Path:
    if path.is_symlink() and path.lstat().st_uid in (0, os.geteuid()):
        return Path(os.path.realpath(path))
    return path

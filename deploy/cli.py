"""The `filestore` command.

Errors are one line on stderr with code and details; no traceback for what users meet.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted. Of `status`: 0 healthy, 1 degraded,
2 unavailable, 3 not asked: the token may not see it, or a file is missing.
"""

import importlib
import os
import sys
from typing import Final

import click

from ca.errors import FilestoreError

STDERR_FILENO: Final = 2
MODULES: Final = {  # below deploy.commands
    "coordinator": "coordinator",
    "damaged": "damaged",
    "dev": "cluster",
    "doctor": "doctor",
    "get": "files",
    "job": "jobs",
    "ls": "files",
    "node": "node",
    "put": "files",
    "rm": "files",
    "status": "status",
    "token": "token",
    "user": "user",
}


class Commands(click.Group):
    """Loads a command when it is asked for: all of them would take as long as the one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """What click asks for to show them, or what was meant."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, None where there is none."""
        if cmd_name not in MODULES:
            return None
        found = getattr(importlib.import_module(f"deploy.commands.{MODULES[cmd_name]}"), cmd_name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="filestore", prog_name="filestore")
def cli() -> None:
    """Filestore: a store for the big files of network-emulation labs, on a handful of machines."""


def main() -> None:
    """What `deploy.entry` calls; never returns, except for an interrupt outside of click."""
    _open_standard_streams()
    try:
        answer = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FilestoreError as error:
        from deploy.base.connection import line_of

        fail(line_of(error))
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again when it flushes at exit.
        sys.stdout = None
        sys.exit(1)
    except OSError as error:
        from deploy.base.connection import reason_of

        fail(f"{error.filename or 'system'}: {reason_of(error)}")
    except click.Abort:  # of an interrupt, for which click has begun a new line
        click.echo("interrupted", err=True)
        sys.exit(130)
    sys.exit(answer if isinstance(answer, int) else 0)


def _open_standard_streams() -> None:
    """Those that we were started without lead nowhere: a socket in the place of one would be taken for it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR_FILENO:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115  # they stay open; Python has none then
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def fail(line: str) -> None:
    """One line on stderr, exit code 1."""
    click.echo(f"filestore: {line}", err=True)
    sys.exit(1)

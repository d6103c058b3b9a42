"""The `filestore` command.

Errors are one line on stderr with code and details; no traceback for what users meet. The exit codes are
those of `deploy/base/failures.py`.
"""

import importlib
import os
import sys
from typing import Final, NoReturn

import click

from deploy.base.printed import guard_streams

STDERR_FILENO: Final = 2
SECTIONS: Final = {  # what people look for; the modules lie below deploy.commands
    "Files": {
        "put": "put",
        "get": "files",
        "cat": "files",
        "ls": "files",
        "show": "files",
        "find": "files",
        "mv": "files",
        "du": "files",
        "rm": "files",
        "share": "buckets",
        "bucket": "buckets",
        "serve": "serve",
    },
    "Labs": {"gns3": "gns3.group"},
    "Access": {
        "login": "account",
        "logout": "account",
        "context": "account",
        "whoami": "account",
        "grant": "buckets",
        "user": "user",
        "token": "token",
        "audit": "audit",
    },
    "The cluster": {
        "setup": "cluster",
        "status": "status",
        "damaged": "status",
        "upgrade": "upgrade",
        "job": "jobs",
        "node": "node",
        "coordinator": "coordinator",
        "doctor": "doctor",
        "dev": "cluster",
    },
    "Tools": {"api": "api", "completion": "api"},
}
MODULES: Final = {name: module for section in SECTIONS.values() for name, module in section.items()}


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands of `--help`, by sections."""
        width = max(map(len, MODULES))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                rows = []
                for name in names:
                    command = self.get_command(ctx, name)
                    assert command is not None
                    limit = formatter.width - 6 - width
                    rows.append((name.ljust(width), command.get_short_help_str(limit)))
                formatter.write_dl(rows)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="filestore", prog_name="filestore")
def cli() -> None:
    """Filestore: a store for the big files of network-emulation labs.

    \b
    filestore login URL     sign in to a cluster, once
    filestore put FILE      upload a file
    filestore ls            see what there is
    filestore get NAME      download a file
    filestore COMMAND -h    what a command does, and its options

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not allowed, 4 not found, 5 conflict, 6 unavailable,
    10 needs attention, 130 interrupted.
    """


def main() -> None:
    """What `deploy.entry` calls; never returns, except for an interrupt outside of click."""
    _open_standard_streams()
    try:
        answer = cli.main(prog_name="filestore", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again when it flushes at exit.
        sys.stdout = None
        sys.exit(1)
    except click.Abort:  # of an interrupt, for which click has begun a new line
        click.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        from deploy.base.failures import FAILURES, exit_code_of, line_of, reason_of

        if isinstance(error, FAILURES):
            fail(line_of(error), exit_code_of(error))
        elif isinstance(error, OSError):
            fail(f"{error.filename or 'system'}: {reason_of(error)}")
        raise
    sys.exit(answer if isinstance(answer, int) else 0)


def _open_standard_streams() -> None:
    """Those that we were started without lead nowhere: a socket in the place of one would be taken for it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR_FILENO:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115  # they stay open; Python has none then
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
    guard_streams()


def fail(line: str, code: int = 1) -> NoReturn:
    """One line on stderr, and the end."""
    click.echo(f"filestore: {line}", err=True)
    sys.exit(code)

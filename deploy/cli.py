"""The `filestore` command.

Errors are one line on stderr with code and details; no traceback for what users meet. The exit codes are
those of `deploy/base/failures.py`.

Tested by tests/unit/deploy/test_help.py.
"""

import gc
import importlib
import os
import re
import sys
from difflib import get_close_matches
from typing import Final, NamedTuple, NoReturn

import click

from deploy.base.printed import guard_streams

STDERR_FILENO: Final = 2


OTHER_WORDS: Final = {  # of other programs, for commands of ours
    "list": "ls",
    "remove": "rm",
    "delete": "rm",
    "rename": "mv",
    "upload": "put",
    "download": "get",
    "info": "show",
}


class CliEntry(NamedTuple):
    """The module of a command, and its summary in `filestore --help`.

    The module is in deploy.commands or, if its name begins so, in deploy.people.

    The summary is the first sentence of the command's own help (a test compares them): loading every command
    for it would take four times as long as all the rest.
    """

    module: str
    summary: str

    @property
    def path(self) -> str:
        """Return the whole name of the module."""
        room = "deploy" if self.module.startswith("people.") else "deploy.commands"
        return f"{room}.{self.module}"


SECTIONS: Final = {  # by purpose
    "Files": {
        "put": CliEntry("put", "Upload files, and print the file_uuid of each."),
        "get": CliEntry("files", "Download a file by its name or its file_uuid, or a folder."),
        "cat": CliEntry("files", "Write the content of a file to standard output."),
        "ls": CliEntry("files", "List files: your own, as an admin all of them."),
        "show": CliEntry("files", "Show the whole record of a file."),
        "find": CliEntry("files", "Find files by the checksum of their content."),
        "mv": CliEntry("files", "Rename a file, or move a file or a folder."),
        "du": CliEntry("files", "Show the space that files use, by bucket and kind."),
        "rm": CliEntry("trash", "Delete files, and unfinished uploads."),
        "trash": CliEntry("trash", "Deleted files that can still be restored: ls, restore, empty."),
        "protect": CliEntry("trash", "Protect files from deletion until a time."),
        "share": CliEntry("buckets", "Links to a file for people without a token: create, ls, rm."),
        "bucket": CliEntry("buckets", "Buckets, with owners and quotas: create, ls, show, set, rm."),
        "serve": CliEntry("serve", "Let other programs store files in a bucket: restic."),
    },
    "Labs": {
        "gns3": CliEntry("gns3.group", "Back up labs of GNS3 servers, and bring them back."),
    },
    "Access": {
        "login": CliEntry("account", "Sign in to a cluster, and use it from now on."),
        "logout": CliEntry("account", "Forget a cluster, and your token for it."),
        "context": CliEntry("account", "The clusters that you are signed in to: ls, use."),
        "whoami": CliEntry("account", "Show your user name, and when your token ends."),
        "grant": CliEntry("buckets", "Permissions on buckets and files: add, ls, rm."),
        "user": CliEntry("user", "Users: ls, show, set, import, invite, disable, revoke, rm."),
        "session": CliEntry("people.session", "Sessions, a token and its renewals each: ls, end."),
        "group": CliEntry("people.group", "Groups of users: ls, show, add, remove, rm."),
        "sso": CliEntry("people.sso", "Identity providers to sign in with: set, show, test, rm."),
        "token": CliEntry("token", "Tokens of users, of nodes that join, and of the admin."),
        "audit": CliEntry("audit", "Show who did what, newest first."),
    },
    "The cluster": {
        "setup": CliEntry("cluster", "Set up this machine as a coordinator and a node."),
        "status": CliEntry("status", "Show coordinators, nodes, jobs, and problems."),
        "damaged": CliEntry("status", "List files that no node holds whole, and lost bytes."),
        "upgrade": CliEntry("upgrade", "Upgrades of a running cluster: check."),
        "job": CliEntry("jobs", "Background jobs: run, ls, show, watch, cancel."),
        "node": CliEntry("node", "Nodes, which keep the bytes: join, run, ls, drain, remove."),
        "coordinator": CliEntry("coordinator", "Coordinators, which keep the metadata: init, run, ls, add."),
        "snapshot": CliEntry("snapshots", "Snapshots of the metadata, and files in them."),
        "doctor": CliEntry("doctor", "Check the directory of a process that does not run."),
        "dev": CliEntry("cluster", "Run a whole cluster on this machine, to try it out."),
    },
    "Tools": {
        "api": CliEntry("api", "Call any operation of the API, and print the response."),
        "completion": CliEntry("api", "Print the code with which a shell completes commands."),
    },
}
ENTRIES: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class Commands(click.Group):
    """Loads a command when it is asked for: all of them would take as long as the one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, for help and suggestions."""
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, None where there is none."""
        if cmd_name not in ENTRIES:
            return None
        gc.disable()  # a tenth of the time that loading takes: what it makes stays until the end
        try:
            found = getattr(importlib.import_module(ENTRIES[cmd_name].path), cmd_name)
        finally:
            gc.enable()
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands of `--help`, by sections."""
        width = max(map(len, ENTRIES))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="filestore", prog_name="filestore")
def cli() -> None:
    """Filestore: a store for the big files of network-emulation labs.

    \b
    filestore login URL     sign in to a cluster, once
    filestore put FILE      upload a file
    filestore ls            list your files
    filestore get NAME      download a file
    filestore COMMAND -h    show what a command does, and its options

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not allowed, 4 not found, 5 conflict, 6 unavailable,
    10 needs attention, 130 interrupted.
    """


def main() -> None:
    """Run the command; called by `deploy.entry`. Returns only for an interrupt outside of click."""
    _open_standard_streams()
    try:
        answer = cli.main(prog_name="filestore", standalone_mode=False)
    except click.ClickException as error:
        with_suggestion(error).show()
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


def with_suggestion(error: click.ClickException) -> click.ClickException:
    """Return the error; a "No such command" says which one may be meant."""
    found = re.fullmatch(r"No such command '(.*)'\.", error.message, re.DOTALL)
    if found is None or not isinstance(error, click.UsageError) or error.ctx is None:
        return error
    command = error.ctx.command
    assert isinstance(command, click.Group)
    known = command.list_commands(error.ctx)
    close = [word for word in (OTHER_WORDS.get(found[1]),) if word in known]
    close = close or get_close_matches(found[1], known, n=2)
    if not close:
        return error
    return click.UsageError(f"{error.message} Did you mean {' or '.join(map(str, close))}?", error.ctx)


def _open_standard_streams() -> None:
    """Open missing standard streams on /dev/null; otherwise a socket could get their numbers."""
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

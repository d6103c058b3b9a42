"""Chooses and names the backups that a command is about. Shared by all commands about backups.

Tested by tests/gns3/test_restore.py.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from deploy.base.own_files import UserPath
from deploy.base.printed import is_harmless, printable_name
from deploy.gns3.backup import BackupWishes
from deploy.gns3.chains import MESSAGE_CHARS_MAX, TAG
from deploy.gns3.folders.encryption import read_identities, read_recipients
from filestore_client import AsyncClient

T = TypeVar("T")


class VersionMessage(click.ParamType[str]):
    """A text about a version, on one line."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Fails for one that the store does not accept."""
        text = str(value)
        if len(text) > MESSAGE_CHARS_MAX or not all(map(is_harmless, text)):
            self.fail(f"Give one line of up to {MESSAGE_CHARS_MAX} characters.", param, ctx)
        return text


class VersionTag(click.ParamType[str]):
    """A name of a version."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Fails for a text that is no tag: it may be a date."""
        if value and not TAG.fullmatch(str(value)):
            self.fail("A tag begins with a letter, and has letters, digits and . _ - only.", param, ctx)
        return str(value)


owner_option = click.option(
    "--owner",
    default="",
    metavar="USER",
    help="Use files of this user, who may have given them any names.  [default: you]",
)
from_option = click.option(
    "--from",
    "source",
    default="",
    metavar="SERVER",
    help="Only backups of this GNS3 server, by its name or id.",
)
message_option = click.option(
    "--message", type=VersionMessage(), default="", help="What you say about these versions, on one line."
)
tag_option = click.option(
    "--tag", type=VersionTag(), default="", help="Name these versions, such as golden: `prune` keeps them."
)
recipients_option = click.option(
    "--recipients",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --local: encrypt for these public keys of age, one a line. See docs/gns3-full.md.",
)
identity_option = click.option(
    "--identity",
    type=UserPath(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Your secret key of age, for encrypted backups.",
)


def version_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add --message, --tag and --recipients to a command, which gets them as the wishes `given`."""

    @wraps(command)
    def run_command(*args: Any, message: str, tag: str, recipients: Path | None, **options: Any) -> T:
        given = BackupWishes(message=message, tag=tag, recipients=recipients_of(recipients))
        return command(*args, given=given, **options)

    return message_option(tag_option(recipients_option(run_command)))


def recipients_of(path: Path | None) -> list[Any]:
    """Return the public keys of a file; none without one. Raises InvalidRequest."""
    return [] if path is None else read_recipients(path)


def require_readable(wishes: BackupWishes, local: Path | None) -> None:
    """Raise UsageError if a run would have to read archives that it encrypts."""
    if wishes.recipients and (local is None or wishes.with_images):
        raise click.UsageError("--recipients needs --local, and images are pushed by a command of their own.")


def identities_of(path: Path | None) -> list[Any]:
    """Return the keys of a file; none without one. Raises InvalidRequest."""
    return [] if path is None else read_identities(path)


async def owner_id_of(client: AsyncClient, owner: str) -> str:
    """Return the user whose files are meant. Another user than the caller is printed."""
    caller = (await client.whoami()).user_id
    if owner and owner != caller:
        click.echo(f"filestore: these are files of {printable_name(owner)}, not yours", err=True)
    return owner or caller

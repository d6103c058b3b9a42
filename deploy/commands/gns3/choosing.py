"""Chooses the backups that a command is about. Shared by `images`, `ls`, `prune` and `restore`.

Tested by tests/gns3/test_restore.py.
"""

import click

from deploy.base.printed import printable_name
from filestore_client import AsyncClient

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


async def owner_id_of(client: AsyncClient, owner: str) -> str:
    """Return the user whose files are meant. Another user than the caller is printed."""
    caller = (await client.whoami()).user_id
    if owner and owner != caller:
        click.echo(f"filestore: these are files of {printable_name(owner)}, not yours", err=True)
    return owner or caller

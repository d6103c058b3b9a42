"""`filestore user invite`, `invitations` and `uninvite`: links with which people get their first token.

Tested by tests/cluster/test_command_people.py.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec

from deploy.base.connection import Connection, connection_options
from deploy.base.options import Duration
from deploy.base.output import json_option, moment, print_json, print_records
from deploy.base.own_files import secret_output_option, write_own
from filestore_client import AsyncClient
from filestore_client.base.errors import NotFound
from filestore_client.base.records import Invitation, ListedInvitation

_COLUMNS: Final[Mapping[str, Callable[[ListedInvitation], object]]] = {
    "user": lambda invitation: invitation.user_id,
    "by": lambda invitation: invitation.created_by,
    "made": lambda invitation: moment(invitation.created_at),
    "until": lambda invitation: moment(invitation.expires_at),
    "used": lambda invitation: moment(invitation.used_at),
}
expires_option = click.option(
    "--expires",
    "ttl_seconds",
    type=Duration(least_s=60),
    help="How long the link works, such as 24h; at most 30d.  [default: 7d]",
)


@click.command()
@click.argument("user_id")
@click.option("--role", "roles", multiple=True, help="Set the user's roles, once for each (admin, service).")
@click.option("--group", "groups", multiple=True, help="Set the user's groups, once for each.")
@expires_option
@secret_output_option("Write the link to a file (0600), print nothing.")
@json_option
@connection_options
def invite(
    connection: Connection,
    user_id: str,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    ttl_seconds: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print a link with which a person gets a token. Admins only.

    The link opens the console, works once, and replaces an earlier link of the same user. Use it for a new
    user, who is created, and for a user who has lost the token. The bearer of the link gets the token, so
    send it in private. Old tokens stay valid; `filestore session end --all --user USER` ends them.
    """

    async def work(client: AsyncClient) -> Invitation:
        make = partial(
            client.invitations.create,
            user_id,
            roles=roles or None,
            groups=groups or None,
            ttl_seconds=ttl_seconds,
        )
        try:
            return await make(existing=True)
        except NotFound:
            made = await make()
        click.echo(f"{user_id} is a new user.", err=True)
        return made

    made = connection.run(work)
    if output is not None:
        write_own(output, made.url.encode() + b"\n")
    if as_json:
        fields = msgspec.to_builtins(made)
        hidden = {"token": "", "url": "", "link_file": str(output)}
        print_json(fields if output is None else fields | hidden)
    elif output is None:
        click.echo(made.url)
        click.echo(f"It works once, until {moment(made.expires_at)}.", err=True)


@click.command()
@json_option
@connection_options
def invitations(connection: Connection, as_json: bool) -> None:
    """List the newest link of each user, without secrets. Admins only."""

    async def work(client: AsyncClient) -> list[ListedInvitation]:
        return [each async for each in client.invitations.list()]

    empty = "No invitations. `filestore user invite USER` makes one."
    print_records(connection.run(work), _COLUMNS, as_json=as_json, empty=empty)


@click.command()
@click.argument("user_id")
@connection_options
def uninvite(connection: Connection, user_id: str) -> None:
    """Revoke the link of a user that was not used yet. Admins only."""
    connection.run(lambda client: client.invitations.revoke(user_id))
    click.echo(f"The link of {user_id} does not work any more.")

"""`filestore user`: users, through the API.

Tested by tests/cluster/test_command_admin.py.
"""

from collections.abc import Callable, Mapping
from typing import Final

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import ADMIN
from deploy.base.output import json_option, moment, print_json, print_record, print_records
from filestore_client import AsyncClient
from filestore_client.base.records import User

_create = click.option("--create", is_flag=True, help="Create the user if there is none of this name.")
_COLUMNS: Final[Mapping[str, Callable[[User], object]]] = {
    "user": lambda user: user.user_id,
    "roles": lambda user: user.roles,
    "groups": lambda user: user.groups,
    "disabled": lambda user: user.disabled,
    "made": lambda user: moment(user.created_at),
}


@click.group()
def user() -> None:
    """Users: ls, show, set, disable, enable, revoke, rm.

    `filestore token user` mints their tokens.
    """


@user.command("ls")
@json_option
@connection_options
def list_users(connection: Connection, as_json: bool) -> None:
    """List the users. Admins only."""

    async def work(client: AsyncClient) -> list[User]:
        return [each async for each in client.users.list()]

    print_records(connection.run(work), _COLUMNS, as_json=as_json, empty="No users.")


@user.command("show")
@click.argument("user_id")
@json_option
@connection_options
def show_user(connection: Connection, user_id: str, as_json: bool) -> None:
    """Show the whole record of a user. Admins only."""
    print_record(connection.run(lambda client: client.users.get(user_id)), as_json=as_json)


@user.command("set")
@click.argument("user_id")
@click.option(
    "--role", "roles", multiple=True, help="Set the roles, once for each (admin, service); '' for none."
)
@click.option("--group", "groups", multiple=True, help="Set the groups, once for each; '' for none.")
@_create
@json_option
@connection_options
def set_user(
    connection: Connection,
    user_id: str,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    *,
    create: bool,
    as_json: bool,
) -> None:
    """Set the roles and groups of a user. Admins only.

    Options that are not given keep their values. Exit code 4 if there is no such user, unless --create.
    """

    async def work(client: AsyncClient) -> User:
        return await client.users.put(
            user_id, roles=_given(roles), groups=_given(groups), existing=not create
        )

    print_record(connection.run(work), as_json=as_json)


@user.command("disable")
@click.argument("user_id")
@_create
@json_option
@connection_options
def disable(connection: Connection, user_id: str, *, create: bool, as_json: bool) -> None:
    """Reject the tokens of a user until it is enabled. Admins only.

    The user's files and permissions stay. Exit code 4 if there is no such user, unless --create: it creates
    the user as disabled, so that no tokens can be minted for this name.
    """
    found = connection.run(lambda client: client.users.put(user_id, disabled=True, existing=not create))
    print_json(found) if as_json else click.echo(f"Tokens of {user_id} are rejected from now on.")


@user.command("enable")
@click.argument("user_id")
@json_option
@connection_options
def enable(connection: Connection, user_id: str, *, as_json: bool) -> None:
    """Accept the tokens of a user again. Admins only."""
    found = connection.run(lambda client: client.users.put(user_id, disabled=False, existing=True))
    print_json(found) if as_json else click.echo(f"Tokens of {user_id} are accepted again.")


@user.command()
@click.argument("user_id")
@connection_options
def revoke(connection: Connection, user_id: str) -> None:
    """End all tokens, permissions and links of a user. Admins only.

    The user and its files stay. Every node rejects its existing tokens from then on; tokens minted later
    work.
    """
    connection.run(lambda client: client.users.revoke(user_id))
    click.echo(f"All tokens, permissions and public links of {user_id} are revoked.")
    if user_id == ADMIN:
        click.echo("On a coordinator, `filestore token admin --data DIR` creates a new token for the admin.")


@user.command("rm")
@click.argument("user_id")
@connection_options
def remove(connection: Connection, user_id: str) -> None:
    """Delete a user, which must own nothing. Admins only."""
    connection.run(lambda client: client.users.delete(user_id))
    click.echo(f"{user_id} is deleted.")


def _given(names: tuple[str, ...]) -> list[str] | None:
    """None leaves them alone."""
    return [name for name in names if name] if names else None

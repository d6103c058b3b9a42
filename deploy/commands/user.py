"""`filestore user`: users, through the API."""

import click

from deploy.base.connection import Connection, connection_options
from node.client.client import Client

ADMIN = "admin"  # the first admin, whose token every coordinator can mint


@click.group()
def user() -> None:
    """Users, whose tokens `filestore token user` mints."""


@user.command()
@click.argument("user_id")
@connection_options
def revoke(connection: Connection, user_id: str) -> None:
    """Revoke all tokens of a user, its permissions, and its public links. It stays, and what it owns.

    No node takes any of its tokens from then on; one that is minted later works.
    """

    async def work(client: Client) -> None:
        await client.revoke_user(user_id)

    connection.run(work)
    click.echo(f"Every token of {user_id} is dead, and its permissions and public links have ended.")
    if user_id == ADMIN:
        click.echo("On a coordinator, `filestore token admin --data DIR` mints another for the admin.")

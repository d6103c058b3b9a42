"""`filestore token`: tokens for the admin, for nodes that join, and for users."""

import time
from pathlib import Path
from typing import Any

import click
import uvloop

from ca.errors import Unavailable
from ca.secretfiles import write_secret
from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.options import Duration, data_option
from node.client.client import Client

REVOKING_S = 60
APPLIED_S_MAX = 30.0


@click.group()
def token() -> None:
    """Mint tokens."""


@token.command()
@data_option("The directory of a coordinator on this machine.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to write the token.  [default: admin.token in the directory]",
)
@click.option(
    "--revoke-old",
    is_flag=True,
    help="Revoke every earlier token of the admin first; the cluster must run. The admin's public links end.",
)
def admin(data: Path, output: Path | None, *, revoke_old: bool) -> None:
    """Mint a new admin token on a coordinator, without the API, into a file that only you can read.

    A token that was minted before a revocation is dead after it, so that the new one comes last.
    """
    from coordinator.admin import setup

    if revoke_old:
        _revoke_admin(data)
    path = output or data / "admin.token"
    write_secret(path, setup.mint_admin_token(data).encode() + b"\n")
    click.echo(path)


def _revoke_admin(data: Path) -> None:
    """Every token of the admin is dead when this returns, and this coordinator knows it.

    By a token of a minute, so that an old one need not be at hand. Raises what the API answers; Unavailable.
    """
    from coordinator.admin import setup
    from coordinator.runtime.config import CoordinatorFiles

    files = CoordinatorFiles(data)
    own, before = files.read_config().own, setup.admin_generation(data)
    token = setup.mint_admin_token(data, ttl_seconds=REVOKING_S)
    host = f"[{own.address}]" if ":" in own.address else own.address

    async def work() -> None:
        root_pem = read_text(files.root, "the CA certificate")
        async with Client([f"https://{host}:{own.api_port}"], root_pem=root_pem, token=token) as client:
            await client.revoke_user(setup.ADMIN_USER_ID)

    uvloop.run(work())
    give_up_at = time.monotonic() + APPLIED_S_MAX
    while setup.admin_generation(data) == before:
        if time.monotonic() > give_up_at:
            raise Unavailable(
                "The old tokens are revoked, and this coordinator does not know it yet: mint another one"
                " without --revoke-old when it has caught up."
            )
        time.sleep(0.1)


@token.command()
@click.option("--node-id", default="", help="Admit only a node of this name.")
@click.option("--ttl", "ttl_seconds", type=click.IntRange(60), help="Seconds that it lives.  [default: 1800]")
@click.option("--uses", "uses_max", type=click.IntRange(1), help="How many nodes may use it.  [default: 1]")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write it to a file (0600), print nothing."
)
@connection_options
def join(
    connection: Connection, node_id: str, ttl_seconds: int | None, uses_max: int | None, output: Path | None
) -> None:
    """Mint a join token for a node, and print it. It is shown once."""

    async def work(client: Client) -> str:
        answer = await client.create_join_token(node_id=node_id, ttl_seconds=ttl_seconds, uses_max=uses_max)
        return str(answer["token"])

    show(connection.run(work), output)


@token.command()
@click.argument("user_id")
@click.option("--role", "roles", multiple=True, help="Set the user's roles (admin is one).")
@click.option("--group", "groups", multiple=True, help="Set the user's groups.")
@click.option("--ttl", "ttl_seconds", type=click.IntRange(1), help="Seconds that it lives.  [default: 43200]")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write it to a file (0600), print nothing."
)
@connection_options
def user(
    connection: Connection,
    user_id: str,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    ttl_seconds: int | None,
    output: Path | None,
) -> None:
    """Mint a token for a user, who is created if unknown, and print it. It is shown once."""

    async def work(client: Client) -> str:
        answer = await client.mint_user_token(
            user_id, roles=roles or None, groups=groups or None, ttl_seconds=ttl_seconds
        )
        return str(answer["token"])

    show(connection.run(work), output)


@token.command("rotate-key")
@click.option(
    "--grace",
    type=Duration(),
    default="0s",
    show_default=True,
    help="How long tokens of the present key are still taken, for instance 12h: s, m, h or d.",
)
@connection_options
def rotate_key(connection: Connection, grace: int) -> None:
    """Let another key sign user tokens.

    Without a grace time every token that was ever minted ends at once, the admin's too: `filestore token
    admin` on a coordinator makes another.
    """

    async def work(client: Client) -> dict[str, Any]:
        return await client.call("POST", "/api/v1/auth/keys", dict[str, Any], body={"grace_seconds": grace})

    answer = connection.run(work)
    click.echo(f"{answer['kid']} signs from now on. Older tokens end at {answer['others_end_at']}.")


def show(secret: str, output: Path | None) -> None:
    """Print a secret, or write it where only its owner reads it."""
    if output is None:
        click.echo(secret)
    else:
        write_secret(output, secret.encode() + b"\n")

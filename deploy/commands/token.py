"""`filestore token`: tokens for the admin, for nodes that join, and for users."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
import uvloop

from ca.errors import Unavailable
from ca.hostnames import authority_of
from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.options import Duration, data_option
from deploy.base.output import json_option, moment, print_json, print_records
from deploy.base.own_files import require_writable, secret_output_option, write_own
from filestore_client import AsyncClient
from filestore_client.base.errors import NotFound
from filestore_client.base.records import JoinToken, MintedJoinToken, MintedToken

REVOKING_S = 60
APPLIED_S_MAX = 30.0
_COLUMNS: Final[Mapping[str, Callable[[JoinToken], object]]] = {
    "token_id": lambda token: token.token_id,
    "for": lambda token: token.node_id or "any node",
    "uses": lambda token: f"{token.uses} of {token.max_uses}",
    "by": lambda token: token.created_by,
    "until": lambda token: moment(token.expires_at),
}


@click.group()
def token() -> None:
    """Tokens of users, of nodes that join, and of the admin."""


@token.command()
@data_option("The directory of a coordinator on this machine.")
@secret_output_option("Where to write the token.  [default: admin.token in the directory]")
@click.option(
    "--revoke-old",
    is_flag=True,
    help="Revoke every earlier token of the admin first; the cluster must run. The admin's public links end.",
)
def admin(data: Path, output: Path | None, *, revoke_old: bool) -> None:
    """Mint an admin token on a coordinator, without the API.

    It is written to a file that only you can read. Earlier tokens stay valid, unless --revoke-old ends them.
    """
    from coordinator.admin import setup

    if revoke_old:
        _revoke_admin(data)
    path = output or data / "admin.token"
    write_own(path, setup.mint_admin_token(data).encode() + b"\n")
    click.echo(path)


def _revoke_admin(data: Path) -> None:
    """Every token of the admin is dead when this returns, and this coordinator knows it.

    By a token of a minute, so that an old one need not be at hand. Raises what the API answers; Unavailable.
    """
    from coordinator.admin import setup
    from coordinator.storage.config import CoordinatorFiles

    files = CoordinatorFiles(data)
    own, before = files.read_config().own, setup.admin_generation(data)
    token = setup.mint_admin_token(data, ttl_seconds=REVOKING_S)

    async def work() -> None:
        root_pem = read_text(files.root, "the CA certificate")
        url = f"https://{authority_of(own.address, own.api_port)}"
        async with AsyncClient(url, root_pem=root_pem, token=token) as client:
            await client.users.revoke(setup.ADMIN_USER_ID)

    uvloop.run(work())
    give_up_at = time.monotonic() + APPLIED_S_MAX
    while setup.admin_generation(data) == before:
        if time.monotonic() > give_up_at:
            raise Unavailable(
                "The old tokens are revoked, but this coordinator has not received that change yet. "
                "When it has caught up, create another token without --revoke-old."
            )
        time.sleep(0.1)


@token.command()
@click.option("--node-id", default="", help="Admit only a node of this name.")
@click.option(
    "--ttl",
    "ttl_seconds",
    type=Duration(least_s=60),
    help="Its validity, such as 2h.  [default: 30m]",
)
@click.option("--uses", "uses_max", type=click.IntRange(1), help="How many nodes may use it.  [default: 1]")
@secret_output_option("Write it to a file (0600), print nothing.")
@json_option
@connection_options
def join(
    connection: Connection,
    node_id: str,
    ttl_seconds: int | None,
    uses_max: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Mint a token for a node that joins, and print it. Admins only.

    It is shown only once.
    """

    async def work(client: AsyncClient) -> MintedJoinToken:
        return await client.join_tokens.create(node_id=node_id, ttl_seconds=ttl_seconds, max_uses=uses_max)

    show(connection.run(work), output, as_json=as_json)


@token.command("setup")
@data_option("The directory of a coordinator on this machine, which runs.")
@click.option(
    "--ttl",
    "ttl_seconds",
    type=Duration(least_s=60),
    default="30m",
    show_default=True,
    help="How long it is valid, such as 2h; at most a day.",
)
@secret_output_option("Write it to a file (0600), print nothing.")
def setup_token(data: Path, ttl_seconds: int, output: Path | None) -> None:
    """Print a setup token for another machine.

    With it, `filestore setup --join` makes that machine a coordinator and a node, once. The token is made
    with the cluster key, so only users who can read this directory can make one. `filestore token rm` revokes
    it.
    """
    from coordinator.storage.config import CoordinatorFiles
    from deploy.setup.tokens import mint_setup_token

    text = mint_setup_token(CoordinatorFiles(data), ttl_seconds=ttl_seconds).text
    if output is None:
        click.echo(f"filestore setup --join <<< '{text}'")
    else:
        write_own(output, text.encode() + b"\n")


@token.command()
@click.argument("user_id")
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="Set the user's roles, once for each (admin, service).",
)
@click.option("--group", "groups", multiple=True, help="Set the user's groups, once for each.")
@click.option(
    "--ttl", "ttl_seconds", type=Duration(least_s=1), help="How long it is valid, such as 7d.  [default: 12h]"
)
@click.option("--label", default="", help="What it is for, as its user sees it in the list of sessions.")
@secret_output_option("Write it to a file (0600), print nothing.")
@json_option
@connection_options
def user(
    connection: Connection,
    user_id: str,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    ttl_seconds: int | None,
    label: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Mint a token for a user, and print it. Admins only.

    A user who is not known yet is created, and a line on standard error says so. The token is shown this
    once.
    """

    async def work(client: AsyncClient) -> MintedToken:
        mint = partial(
            client.users.mint_token,
            user_id,
            roles=roles or None,
            groups=groups or None,
            ttl_seconds=ttl_seconds,
            label=label,
        )
        try:
            return await mint(existing=True)
        except NotFound:
            minted = await mint()
        click.echo(f"{user_id} is a new user.", err=True)
        return minted

    show(connection.run(work), output, as_json=as_json)


@token.command("rotate-key")
@click.option(
    "--grace",
    type=Duration(),
    default="0s",
    show_default=True,
    help="How long tokens of the present key remain valid, for instance 12h: s, m, h or d.",
)
@json_option
@connection_options
def rotate_key(connection: Connection, grace: int, as_json: bool) -> None:
    """Replace the key that signs the tokens of users. Admins only.

    Without --grace, every token ends at once, including the admin's. `filestore token admin` on a coordinator
    makes a new one.
    """
    rotated = connection.run(lambda client: client.users.rotate_key(grace_seconds=grace))
    if as_json:
        print_json(rotated)
    else:
        click.echo(f"{rotated.kid} signs from now on. Older tokens end at {moment(rotated.others_end_at)}.")


@token.command()
@click.option(
    "--ttl",
    type=Duration(least_s=1),
    help="How long the new token is valid, such as 7d.  [default: 30d]",
)
@secret_output_option("Where to write it.  [default: in the place of the present one]")
@json_option
@connection_options
def renew(connection: Connection, ttl: int | None, output: Path | None, as_json: bool) -> None:
    """Renew your own token while it is valid.

    The new token replaces the content of the token file. The old token stays valid until it expires.
    """

    async def work(client: AsyncClient) -> MintedToken:
        return await client.users.renew_token(ttl_seconds=ttl)

    path = output or require_writable(connection.token_file)
    minted = connection.run(work)
    if as_json:
        show(minted, path, as_json=True)
    else:
        write_own(path, minted.token.encode() + b"\n")
        click.echo(f"The token in {path} is valid until {moment(minted.expires_at)}.")


@token.command("ls")
@json_option
@connection_options
def list_join_tokens(connection: Connection, as_json: bool) -> None:
    """List the tokens for nodes that join. Admins only.

    Lists valid tokens, without their secrets.
    """

    async def work(client: AsyncClient) -> list[JoinToken]:
        return [each async for each in client.join_tokens.list()]

    empty = "No join tokens. `filestore token join` creates one."
    print_records(connection.run(work), _COLUMNS, as_json=as_json, empty=empty)


@token.command("rm")
@click.argument("token_id")
@connection_options
def remove_join_token(connection: Connection, token_id: str) -> None:
    """Revoke a token for joining nodes. Admins only.

    TOKEN_ID is in the first column of `filestore token ls`.
    """
    connection.run(lambda client: client.join_tokens.delete(token_id))
    click.echo(f"{token_id} is revoked.")


def show(minted: MintedJoinToken | MintedToken, output: Path | None, *, as_json: bool) -> None:
    """Print a token, or write it to a file that only its owner can read. `as_json`: with its other fields."""
    if output is not None:
        write_own(output, minted.token.encode() + b"\n")
    if as_json:
        fields = msgspec.to_builtins(minted)
        print_json(fields if output is None else fields | {"token": "", "token_file": str(output)})
    elif output is None:
        click.echo(minted.token)

"""`filestore session`: the sessions of a user. Apart from `account`, which prints them as well.

Tested by tests/cluster/test_command_people.py.
"""

from collections.abc import Callable, Mapping
from typing import Final

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.output import json_option, moment, print_records
from filestore_client import AsyncClient
from filestore_client.base.records import Session

_COLUMNS: Final[Mapping[str, Callable[[Session], object]]] = {
    "session_id": lambda session: session.session_id,
    "of": lambda session: f"{session.label} (this one)" if session.is_current else session.label,
    "by": lambda session: session.created_by,
    "made": lambda session: moment(session.created_at),
    "renewed": lambda session: moment(session.renewed_at),
    "until": lambda session: moment(session.expires_at),
}
_user = click.option("--user", "user_id", default="", help="Sessions of this user. Admins only.")


@click.group()
def session() -> None:
    """Sessions, a token and its renewals each: ls, end.

    A session begins with a new token or an invitation, and has all tokens that are renewed from it. The
    cluster does not record the use of a token.
    """


@session.command("ls")
@_user
@json_option
@connection_options
def list_sessions(connection: Connection, user_id: str, as_json: bool) -> None:
    """List your live sessions, or those of a user."""
    print_sessions(connection, user_id, as_json=as_json)


@session.command("end")
@click.argument("session_id", required=False)
@click.option("--all", "is_all", is_flag=True, help="End all, this one too: every token made before.")
@_user
@connection_options
def end(connection: Connection, session_id: str | None, *, is_all: bool, user_id: str) -> None:
    """End a session: its tokens are rejected from the next request on.

    SESSION_ID is in the first column of `filestore session ls`. Permissions and public links stay.
    """
    if is_all == bool(session_id):
        raise click.UsageError("Give either SESSION_ID or --all.")

    async def work(client: AsyncClient) -> str:
        user = user_id or (await client.whoami()).user_id
        if is_all:
            await client.sessions.end_all(user)
        else:
            await client.sessions.end(user, str(session_id))
        return user

    user = connection.run(work)
    ended = (
        f"All tokens of {user} are"
        if is_all
        else f"The session {session_id} of {user} has ended: its tokens are"
    )
    click.echo(f"{ended} rejected from now on.")


def print_sessions(connection: Connection, user_id: str, *, as_json: bool) -> None:
    """List the live sessions of a user, "" for those of the caller."""

    async def work(client: AsyncClient) -> list[Session]:
        user = user_id or (await client.whoami()).user_id
        return [each async for each in client.sessions.list(user)]

    empty = "No sessions: tokens of releases before 0.2.0, and of `filestore token admin`, are not listed."
    print_records(connection.run(work), _COLUMNS, as_json=as_json, empty=empty)

"""`filestore audit`: who did what, from the logs of all members."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import click
import msgspec

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import NEEDS_ATTENTION, line_of
from deploy.base.lookup import find_file_uuid, member_urls
from deploy.base.options import Duration
from deploy.base.output import json_option, moment, print_records
from filestore_client import AsyncClient
from filestore_client.administration import Audit
from filestore_client.base.errors import FilestoreError
from filestore_client.base.records import AuditEntry

SHOWN_MAX: Final = 100
_COLUMNS: Final[Mapping[str, Callable[[AuditEntry], object]]] = {
    "at": lambda entry: moment(entry.time),
    "who": lambda entry: entry.principal,
    "did": lambda entry: entry.action,
    "to": lambda entry: entry.target,
    "outcome": lambda entry: entry.outcome,
    "from": lambda entry: entry.client_address,
    "member": lambda entry: entry.member,
}


@click.command()
@click.option("--user", "principal", default="", help="Only what this user did.")
@click.option("--file", help="Only what was done to this file, by its name or its file_uuid.")
@click.option("--action", default="", help="Only this action, such as delete_file.")
@click.option("--since", type=Duration(least_s=1), help="Only what happened within this time, such as 7d.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=SHOWN_MAX,
    show_default=True,
    help="Show at most this many.",
)
@json_option
@connection_options
def audit(
    connection: Connection,
    principal: str,
    file: str | None,
    action: str,
    since: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """Show who did what, newest first. Admins only.

    Each member of the cluster records its own requests; the command asks all members. Exit code 10 if some do
    not answer.
    """

    async def work(client: AsyncClient) -> tuple[list[AuditEntry], dict[str, FilestoreError]]:
        filters = {"principal": principal, "action": action}
        if since is not None:
            filters["since_seconds"] = str(since)
        if file is not None:
            filters["target"] = await find_file_uuid(client, file)
        members = await member_urls(client)
        answers = await asyncio.gather(
            *(_entries(client, member, url, limit, filters) for member, url in members.items()),
            return_exceptions=True,
        )
        entries: list[AuditEntry] = []
        silent: dict[str, FilestoreError] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, FilestoreError):
                silent[member] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                entries += answer
        if len(silent) == len(members):
            raise next(iter(silent.values()))
        return sorted(entries, key=lambda entry: entry.time, reverse=True)[:limit], silent

    entries, silent = connection.run(work)
    print_records(entries, _COLUMNS, as_json=as_json, empty="No entry matches.")
    for member, error in silent.items():
        click.echo(f"filestore: {member} does not answer: {line_of(error)}", err=True)
    return NEEDS_ATTENTION if silent else 0


async def _entries(
    client: AsyncClient, member: str, url: str, limit: int, filters: Mapping[str, str]
) -> list[AuditEntry]:
    """Return the entries of one member. Raises FilestoreError."""
    transport = client.transport.only(url)
    found: list[AuditEntry] = []
    async for entry in Audit(transport).list(**filters):
        found.append(msgspec.structs.replace(entry, member=entry.member or member))
        if len(found) >= limit:
            break
    return found

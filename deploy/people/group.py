"""`filestore group`: groups of users, their members and what they were granted."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.output import json_option, moment, print_json, print_record, print_records
from filestore_client import AsyncClient
from filestore_client.base.records import Grant, Group, GroupMember
from runtime.wording import counted

ADDED_AT_ONCE: Final = 500  # as many as one request may have
_GROUPS: Final[Mapping[str, Callable[[Group], object]]] = {
    "group": lambda group: group.group,
    "members": lambda group: group.members,
    "description": lambda group: group.description,
}
_MEMBERS: Final[Mapping[str, Callable[[GroupMember], object]]] = {
    "member": lambda member: member.user_id,
    "by": lambda member: member.sources,
    "disabled": lambda member: member.disabled,
}
_GRANTS: Final[Mapping[str, Callable[[Grant], object]]] = {
    "permission": lambda grant: grant.permission,
    "on": lambda grant: f"{grant.target} {grant.name}",
    "by": lambda grant: grant.granted_by,
    "until": lambda grant: moment(grant.expires_at),
}


@click.group()
def group() -> None:
    """Groups of users: ls, show, add, remove, rm.

    `filestore grant add GROUP read --type group --bucket BUCKET` gives a group access.
    """


@group.command("ls")
@json_option
@connection_options
def list_groups(connection: Connection, as_json: bool) -> None:
    """List the groups, with the number of their members. Admins only."""

    async def work(client: AsyncClient) -> list[Group]:
        return [each async for each in client.groups.list()]

    empty = "No groups. `filestore group add GROUP USER...` creates one."
    print_records(connection.run(work), _GROUPS, as_json=as_json, empty=empty)


@group.command("show")
@click.argument("name", metavar="GROUP")
@json_option
@connection_options
def show_group(connection: Connection, name: str, as_json: bool) -> None:
    """Show a group, its members, and what it was granted. Admins only.

    The column `by` is `local` for members that an administrator has added, and else the name of the provider
    of sign-in that reports the group.
    """

    async def work(client: AsyncClient) -> tuple[Group, list[GroupMember], list[Grant]]:
        found = await client.groups.get(name)
        members = client.groups.members(name)
        return found, [each async for each in members], [each async for each in client.groups.grants(name)]

    found, members, grants = connection.run(work)
    if as_json:
        fields = {"group": found.group, "description": found.description}
        print_json(fields | {"members": members, "permissions": grants})
        return
    print_record(found, as_json=False)
    print_records(members, _MEMBERS, as_json=False, empty="No members.")
    print_records(grants, _GRANTS, as_json=False, empty="It was granted nothing.")


@group.command("add")
@click.argument("name", metavar="GROUP")
@click.argument("users", metavar="[USER]...", nargs=-1)
@click.option("--description", help="What the group is for.")
@json_option
@connection_options
def add(
    connection: Connection, name: str, users: tuple[str, ...], description: str | None, as_json: bool
) -> None:
    """Add users to a group, which is created if necessary. Admins only.

    Without USER, it creates an empty group. Exit code 4 if a user does not exist; then none of up to 500 is
    added.
    """

    async def work(client: AsyncClient) -> tuple[Group, list[str]]:
        if description is not None or not users:
            await client.groups.put(name, description=description)
        added = [each async for each in _add_all(client, name, users)]
        return await client.groups.get(name), added

    found, added = connection.run(work)
    if as_json:
        print_json({"group": found.group, "members": found.members, "added": added})
        return
    if users:
        already = len(set(users)) - len(added)
        click.echo(f"{len(added)} added, {already} in it before." if already else f"{len(added)} added.")
    click.echo(f"{found.group} has {counted(found.members, 'member', 'members')}.")


@group.command("remove")
@click.argument("name", metavar="GROUP")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@connection_options
def remove(connection: Connection, name: str, users: tuple[str, ...]) -> None:
    """Remove users from a group. Admins only.

    What the group was granted ends for them with their next request. A member that a provider of sign-in
    reports is removed there.
    """

    async def work(client: AsyncClient) -> None:
        for user in users:
            await client.groups.remove(name, user)
            click.echo(f"{user} is not in {name} any more.")

    connection.run(work)


@group.command("rm")
@click.argument("name", metavar="GROUP")
@connection_options
def delete(connection: Connection, name: str) -> None:
    """Delete a group, its memberships, and its permissions. Admins only.

    Its users and their files stay.
    """
    connection.run(lambda client: client.groups.delete(name))
    click.echo(f"{name} is deleted, with its permissions.")


async def _add_all(client: AsyncClient, name: str, users: Sequence[str]) -> AsyncIterator[str]:
    for start in range(0, len(users), ADDED_AT_ONCE):
        for user in await client.groups.add(name, users[start : start + ADDED_AT_ONCE]):
            yield user

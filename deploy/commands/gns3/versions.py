"""`filestore gns3 versions`, `tag` and `note`: the backups of a project, their names and messages.

Tested by tests/gns3/test_versions.py.
"""

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.output import json_option, moment, print_records, size
from deploy.base.printed import printable_name
from deploy.commands.gns3.choosing import VersionMessage, VersionTag, from_option, owner_id_of, owner_option
from deploy.gns3.chains import chains_of, find_backup, move_tag, of_projects, of_server
from deploy.gns3.listing import ListedVersion, list_version
from deploy.gns3.stored import NO_TAG, StoredBackup, stored_backups
from filestore_client import AsyncClient


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1)
@from_option
@owner_option
@json_option
@connection_options
def versions(
    connection: Connection, projects: tuple[str, ...], source: str, owner: str, as_json: bool
) -> None:
    """List the backups of projects, with tags and messages.

    PROJECT is a name or an id; the default is all. The oldest version of each project comes first.
    """

    async def work(client: AsyncClient) -> list[ListedVersion]:
        owner_id = await owner_id_of(client, owner)
        chains = chains_of(await stored_backups(client), owner_id, mix_kinds=True)
        chosen = of_projects(of_server(chains, source), projects)
        return [list_version(each) for chain in chosen for each in chain.backups]

    print_records(
        connection.run(work),
        {
            "project": lambda version: version.name,
            "server": lambda version: version.server,
            "made": lambda version: moment(version.created_at),
            "kind": lambda version: version.kind,
            "size": lambda version: size(version.size_bytes),
            "tag": lambda version: version.tag,
            "message": lambda version: version.message,
            "file_uuid": lambda version: version.file_uuid,
        },
        as_json=as_json,
        empty="No backups of projects.",
    )


@click.command()
@click.argument("version", metavar="PROJECT[@VERSION]|FILE_UUID")
@click.argument("name", metavar="TAG", type=VersionTag(), default="")
@click.option("--remove", "is_removed", is_flag=True, help="Remove the tag of this version.")
@from_option
@connection_options
def tag(connection: Connection, version: str, name: str, is_removed: bool, source: str) -> None:
    """Name a version of a project: `prune` keeps it.

    VERSION is a tag, a day or a moment; without it, the newest version is meant. Another version of the
    project loses the tag. `filestore gns3 restore PROJECT@TAG` restores a version by its tag.
    """
    if is_removed == bool(name):
        raise click.UsageError("Give a tag, or --remove.")

    async def work(client: AsyncClient) -> StoredBackup:
        found = await _found(client, version, source)
        if is_removed:
            await client.projects.update(found.file.file_uuid, tag=NO_TAG)
        else:
            await move_tag(client, found.file, name)
        return found

    _tell(connection.run(work), name or "no tag")


@click.command()
@click.argument("version", metavar="PROJECT[@VERSION]|FILE_UUID")
@click.argument("message", type=VersionMessage())
@from_option
@connection_options
def note(connection: Connection, version: str, message: str, source: str) -> None:
    """Change the message of a version of a project.

    VERSION is a tag, a day or a moment; without it, the newest version is meant.
    """
    if not message:
        raise click.UsageError("Give a message.")

    async def work(client: AsyncClient) -> StoredBackup:
        found = await _found(client, version, source)
        await client.projects.update(found.file.file_uuid, message=message)
        return found

    _tell(connection.run(work), message)


async def _found(client: AsyncClient, version: str, source: str) -> StoredBackup:
    owner_id = (await client.whoami()).user_id
    return await find_backup(client, version, owner_id=owner_id, server=source, kind=None)


def _tell(version: StoredBackup, said: str) -> None:
    file = version.file
    named = f"{printable_name(file.project_name)}  {moment(file.created_at)}"
    click.echo(f"{file.file_uuid}  {named}  {printable_name(said)}")

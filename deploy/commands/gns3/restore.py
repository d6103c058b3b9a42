"""`filestore gns3 restore` and `verify`: backups back on a server, for good or to see that they work."""

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import exit_code_of, line_of
from deploy.base.output import json_option, moment, print_json
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars
from deploy.commands.gns3.connecting import run_with_server
from deploy.gns3.restore import RestoredProject
from deploy.gns3.restore import restore as restore_backup
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import StoredBackup, all_backups, find_backup, stored_images
from deploy.gns3.verify import Verdict, verify_restored, verify_stored
from filestore_client import AsyncClient


@click.command()
@click.argument("named", metavar="PROJECT[@DATE]|FILE_UUID")
@click.option(
    "--to",
    "server",
    default="",
    metavar="SERVER",
    help="A GNS3 server that you are signed in to.  [default: the only one]",
)
@click.option("--name", default="", help="What the project is called there.  [default: as it was]")
@click.option("--start", is_flag=True, help="Start its nodes, and leave it open.")
@json_option
@connection_options
def restore(connection: Connection, named: str, server: str, name: str, start: bool, as_json: bool) -> None:
    """Make a project of a backup, on any GNS3 server.

    The newest backup is taken, or the newest until the end of a day (@2026-11-20) or a moment. Images that
    the server lacks are given to it first. The new project has an id of its own, and where the name is taken
    there GNS3 appends a number. It is opened, so that every node has found its image, and closed again.
    """

    async def work(reached: Gns3Server, client: AsyncClient) -> tuple[StoredBackup, RestoredProject]:
        backup = await find_backup(client, named)
        with ProgressBars() as bars:
            return backup, await restore_backup(reached, client, backup, bar=bars.bar, name=name, start=start)

    backup, restored = run_with_server(connection, server, work)
    for image in restored.unknown_images:
        told = f"{printable_name(image)} has no checksum in the project: the server must find it itself"
        click.echo(f"filestore: warning: {told}", err=True)
    if as_json:
        print_json(
            {
                "project_id": restored.project.project_id,
                "name": restored.project.name,
                "file_uuid": backup.file.file_uuid,
                "nodes": restored.nodes,
                "images": restored.images,
            }
        )
        return
    told = printable_name(restored.project.name)
    click.echo(
        f"{restored.project.project_id}  {told}  {restored.nodes} nodes, {restored.images} images given;"
        f" from the backup of {moment(backup.file.created_at)}"
    )


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1)
@click.option(
    "--to",
    "server",
    default="",
    metavar="SERVER",
    help="Restore each to this GNS3 server, open it, and delete it there again.",
)
@json_option
@connection_options
def verify(connection: Connection, projects: tuple[str, ...], server: str, as_json: bool) -> int:
    """See that the newest backup of each project works.

    Without --to, archives and images are looked at where they lie: whether each archive is as it was made,
    and all images that it names are stored. PROJECT is a name or an id; without one all are meant.
    """

    async def newest(client: AsyncClient) -> list[StoredBackup]:
        if projects:
            return [await find_backup(client, each) for each in projects]
        found = [backups[-1] for backups in (await all_backups(client)).values()]
        return sorted(found, key=lambda backup: backup.file.project_name)

    async def look(client: AsyncClient) -> int:
        in_store, code = await stored_images(client), 0
        for backup in await newest(client):
            code = _tell(await verify_stored(client, backup, in_store), as_json=as_json) or code
        return code

    async def try_out(reached: Gns3Server, client: AsyncClient) -> int:
        code = 0
        with ProgressBars() as bars:
            for backup in await newest(client):
                verdict = await verify_restored(reached, client, backup, bar=bars.bar)
                code = _tell(verdict, as_json=as_json) or code
        return code

    return run_with_server(connection, server, try_out) if server else connection.run(look)


def _tell(verdict: Verdict, *, as_json: bool) -> int:
    """A line for one backup; the exit code that it asks for."""
    file, error = verdict.backup.file, verdict.error
    if as_json:
        print_json(
            {
                "project_id": file.project_id,
                "name": file.project_name,
                "file_uuid": file.file_uuid,
                "works": error is None,
                "error": "" if error is None else line_of(error),
            }
        )
    elif error is not None:
        click.echo(f"filestore: {printable_name(file.project_name)}: {line_of(error)}", err=True)
    else:
        seen = "whole" if verdict.nodes is None else f"restored and opened, {verdict.nodes} nodes"
        click.echo(
            f"{file.file_uuid}  {printable_name(file.project_name)}  {moment(file.created_at)}  {seen}"
        )
    return 0 if error is None else exit_code_of(error)

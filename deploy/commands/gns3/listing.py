"""`filestore gns3 ls`: projects and images of a server, and what the store has of them.

Tested by tests/gns3/test_backup.py.
"""

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, exit_code_of, line_of
from deploy.base.output import json_option, moment, print_records, size
from deploy.base.printed import printable_name
from deploy.commands.gns3.choosing import owner_id_of, owner_option
from deploy.commands.gns3.connecting import run_with_server, server_option
from deploy.gns3.listing import ListedImage, ListedProject, list_project
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import stored_images
from deploy.gns3.watch import Patience
from filestore_client import AsyncClient


@click.command()
@click.argument("what", type=click.Choice(["projects", "images"]), default="projects")
@click.option(
    "--exact", is_flag=True, help="Read every export to its end, so that a changed disk is noticed too."
)
@server_option
@owner_option
@json_option
@connection_options
def ls(connection: Connection, what: str, exact: bool, server: str, owner: str, as_json: bool) -> int:
    """List projects or images, and what the store has of them.

    WHAT is projects or images. A change since the last backup is detected by the topology of a project. A
    changed disk is only detected with --exact, which takes as long as exporting everything. A project that
    fails is reported, and the exit code is that of the failure.
    """

    async def look_at_images(reached: Gns3Server, client: AsyncClient) -> list[ListedImage]:
        stored = (await stored_images(client, await owner_id_of(client, owner))).visible
        return [
            ListedImage(
                filename=image.filename,
                image_type=image.image_type,
                size_bytes=image.image_size,
                md5=image.checksum,
                file_uuid=stored[image.checksum].file_uuid if image.checksum in stored else "",
            )
            for image in await reached.images()
        ]

    async def look_at_projects(reached: Gns3Server, client: AsyncClient) -> tuple[list[ListedProject], int]:
        owner_id = await owner_id_of(client, owner)
        md5s = set((await stored_images(client, owner_id)).visible)
        rows, code, patience = [], 0, Patience(connection.deadline_s)
        for project in await reached.projects():
            try:
                row = await list_project(reached, client, project, md5s, owner_id=owner_id, exact=exact)
            except FAILURES as error:
                if await patience.is_over(error, reached.projects):
                    raise
                click.echo(f"filestore: {printable_name(project.name)}: {line_of(error)}", err=True)
                code = code or exit_code_of(error)
            else:
                rows.append(row)
        return rows, code

    if what == "images":
        _print_images(run_with_server(connection, server, look_at_images), as_json=as_json)
        return 0
    projects, code = run_with_server(connection, server, look_at_projects)
    print_records(
        projects,
        {
            "name": lambda project: project.name,
            "status": lambda project: project.status,
            "backups": lambda project: project.backups,
            "last": lambda project: moment(project.last_backup),
            "kind": lambda project: project.kind,
            "changed": lambda project: project.changed,
            "images": _images_told,
            "missing": _files_told,
        },
        as_json=as_json,
        empty="No projects that you can access.",
    )
    return code


def _print_images(images: list[ListedImage], *, as_json: bool) -> None:
    print_records(
        images,
        {
            "name": lambda image: image.filename,
            "type": lambda image: image.image_type,
            "size": lambda image: size(image.size_bytes),
            "stored": lambda image: bool(image.file_uuid),
            "md5": lambda image: image.md5,
        },
        as_json=as_json,
        empty="No images except those that come with GNS3.",
    )


def _files_told(project: ListedProject) -> str:
    """Nothing where the backup has every file that GNS3 is known to have."""
    count = project.files_missing
    return f"{count} file{'s' if count > 1 else ''}" if count else ""


def _images_told(project: ListedProject) -> str:
    if project.images_missing:
        return f"{project.images_missing} of {project.images_stored + project.images_missing} missing"
    return f"{project.images_stored} stored" if project.images_stored else ""

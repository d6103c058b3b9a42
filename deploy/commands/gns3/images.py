"""`filestore gns3 images`: push, pull and sync, by the MD5 of the content."""

from collections.abc import Callable, Sequence

import click

from ca.errors import NotFound
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, Failure, exit_code_of, line_of
from deploy.base.output import json_option, print_json, size
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars
from deploy.commands.gns3.choosing import owner_id_of, owner_option
from deploy.commands.gns3.connecting import address_of, bucket_id_of, bucket_option, ended_by_sigterm
from deploy.gns3.damage import Damages
from deploy.gns3.images import PlannedImage, plan_pull, plan_push, pull_image, push_image
from deploy.gns3.logins import read_logins
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import stored_images
from filestore_client import AsyncClient
from filestore_client.base.records import Image

CONFLICT = 5


def _shared_options(command: Callable[..., int]) -> Callable[..., int]:
    """Which servers and images, and whether anything is done."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
        click.option(
            "--server",
            "servers",
            multiple=True,
            metavar="NAME",
            help="A GNS3 server; several may be given.  [default: all that are known]",
        ),
    ):
        command = option(command)
    return command


@click.group()
def images() -> None:
    """Bring images into the store and to servers: push, pull, sync."""


@images.command()
@click.argument("named", metavar="IMAGE...", nargs=-1)
@_shared_options
@bucket_option
@json_option
@connection_options
def push(
    connection: Connection,
    named: tuple[str, ...],
    servers: tuple[str, ...],
    dry_run: bool,
    bucket: str,
    as_json: bool,
) -> int:
    """Store the images of GNS3 servers that the store lacks.

    IMAGE is a name or an MD5; the default is all images except those that come with GNS3. Reading an
    image needs the credentials of the server's compute: see `filestore gns3 login`. After an interruption,
    the same command resumes.
    """
    job = _Job(servers, named, dry_run=dry_run, as_json=as_json, bucket=bucket)
    return job.run(connection, [job.push])


@images.command()
@click.argument("named", metavar="IMAGE...", nargs=-1)
@_shared_options
@owner_option
@json_option
@connection_options
def pull(
    connection: Connection,
    named: tuple[str, ...],
    servers: tuple[str, ...],
    dry_run: bool,
    owner: str,
    as_json: bool,
) -> int:
    """Copy stored images to GNS3 servers that lack them.

    IMAGE is a name or an MD5; the default is all images. An image of the same name with other content is left
    unchanged and reported, with exit code 5.
    """
    job = _Job(servers, named, dry_run=dry_run, as_json=as_json, owner=owner)
    return job.run(connection, [job.pull])


@images.command()
@click.argument("named", metavar="IMAGE...", nargs=-1)
@_shared_options
@bucket_option
@json_option
@connection_options
def sync(
    connection: Connection,
    named: tuple[str, ...],
    servers: tuple[str, ...],
    dry_run: bool,
    bucket: str,
    as_json: bool,
) -> int:
    """Push from all servers, then pull to all of them.

    Then the store and every server have the same images, as far as no names collide.
    """
    job = _Job(servers, named, dry_run=dry_run, as_json=as_json, bucket=bucket)
    return job.run(connection, [job.push, job.pull])


class _Job:
    """One command: its steps, server by server, and the first exit code that is not 0."""

    def __init__(
        self,
        servers: tuple[str, ...],
        named: tuple[str, ...],
        *,
        dry_run: bool,
        as_json: bool,
        bucket: str = "",
        owner: str = "",
    ) -> None:
        known = read_logins()
        names = servers or tuple(sorted(known.servers)) or ("",)
        self._addresses = [address_of(name) for name in names]
        self._named, self._dry_run, self._as_json, self._bucket = named, dry_run, as_json, bucket
        self._absent = dict.fromkeys(named)  # the names that no image had so far
        self._owner = owner
        self._code = 0
        self._pushed: dict[str, Image] = {}

    def run(self, connection: Connection, steps: Sequence[Callable[..., object]]) -> int:
        """Run each step for every server. A failing server is reported, and the others continue."""

        async def work(client: AsyncClient) -> int:
            with ended_by_sigterm(), ProgressBars() as bars:
                for step in steps:
                    for address in self._addresses:
                        try:
                            async with Gns3Server(address, deadline_s=connection.deadline_s) as server:
                                await step(server, client, bars)  # type: ignore[misc]
                        except FAILURES as error:
                            self._failed(address.name, error)
                            self._absent.clear()  # it may have them
            for name in self._absent:
                self._failed(name, NotFound("No image that does not come with GNS3 has this name or MD5."))
            return self._code

        return connection.run(work)

    async def push(self, server: Gns3Server, client: AsyncClient, bars: ProgressBars) -> None:
        """Store the images of one server."""
        bucket_id = await bucket_id_of(client, self._bucket)
        own = (await stored_images(client, await owner_id_of(client, ""))).own
        in_store = await Damages(client).whole_images(own)
        for planned in plan_push(await server.images(), in_store):
            if not self._is_meant(planned):
                continue
            if planned.act == "copy" and not self._dry_run:
                try:
                    with bars.bar(planned.image.filename) as progress:
                        await push_image(
                            server, client, planned.image, bucket_id=bucket_id, progress=progress
                        )
                except FAILURES as error:
                    self._failed(planned.image.filename, error)
                    continue
            self._tell(server, planned, "stored")

    async def pull(self, server: Gns3Server, client: AsyncClient, bars: ProgressBars) -> None:
        """Send images from the store to one server."""
        owner_id = await owner_id_of(client, self._owner)
        stored = list((await stored_images(client, owner_id)).own.values())
        for planned in plan_pull(stored, await server.images()):
            if not self._is_meant(planned):
                continue
            if planned.act == "copy" and not self._dry_run:
                try:
                    with bars.bar(planned.image.filename) as progress:
                        await pull_image(server, client, planned.image, planned.file_uuid, progress=progress)
                except FAILURES as error:
                    self._failed(planned.image.filename, error)
                    continue
            self._tell(server, planned, f"given to {server.name}")

    def _is_meant(self, planned: PlannedImage) -> bool:
        names = {planned.image.filename, planned.image.checksum} & {*self._named}
        for name in names:
            self._absent.pop(name, None)
        return bool(names) or not self._named

    def _tell(self, server: Gns3Server, planned: PlannedImage, done: str) -> None:
        if planned.act == "conflict":
            self._code = self._code or CONFLICT
        if self._as_json:
            print_json(
                {
                    "server": server.name,
                    "filename": planned.image.filename,
                    "md5": planned.image.checksum,
                    "size_bytes": planned.image.image_size,
                    "act": planned.act,
                    "done": planned.act == "copy" and not self._dry_run,
                    "why": planned.why,
                }
            )
            return
        name = printable_name(planned.image.filename)
        if planned.act == "conflict":
            click.echo(
                f"filestore: {server.name}: {name}: conflict: {planned.why}. It was not changed.", err=True
            )
        elif planned.act == "copy":
            will = "would be " if self._dry_run else ""
            click.echo(f"{name}  {size(planned.image.image_size)}  {will}{done}")

    def _failed(self, named: str, error: Failure) -> None:
        self._code = self._code or exit_code_of(error)
        click.echo(f"filestore: {printable_name(named)}: {line_of(error)}", err=True)

"""`filestore gns3 restore` and `verify`: backups back on a server, for good or to see that they work."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from msgspec import to_builtins

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, NEEDS_ATTENTION, exit_code_of, line_of, worse_of
from deploy.base.output import json_option, moment, print_json
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars
from deploy.commands.gns3.choosing import (
    from_option,
    identities_of,
    identity_option,
    owner_id_of,
    owner_option,
)
from deploy.commands.gns3.connecting import configuration_option, local_option, run_with_server
from deploy.commands.gns3.restore_local import LocalRestore
from deploy.gns3.alarms.reports import note_checks, told
from deploy.gns3.alarms.rules import CheckVerdict
from deploy.gns3.chains import BackupChain, chosen_chains, find_backup
from deploy.gns3.damage import Damages, chain_with
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.restore import RestoredProject
from deploy.gns3.restore import restore as restore_backup
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import StoredBackup, is_encrypted, stored_images
from deploy.gns3.verify import StoredCheck, Verdict, verify_restored, verify_stored
from filestore_client import AsyncClient
from runtime.clock import now_ms
from runtime.timestamps import rfc3339


@click.command()
@click.argument("named", metavar="PROJECT[@VERSION]|FILE_UUID", default="")
@click.option(
    "--to",
    "server",
    default="",
    metavar="SERVER",
    help="A GNS3 server that you are signed in to.  [default: the only one]",
)
@click.option("--name", default="", help="What the project is called there.  [default: as it was]")
@click.option("--start", is_flag=True, help="Start its nodes, and leave it open.")
@click.option(
    "--without-images",
    is_flag=True,
    help="Restore it even if images are missing on the server and in the store; then leave it closed.",
)
@local_option
@configuration_option
@click.option("--file", "path", default="", metavar="PATH", help="With --local: only this file or folder.")
@click.option("--all", "is_all", is_flag=True, help="With --local: every project of a server.")
@click.option("--in-place", is_flag=True, help="With --local: replace the project, which must be closed.")
@click.option("--dry-run", is_flag=True, help="With --local: show what would change.")
@identity_option
@from_option
@owner_option
@json_option
@connection_options
def restore(
    connection: Connection,
    named: str,
    server: str,
    name: str,
    start: bool,
    without_images: bool,
    local: Path | None,
    configuration: Path | None,
    path: str,
    is_all: bool,
    in_place: bool,
    dry_run: bool,
    identity: Path | None,
    source: str,
    owner: str,
    as_json: bool,
) -> int:
    """Make a project of a backup, on any GNS3 server.

    The newest of your backups is restored, or the one with a tag (@golden), or the newest until the end of a
    day (@2026-11-20) or a moment. If several servers have the project, say which one with --from. A damaged
    backup is not restored.

    Images that the server lacks are sent first. The new project has a new id. If the name is in use, GNS3
    appends a number. The project is opened, to check that every node finds its image, and closed again. The
    exit code is 10 if something is missing: files that GNS3 did not export, images, settings.

    With --local, full backups go back to the folder of projects of a server on this machine. Run it as root.
    What would change is printed first. What --in-place or --file replace is backed up before. With --config,
    the server itself is restored, which must be stopped.
    """
    keys = identities_of(identity)
    wanted = LocalRestore(local, configuration, named, source, path, in_place, dry_run, as_json, keys)
    if local is not None or configuration is not None:
        if name or start or without_images or owner or is_all == bool(named or configuration):
            raise click.UsageError("With --local name a project, or give --all; or give --config alone.")
        return wanted.run(connection, server)
    if not named or path or is_all or in_place or dry_run or identity is not None:
        raise click.UsageError(
            "Name a project. --all, --file, --in-place, --dry-run, --identity need --local."
        )

    async def work(reached: Gns3Server, client: AsyncClient) -> tuple[StoredBackup, RestoredProject]:
        owner_id = await owner_id_of(client, owner)
        backup = await find_backup(client, named, owner_id=owner_id, server=source)
        if backup.file.owner_id != owner_id:
            click.echo(f"filestore: this backup belongs to {backup.file.owner_id}", err=True)
        chain = await chain_with(client, backup)
        with ProgressBars() as bars:
            async with Damages(client).requiring_whole(backup, chain):
                restored = partial(restore_backup, reached, client, backup, bar=bars.bar)
                return backup, await restored(name=name, start=start, without_images=without_images)

    backup, restored = run_with_server(connection, server, work)
    return _show(backup, restored, as_json=as_json)


def _show(backup: StoredBackup, restored: RestoredProject, *, as_json: bool) -> int:
    """Print what was restored and what of it is missing; return the exit code."""
    _warn(restored)
    code = 0 if restored.is_whole else NEEDS_ATTENTION
    if as_json:
        print_json(
            {
                "project_id": restored.project.project_id,
                "name": restored.project.name,
                "file_uuid": backup.file.file_uuid,
                "from_server": backup.tag.server.name,
                "from_server_id": backup.tag.server.id,
                "nodes": restored.nodes,
                "images": restored.images,
                "missing_images": list(restored.missing_images),
                "lost_settings": list(restored.lost_settings),
                "missing": to_builtins(restored.missing),
            }
        )
        return code
    told = printable_name(restored.project.name)
    nodes = "left closed" if restored.nodes is None else f"{restored.nodes} nodes"
    click.echo(
        f"{restored.project.project_id}  {told}  {nodes}, {restored.images} images given;"
        f" from the backup of {moment(backup.file.created_at)} of server {backup.tag.server.shown}"
    )
    return code


def _warn(restored: RestoredProject) -> None:
    """Print what of the project is missing, and which images the server must find itself."""
    for image in restored.unknown_images:
        told = f"{printable_name(image)} has no checksum in the project, so the server must find it"
        click.echo(f"filestore: warning: {told}", err=True)
    warnings: list[str] = []
    if restored.missing_images:
        images = printable_name(", ".join(restored.missing_images))
        warnings.append(
            f"images are missing, and the project can be opened only when the server has them: {images}"
        )
    if restored.lost_settings:
        lost = printable_name(", ".join(restored.lost_settings))
        warnings.append(f"settings were not restored: {lost}")
    if restored.missing.count:
        warnings.append(f"the backup lacks {restored.missing.told}")
    for warning in warnings:
        click.echo(f"filestore: warning: {printable_name(restored.project.name)}: {warning}", err=True)


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1)
@click.option(
    "--to",
    "server",
    default="",
    metavar="SERVER",
    help="Also restore each to this GNS3 server, open it, and delete it there again.",
)
@click.option(
    "--read-data",
    is_flag=True,
    help="Read every byte of the newest backups and of their images, and compare the checksums.",
)
@from_option
@owner_option
@json_option
@connection_options
def verify(
    connection: Connection,
    projects: tuple[str, ...],
    server: str,
    read_data: bool,
    source: str,
    owner: str,
    as_json: bool,
) -> int:
    """Check that the newest backup of each project works.

    Each archive is checked in the store: it is as it was made, the cluster knows of no damage, and every
    image that it names with a checksum is stored. Only --read-data finds damage that the cluster has not
    noticed. PROJECT is a name, an id or a file_uuid; the default is all.
    """

    async def chains(client: AsyncClient) -> tuple[str, list[BackupChain]]:
        owner_id = await owner_id_of(client, owner)
        return owner_id, await chosen_chains(client, projects, owner_id=owner_id, server=source)

    async def look(client: AsyncClient, reached: Gns3Server | None = None) -> int:
        owner_id, chosen = await chains(client)
        verdicts: list[Verdict] = []
        in_store, code = (await stored_images(client, owner_id)).visible, 0
        check = StoredCheck(client=client, damages=Damages(client), in_store=in_store, read_data=read_data)
        with ProgressBars() as bars:
            for chain in chosen:
                verdict = await verify_stored(check, chain, bar=bars.bar)
                if verdict.error is None and reached is not None and chain.kind == "export":
                    verdict = await verify_restored(reached, client, chain, bar=bars.bar)
                code = worse_of(code, _tell(verdict, as_json=as_json))
                verdicts.append(verdict)
        if not owner:
            await _note(client, verdicts)
        return code

    async def try_out(reached: Gns3Server, client: AsyncClient) -> int:
        return await look(client, reached)

    return run_with_server(connection, server, try_out) if server else connection.run(look)


async def _note(client: AsyncClient, verdicts: Sequence[Verdict]) -> None:
    """Note the results in the store, for `filestore gns3 status` and the console."""
    checked: dict[ServerIdentity, dict[str, CheckVerdict]] = {}
    for each in verdicts:
        backup = each.backup
        result = CheckVerdict(
            project_id=backup.file.project_id,
            name=backup.file.project_name,
            kind=backup.fingerprint.kind,
            at=rfc3339(now_ms()),
            error=told([each.error]) if each.error is not None else "",
        )
        if backup.tag.server.id:
            checked.setdefault(backup.tag.server, {})[backup.file.file_uuid] = result
    try:
        await note_checks(client, checked)
    except FAILURES as error:
        click.echo(f"filestore: warning: the results were not noted: {line_of(error)}", err=True)


def _tell(verdict: Verdict, *, as_json: bool) -> int:
    """A line for one backup; the exit code that it asks for."""
    file, error, of = verdict.backup.file, verdict.error, verdict.backup.tag.server
    if as_json:
        print_json(
            {
                "project_id": file.project_id,
                "name": file.project_name,
                "file_uuid": file.file_uuid,
                "server": of.name,
                "server_id": of.id,
                "works": error is None,
                "error": "" if error is None else line_of(error),
                "missing": to_builtins(verdict.missing),
            }
        )
    elif error is not None:
        named = f"{printable_name(file.project_name)} of server {of.shown}"
        click.echo(f"filestore: {named}: {line_of(error)}", err=True)
    else:
        whole = "its bytes are whole; encrypted" if is_encrypted(file) else "whole"
        seen = whole if verdict.nodes is None else f"restored and opened, {verdict.nodes} nodes"
        click.echo(
            f"{file.file_uuid}  {printable_name(file.project_name)}  {moment(file.created_at)}  {of.shown}"
            f"  {seen}"
        )
    if error is not None:
        return exit_code_of(error)
    if verdict.missing.count:
        name = printable_name(file.project_name)
        click.echo(f"filestore: warning: {name}: the backup lacks {verdict.missing.told}", err=True)
        return NEEDS_ATTENTION
    return 0

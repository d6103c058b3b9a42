"""`filestore gns3 diff`: what changed between two versions of a project.

Tested by tests/gns3/test_versions.py.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from ca.errors import NotFound
from deploy.base.connection import Connection, connection_options
from deploy.base.output import json_option, print_json, size
from deploy.base.printed import printable_name, printable_text
from deploy.commands.gns3.choosing import (
    from_option,
    identities_of,
    identity_option,
    owner_id_of,
    owner_option,
)
from deploy.commands.gns3.connecting import chosen_projects, local_option, run_with_server, server_option
from deploy.gns3.chains import BackupChain, chains_of, find_backup
from deploy.gns3.damage import Damages
from deploy.gns3.diffs.comparison import FileChange, VersionChanges, compare
from deploy.gns3.diffs.contents import ProjectContents, exported_contents, folder_contents, stored_contents
from deploy.gns3.fingerprint import Kind
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import StoredBackup, stored_backups
from filestore_client import AsyncClient

_SAID = {"access": "mode or owner", "unknown": "not compared"}


@click.command()
@click.argument("project")
@click.argument("before", metavar="[VERSION]", default="")
@click.argument("after", metavar="[VERSION]", default="")
@click.option("--now", "is_now", is_flag=True, help="Compare a version, or the newest, with the project now.")
@local_option
@identity_option
@server_option
@from_option
@owner_option
@json_option
@connection_options
def diff(
    connection: Connection,
    project: str,
    before: str,
    after: str,
    is_now: bool,
    local: Path | None,
    identity: Path | None,
    server: str,
    source: str,
    owner: str,
    as_json: bool,
) -> None:
    """Show what changed between two versions of a project.

    VERSION is a tag, a day, a moment or a file_uuid. With one VERSION the newest is compared with it, without
    any the newest two. Nodes and links are compared by their names, texts of up to 1 MiB line by line, and
    other files by their checksums, or by size and time in full backups. Only what is compared is downloaded.

    With --now, the project is exported from its GNS3 server into a temporary file. With --local, its folder
    is read.
    """
    if (after or local is not None) and is_now == bool(after):
        raise click.UsageError("Give two versions, or --now; --local needs --now.")
    keys = identities_of(identity)

    async def two(client: AsyncClient) -> VersionChanges:
        chain = await _chain(client, project, source=source, owner=owner)
        newer = chain.at(after) if after else chain.newest
        older = chain.at(before) if before else _newest(chain.backups[:-1], newer.fingerprint.kind)
        if older is None:
            raise NotFound("There is only one version of this kind. Compare it with the project: --now")
        async with _contents(client, chain, older, keys) as was, _contents(client, chain, newer, keys) as now:
            return await compare(was, now)

    async def with_now(reached: Gns3Server, client: AsyncClient) -> VersionChanges:
        chain = await _chain(client, project, source=source, owner=owner)
        kind: Kind = "export" if local is None else "full"
        version = chain.at(before) if before else _newest(chain.backups, kind) or chain.newest
        (present,) = chosen_projects(await reached.projects(), (chain.project_id,))
        opened = exported_contents(reached, present) if local is None else folder_contents(local, present)
        async with _contents(client, chain, version, keys) as was, opened as now:
            return await compare(was, now)

    found = run_with_server(connection, server, with_now, local=local) if is_now else connection.run(two)
    if as_json:
        print_json(found)
    else:
        _show(project, found)


async def _chain(client: AsyncClient, project: str, *, source: str, owner: str) -> BackupChain:
    """Return all versions of a project of one server. Raises NotFound, Conflict."""
    owner_id = await owner_id_of(client, owner)
    meant = await find_backup(client, project, owner_id=owner_id, server=source, kind=None)
    backups = await stored_backups(client, project_id=meant.file.project_id)
    for chain in chains_of(backups, meant.file.owner_id, mix_kinds=True):
        if chain.server.id == meant.tag.server.id:
            return chain
    raise NotFound(f"{meant.file.file_uuid} is no backup of a project.")


def _newest(backups: Sequence[StoredBackup], kind: Kind) -> StoredBackup | None:
    return next((each for each in reversed(backups) if each.fingerprint.kind == kind), None)


@asynccontextmanager
async def _contents(
    client: AsyncClient, chain: BackupChain, version: StoredBackup, keys: Sequence[Any]
) -> AsyncIterator[ProjectContents]:
    same_kind = [each for each in chain.backups if each.fingerprint.kind == version.fingerprint.kind]
    async with (
        Damages(client).requiring_whole(version, same_kind),
        stored_contents(client, version, keys) as contents,
    ):
        yield contents


def _show(project: str, found: VersionChanges) -> None:
    """Print the changes as text: the topology, then the files, then what changed in each text."""
    name = printable_name(project)
    click.echo(f"--- {name}: {printable_name(found.before)}")
    click.echo(f"+++ {name}: {printable_name(found.after)}")
    if not (found.topology or found.files):
        click.echo("no changes", err=True)
    for change in found.topology:
        for line in change.lines:
            click.echo(printable_name(line))
    for file in found.files:
        sizes = " -> ".join(size(each) for each in (file.size_before, file.size_after) if each >= 0)
        click.echo(f"{_SAID.get(file.change, file.change):>13}  {_title(file)}  {sizes}")
    for file in found.files:
        if file.lines:
            click.echo(f"\n=== {_title(file)}")
        for line in file.lines[2:]:  # both versions are named above
            click.echo(printable_text(line))


def _title(file: FileChange) -> str:
    return printable_name(f"{file.path} ({file.node})" if file.node else file.path)

"""`filestore gns3 restore --local`: whole folders back on the machine of the server. Apart from imports.

Tested by tests/gns3/test_local.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ca.errors import Conflict, Forbidden, NotFound
from deploy.base.connection import Connection
from deploy.base.failures import FAILURES, NEEDS_ATTENTION, line_of, print_failure, reason_of, worse_of
from deploy.base.output import moment, print_json
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars
from deploy.commands.gns3.connecting import run_with_server
from deploy.gns3 import journal
from deploy.gns3.backup import BackupWishes
from deploy.gns3.chains import BackupChain, chains_of, find_backup
from deploy.gns3.chains import of_server as of_named_server
from deploy.gns3.damage import Damages, chain_with
from deploy.gns3.folders.unpacking import read_archive
from deploy.gns3.local.backup import LocalBackupRun
from deploy.gns3.local.projects import StoppedServer
from deploy.gns3.local.restore import FolderPlan, plan_folder, put_back
from deploy.gns3.local.server_files import (
    CONFIGURATION,
    SERVER_FOLDERS,
    identity_apart,
    is_server_folder,
    require_stopped_cleanly,
    tree_of,
)
from deploy.gns3.records import LabProject
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import (
    REPLACED_ENDING,
    StoredBackup,
    is_encrypted,
    is_full,
    opened_archive,
    stored_backups,
)
from filestore_client import AsyncClient


@dataclass(frozen=True, slots=True)
class LocalRestore:
    """The options of a restore. `path`: a single file or folder, "" for all of the project.

    `identities`: keys for encrypted backups. The replaced project is encrypted for them too.
    """

    directory: Path | None
    configuration: Path | None
    named: str
    source: str
    path: str = ""
    in_place: bool = False
    dry_run: bool = False
    as_json: bool = False
    identities: Sequence[Any] = ()

    def run(self, connection: Connection, server: str) -> int:
        """Restore projects, or the server itself; return the exit code. Raises FilestoreError."""
        if self.configuration is not None:
            place = self.configuration.resolve()
            itself = replace(self, configuration=place, in_place=True)
            return run_with_server(connection, server, itself.restore_server, local=place.parent)
        assert self.directory is not None
        projects = replace(self, directory=self.directory.resolve())
        return run_with_server(connection, server, projects.restore_projects, local=self.directory)

    async def restore_projects(self, reached: Gns3Server, client: AsyncClient) -> int:
        """Restore the named backup, or the newest of all projects; return the exit code.

        Of several, one that fails is reported, and the others are restored.
        """
        owner_id = (await client.whoami()).user_id
        if self.named:
            backup = await find_backup(client, self.named, owner_id=owner_id, server=self.source, kind="full")
            if backup.file.owner_id != owner_id:
                raise Forbidden("--local restores your own backups only: another may be made to harm.")
            if is_server_folder(backup.file.project_id):
                raise Conflict("This backup is of the server itself: give --config instead of a name.")
            done = await self._restore(reached, client, backup)
            return 0 if done is None else await self._end(reached, [backup.file.project_id], done)
        restored: list[str] = []
        code = 0
        for chain in await _full_chains(client, owner_id, self.source, of_server=False):
            try:
                done = await self._restore(reached, client, chain.to_restore)
            except FAILURES as error:
                code = worse_of(code, print_failure(chain.project_name, error))
            else:
                code = worse_of(code, done or 0)
                restored += [chain.project_id] if done is not None else []
        return await self._end(reached, restored, code)

    async def restore_server(self, reached: Gns3Server, client: AsyncClient) -> int:
        """Restore the folders of a server that is stopped; return the exit code."""
        assert self.configuration is not None
        if not isinstance(reached, StoppedServer):
            raise Conflict(f"GNS3 server {reached.name} runs. Stop it first.")
        require_stopped_cleanly(self.configuration)
        owner_id = (await client.whoami()).user_id
        chains = await _full_chains(client, owner_id, self.source, of_server=True)
        code = 0
        for chain in sorted(chains, key=lambda chain: chain.project_id != CONFIGURATION):
            backup, is_kept = chain.to_restore, False
            place, paths = self.configuration.parent, [""]
            if chain.project_id == CONFIGURATION:
                async with opened_archive(client, backup.file, self.identities) as opened:
                    archive = await opened(read_archive)
                paths = [entry.path for entry in archive.entries if entry.path]
            else:  # by the configuration that was restored before
                place = tree_of(self.configuration, chain.project_id.removeprefix(SERVER_FOLDERS))
            for path in paths:
                part = replace(self, directory=place.parent, path=path)
                done = await part._restore(reached, client, backup, name=place.name, is_kept=is_kept)
                code, is_kept = worse_of(code, done or 0), is_kept or done is not None
        return code

    async def _restore(
        self,
        reached: Gns3Server,
        client: AsyncClient,
        backup: StoredBackup,
        *,
        name: str = "",
        is_kept: bool = False,
    ) -> int | None:
        """Restore one backup; return an exit code, None if nothing was changed. Raises FilestoreError.

        `name`: the name that its folder must have. `is_kept`: the folder of now is backed up.
        """
        assert self.directory is not None
        if not is_full(backup.file):
            raise Conflict(f"{backup.file.file_uuid} is no full backup. Restore it without --local.")
        try:
            async with (
                Damages(client).requiring_whole(backup, await chain_with(client, backup)),
                opened_archive(client, backup.file, self.identities) as opened,
            ):
                plan = await opened(partial(plan_folder, directory=self.directory, path=self.path))
                if name and plan.name != name:
                    raise Conflict(f"The folder was named {plan.name} on its server, and is {name} here.")
                self._tell_plan(backup, plan)
                if self.dry_run or not plan.changes:
                    return None
                if not is_kept:
                    await self._prepare(reached, client, backup, plan)
                left = await opened(partial(put_back, plan=plan, directory=self.directory))
        except OSError as error:
            told = f"{error.filename or self.directory}: {reason_of(error)}."
            raise Conflict(
                f"{told} Run this as root." if isinstance(error, PermissionError) else told
            ) from error
        shown = printable_name(backup.file.project_name)
        for path, change in left:
            told = f"{shown}: {printable_name(path)} still differs: {change}"
            click.echo(f"filestore: warning: {told}", err=True)
        if not self.as_json:
            click.echo(f"{backup.file.project_id}  {shown}  restored")
        return NEEDS_ATTENTION if left else 0

    async def _end(self, reached: Gns3Server, restored: Sequence[str], code: int) -> int:
        """Have the server list what was restored; return the exit code."""
        if restored and not await _reloaded(reached, restored):
            return worse_of(code, NEEDS_ATTENTION)
        return code

    async def _prepare(
        self, reached: Gns3Server, client: AsyncClient, backup: StoredBackup, plan: FolderPlan
    ) -> None:
        """Back up what is there. Raises Conflict if it must not be replaced."""
        assert self.directory is not None
        if not plan.is_there:
            if self.path:
                raise NotFound(f"There is no project {plan.name} in {self.directory}.")
            return
        if not (self.in_place or self.path):
            raise Conflict(f"{self.directory / plan.name} exists. To replace it, give --in-place.")
        file = backup.file
        present = {each.project_id: each for each in await reached.projects()}
        project = present.get(file.project_id) or LabProject(
            project_id=file.project_id, name=file.project_name, path=str(self.directory / plan.name)
        )
        if project.status == "opened":
            raise Conflict(f"{printable_name(project.name)} is open on {reached.name}. Close it first.")
        recipients = [each.to_public() for each in self.identities] if is_encrypted(file) else []
        await _back_up(reached, client, self.directory, project, recipients)

    def _tell_plan(self, backup: StoredBackup, plan: FolderPlan) -> None:
        assert self.directory is not None
        if self.as_json:
            print_json(
                {
                    "project_id": backup.file.project_id,
                    "name": backup.file.project_name,
                    "file_uuid": backup.file.file_uuid,
                    "folder": str(self.directory / plan.name),
                    "changes": [{"path": path, "change": change} for path, change in plan.changes],
                }
            )
            return
        for path, change in plan.changes if plan.is_there else ():
            click.echo(f"{change:>10}  {printable_name(path or '.')}")
        made = moment(backup.file.created_at)
        name = printable_name(backup.file.project_name)
        told = f"{len(plan.changes)} changes" if plan.changes else "no changes"
        click.echo(f"{name}: {told}, from the backup of {made} of server {backup.tag.server.shown}")


async def _full_chains(
    client: AsyncClient, owner_id: str, source: str, *, of_server: bool
) -> list[BackupChain]:
    """Return the full backups of one server: of its projects, or of itself.

    Raises NotFound, Conflict if there are several servers.
    """
    found = [
        chain
        for chain in of_named_server(chains_of(await stored_backups(client), owner_id), source)
        if chain.kind == "full" and is_server_folder(chain.project_id) == of_server
    ]
    if not found:
        raise NotFound("There is no full backup.")
    if len(servers := {chain.server.id: chain.server.shown for chain in found}) > 1:
        known = ", ".join(servers.values())
        raise Conflict(f"Several servers have full backups. Name one with --from: {known}")
    return sorted(found, key=lambda chain: chain.project_name)


async def _back_up(
    reached: Gns3Server,
    client: AsyncClient,
    directory: Path,
    project: LabProject,
    recipients: Sequence[Any],
) -> None:
    """Store a project as it is. Raises Conflict if that is not possible."""
    identity = reached.identity
    if is_server_folder(project.project_id):
        identity = identity_apart(identity)
    with journal.opened(identity, client.transport.cluster) as remembered, ProgressBars() as bars:
        wishes = BackupWishes(accept_loss=True, recipients=recipients)
        run = LocalBackupRun(
            directory,
            reached,
            client,
            remembered,
            wishes,
            ending=REPLACED_ENDING,
            bar=bars.bar,
            tell=lambda _: None,
        )
        (result,) = await run.run([project])
    if result.status not in ("stored", "unchanged"):
        told = "; ".join(line_of(error) for error in result.errors)
        raise Conflict(f"Nothing was changed, since what is there could not be backed up: {told}")
    click.echo(f"filestore: the replaced project is in the backup {result.file_uuid}", err=True)


async def _reloaded(reached: Gns3Server, project_ids: Sequence[str]) -> bool:
    """Have the server look at its folder; return whether it lists the projects. One that is stopped will."""
    try:
        await reached.reload()
        listed = {each.project_id for each in await reached.projects()}
    except FAILURES as error:
        told = line_of(error)
    else:
        if listed.issuperset(project_ids):
            return True
        told = "It does not list all projects that were restored."
    click.echo(f"filestore: warning: GNS3 server {reached.name}: {told} Restart it.", err=True)
    return False

"""`filestore gns3 reset`: a closed project goes back to its golden version, by a command or by the watch.

Only the owner's tag marks a version as golden, so that no other project is ever replaced. The project is
backed up first, as by every restore in place.

Tested by tests/gns3/test_versions.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILURES, print_failure
from deploy.base.output import json_option
from deploy.commands.gns3.choosing import VersionTag, from_option, identities_of, identity_option
from deploy.commands.gns3.connecting import local_option, server_option
from deploy.commands.gns3.restore_local import LocalRestore
from deploy.gns3.backup import BackupResult
from deploy.gns3.chains import chains_of
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import stored_backups
from filestore_client import AsyncClient

GOLDEN: Final = "golden"


@click.command()
@click.argument("project")
@click.option(
    "--tag",
    type=VersionTag(),
    default=GOLDEN,
    show_default=True,
    help="The version that it goes back to, by its tag.",
)
@local_option
@click.option("--dry-run", is_flag=True, help="Show what would change.")
@identity_option
@server_option
@from_option
@json_option
@connection_options
def reset(
    connection: Connection,
    project: str,
    tag: str,
    local: Path | None,
    dry_run: bool,
    identity: Path | None,
    server: str,
    source: str,
    as_json: bool,
) -> int:
    """Put a closed project back to its golden version.

    Mark a full backup with `filestore gns3 tag VERSION golden`; a project without such a version is left
    alone. Run it as root on the machine of the GNS3 server, with --local. The present state is backed up
    before, and the file_uuid of that backup is printed.
    """
    if local is None:
        raise click.UsageError("--local: is required.")
    keys = identities_of(identity)
    wanted = LocalRestore(local, None, f"{project}@{tag}", source, "", True, dry_run, as_json, keys)
    return wanted.run(connection, server)


async def reset_closed(
    reached: Gns3Server, client: AsyncClient, local: Path, results: Sequence[BackupResult], *, as_json: bool
) -> None:
    """Put projects that were closed, and are backed up by now, back to their golden versions.

    A project without one is left alone, as is one that was opened again. A failure is printed, and the others
    are tried.
    """
    owner_id = (await client.whoami()).user_id
    for result in results:
        if result.status not in ("stored", "unchanged"):
            continue
        project_id = result.project.project_id
        try:
            chains = chains_of(await stored_backups(client, project_id=project_id), owner_id)
            own = [each for each in chains if each.kind == "full" and each.server.id == reached.identity.id]
            golden = [each for chain in own for each in chain.backups if each.version == GOLDEN]
            if not golden:
                continue
            named = golden[-1].file.file_uuid
            source = reached.identity.id
            wanted = LocalRestore(local.resolve(), None, named, source, in_place=True, as_json=as_json)
            await wanted.restore_projects(reached, client)
        except FAILURES as error:
            print_failure(result.project.name, error)

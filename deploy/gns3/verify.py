"""Whether backups can be restored: looked at where they lie, or tried on a server that is there for it."""

import uuid
from dataclasses import dataclass

from ca.errors import NotFound
from deploy.base.failures import FAILURES, Failure
from deploy.gns3.records import is_built_in
from deploy.gns3.restore import Bar, check_archive, restore
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import StoredBackup, manifest_of
from filestore_client import AsyncClient
from filestore_client.base.records import Image


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of a backup. `error` None: it works, as far as was looked at."""

    backup: StoredBackup
    images: int = 0
    nodes: int | None = None
    error: Failure | None = None


async def verify_stored(client: AsyncClient, backup: StoredBackup, in_store: dict[str, Image]) -> Verdict:
    """Whether the archive is whole and as it was made, and every image that it names is stored."""
    try:
        manifest = await manifest_of(client, backup)
        await check_archive(client, backup)
        named = [each for each in manifest.images if each.md5 and not is_built_in(each.filename)]
        missing = [f"{each.filename} ({each.md5})" for each in named if each.md5 not in in_store]
        if missing:
            raise NotFound(f"Images that it needs are not in the store: {', '.join(missing)}.")
    except FAILURES as error:
        return Verdict(backup, error=error)
    return Verdict(backup, images=len(named))


async def verify_restored(
    server: Gns3Server, client: AsyncClient, backup: StoredBackup, *, bar: Bar
) -> Verdict:
    """Restore it to a server, open it there, and delete the project again. Images that were given stay."""
    try:
        name = f"verify-{uuid.uuid4().hex[:8]}"
        restored = await restore(server, client, backup, bar=bar, name=name)
        await server.delete_project(restored.project.project_id)
    except FAILURES as error:
        return Verdict(backup, error=error)
    return Verdict(backup, images=restored.images, nodes=restored.nodes)

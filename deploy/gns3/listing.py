"""The projects and images of a server, and their counterparts in the store.

Tested by tests/gns3/test_backup.py.
"""

from contextlib import aclosing
from typing import Literal

from msgspec import Struct

from deploy.gns3.archive import NOTHING_MISSING
from deploy.gns3.backup import is_unchanged
from deploy.gns3.chains import chains_of, to_continue
from deploy.gns3.damage import Damages
from deploy.gns3.fingerprint import HEAD_BYTES_MAX, topology_crc32_of_head
from deploy.gns3.records import LabProject, is_built_in
from deploy.gns3.server import Gns3Server, ProjectRuns
from deploy.gns3.stored import StoredBackup, recorded_missing, stored_backups
from filestore_client import AsyncClient

Changed = Literal["yes", "no", "topology no", "running", "damaged", ""]


class ListedProject(Struct, frozen=True, kw_only=True):
    """A project and its newest backup. `changed` is "" without one.

    `files_missing`: how many files of the project the backup lacks.
    """

    project_id: str
    name: str
    status: str
    backups: int
    last_backup: str
    file_uuid: str
    server_id: str
    changed: Changed
    images_stored: int
    images_missing: int
    files_missing: int


class ListedImage(Struct, frozen=True, kw_only=True):
    """An image of a server, and the file of the store that has its content."""

    filename: str
    image_type: str
    size_bytes: int
    md5: str
    file_uuid: str


async def list_project(
    server: Gns3Server,
    client: AsyncClient,
    project: LabProject,
    md5s: set[str],
    *,
    owner_id: str,
    exact: bool,
) -> ListedProject:
    """Return one row, with the backups of `owner_id`.

    `exact` reads the whole export; otherwise only its beginning is read, which contains the topology.
    """
    backups = await stored_backups(client, project_id=project.project_id)
    chain = to_continue(chains_of(backups, owner_id), server.identity)
    newest = await Damages(client).marked(chain.newest) if chain is not None else None
    stored = missing = 0
    lacking = NOTHING_MISSING
    if newest is not None and not newest.is_damaged:
        lacking = await recorded_missing(client, newest.file)
        manifest = await client.files.manifest(newest.file.file_uuid)
        named = [image for image in manifest.images if image.md5 and not is_built_in(image.filename)]
        stored = sum(image.md5 in md5s for image in named)
        missing = len(named) - stored
    return ListedProject(
        project_id=project.project_id,
        name=project.name,
        status=project.status,
        backups=len(chain.backups) if chain is not None else 0,
        last_backup=newest.file.created_at if newest is not None else "",
        file_uuid=newest.file.file_uuid if newest is not None else "",
        server_id=newest.tag.server.id if newest is not None else "",
        changed="" if newest is None else await _changed(server, project, newest, exact=exact),
        images_stored=stored,
        images_missing=missing,
        files_missing=lacking.count,
    )


async def _changed(server: Gns3Server, project: LabProject, newest: StoredBackup, *, exact: bool) -> Changed:
    if newest.is_damaged:
        return "damaged"
    try:
        if exact:
            return "no" if await is_unchanged(server, project, newest) else "yes"
        head = b""
        async with aclosing(server.export(project.project_id)) as parts:
            async for part in parts:
                head += part
                topology_crc32 = topology_crc32_of_head(head)
                if topology_crc32 is not None or len(head) > HEAD_BYTES_MAX:
                    break
    except ProjectRuns:
        return "running"
    return "topology no" if topology_crc32_of_head(head) == newest.fingerprint.topology_crc32 else "yes"

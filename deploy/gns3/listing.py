"""The projects and images of a server, and their counterparts in the store.

Tested by tests/gns3/test_backup.py.
"""

from contextlib import aclosing
from typing import Literal

from msgspec import Struct

from deploy.gns3.archive import NOTHING_MISSING
from deploy.gns3.damage import Damages
from deploy.gns3.export import exporting
from deploy.gns3.fingerprint import HEAD_BYTES_MAX, topology_crc32_of_head
from deploy.gns3.records import LabProject, is_built_in
from deploy.gns3.server import Gns3Server, ProjectRuns
from deploy.gns3.stored import (
    StoredBackup,
    is_encrypted,
    manifest_of,
    recorded_missing,
    stored_backups,
)
from filestore_client import AsyncClient

Changed = Literal["yes", "no", "topology no", "running", "damaged", ""]


class ListedProject(Struct, frozen=True, kw_only=True):
    """A project and its newest backup. `changed` is "" without one, and for a full one.

    `kind`: `export`, or `full` for a whole folder. `files_missing`: how many of the project's files the
    backup lacks.
    """

    project_id: str
    name: str
    status: str
    backups: int
    last_backup: str
    kind: str
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


class ListedVersion(Struct, frozen=True, kw_only=True):
    """A backup of a project. `kind`: `export` or `full`. `tag`, `message`: "" for none."""

    file_uuid: str
    project_id: str
    name: str
    server: str
    server_id: str
    created_at: str
    kind: str
    size_bytes: int
    tag: str
    message: str
    protected_until: str


def list_version(backup: StoredBackup) -> ListedVersion:
    """Return one row. Pure."""
    file, of = backup.file, backup.tag.server
    return ListedVersion(
        file_uuid=file.file_uuid,
        project_id=file.project_id,
        name=file.project_name,
        server=of.name,
        server_id=of.id,
        created_at=file.created_at,
        kind=backup.fingerprint.kind,
        size_bytes=file.size_bytes,
        tag=backup.version,
        message=file.message,
        protected_until=file.protected_until,
    )


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
    own = [
        each for each in backups if (each.file.owner_id, each.tag.server.id) == (owner_id, server.identity.id)
    ]
    newest = await Damages(client).marked(own[-1]) if own else None
    stored = missing = 0
    lacking = NOTHING_MISSING
    if newest is not None and not newest.is_damaged and not is_encrypted(newest.file):
        lacking = await recorded_missing(client, newest.file)
        manifest = await manifest_of(client, newest.file)
        named = [image for image in manifest.images if image.md5 and not is_built_in(image.filename)]
        stored = sum(image.md5 in md5s for image in named)
        missing = len(named) - stored
    return ListedProject(
        project_id=project.project_id,
        name=project.name,
        status=project.status,
        backups=len(own),
        last_backup=newest.file.created_at if newest is not None else "",
        kind=newest.fingerprint.kind if newest is not None else "",
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
    if newest.fingerprint.kind == "full":
        return ""  # only `backup --local` can tell
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


async def is_unchanged(server: Gns3Server, project: LabProject, newest: StoredBackup) -> bool:
    """Whether an export now would hold what the newest backup holds. Nothing is sent to the store.

    Raises ProjectRuns, ExportBroken, Unavailable.
    """
    if newest.is_damaged:
        return False
    head: bytes | None = b""
    async with exporting(server, project) as export:
        async for part in export.parts:
            if head is None:
                continue
            head += part
            topology_crc32 = topology_crc32_of_head(head)
            if topology_crc32 is not None and topology_crc32 != newest.fingerprint.topology_crc32:
                return False
            if topology_crc32 is not None or len(head) > HEAD_BYTES_MAX:
                head = None
        return newest.holds((await export.finish()).fingerprint)

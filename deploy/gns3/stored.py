"""What a store has of GNS3 projects and images: backups by project, images by the MD5 of their content.

A backup is a project file whose `version_tag` is a fingerprint. Others, which people have uploaded, are left
alone by everything here.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ca.errors import Conflict, InvalidRequest, NotFound
from deploy.base.lookup import is_uuid
from deploy.base.output import moment
from deploy.base.printed import printable_name
from deploy.gns3.fingerprint import Fingerprint
from filestore_client import AsyncClient
from filestore_client.base.records import Image, Manifest, Project

LABEL_CHARS_MAX: Final = 200  # of a name that becomes a label or a part of one; 255 are the API's
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """A backup of a project in the store."""

    file: Project
    fingerprint: Fingerprint

    @property
    def made_at(self) -> datetime:
        """When it was begun."""
        return datetime.fromisoformat(self.file.created_at)


def label_of(name: str) -> str:
    """A project's name as it may stand in a record."""
    return _UNFIT.sub("_", name)[:LABEL_CHARS_MAX] or "project"


async def backups_of(client: AsyncClient, project_id: str, *, owner_id: str = "") -> list[StoredBackup]:
    """The backups of one project, the oldest first; those of one owner, or all that are to be seen."""
    listed = client.projects.list(project_id=project_id, status="available")
    return _backups([file async for file in listed], owner_id)


async def all_backups(client: AsyncClient, *, owner_id: str = "") -> dict[str, list[StoredBackup]]:
    """The backups of every project by its id, the oldest first."""
    found = _backups([file async for file in client.projects.list(status="available")], owner_id)
    by_project: dict[str, list[StoredBackup]] = defaultdict(list)
    for backup in found:
        by_project[backup.file.project_id].append(backup)
    return dict(by_project)


def _backups(files: Iterable[Project], owner_id: str) -> list[StoredBackup]:
    tagged = [(file, Fingerprint.of_tag(file.version_tag)) for file in files]
    return sorted(
        (
            StoredBackup(file, fingerprint)
            for file, fingerprint in tagged
            if fingerprint is not None and owner_id in ("", file.owner_id)
        ),
        key=lambda backup: (backup.made_at, backup.file.file_uuid),
    )


async def find_backup(client: AsyncClient, named: str) -> StoredBackup:
    """The backup that somebody means: a file_uuid, or a project's name or id, and perhaps `@DATE`.

    Without a date it is the newest. A date is a day or a moment, and means the newest that was made until its
    end. Raises NotFound; Conflict when several projects have the name.
    """
    if is_uuid(named):
        by_id = await backups_of(client, named)
        if by_id:
            return by_id[-1]
        file = await client.projects.get(named)
        fingerprint = Fingerprint.of_tag(file.version_tag) or Fingerprint(0, "")
        return StoredBackup(file, fingerprint)
    found = await all_backups(client)
    name, until = named, None
    candidates = _of_name(found, named)
    if not candidates and "@" in named:
        name, _, date = named.rpartition("@")
        until = end_of(date)
        candidates = _of_name(found, name)
    if not candidates:
        raise NotFound(f"There is no backup of a project named {printable_name(name)!r} that you may see.")
    if len(candidates) > 1:
        told = "; ".join(
            f"{each[-1].file.project_id} (last {moment(each[-1].file.created_at)})" for each in candidates
        )
        raise Conflict(f"{len(candidates)} projects have this name; give the id of one: {told}")
    fitting = [each for each in candidates[0] if until is None or each.made_at <= until]
    if not fitting:
        first = moment(candidates[0][0].file.created_at)
        raise NotFound(f"The first backup of {printable_name(name)!r} is of {first}.")
    return fitting[-1]


def end_of(date: str) -> datetime:
    """The end of a day in the local zone, or the moment itself. Raises InvalidRequest."""
    try:
        found = datetime.fromisoformat(date)
    except ValueError as error:
        raise InvalidRequest(f"{date!r} is no date: 2026-11-20 and 2026-11-20T18:00 are.") from error
    is_day = len(date) <= len("2026-11-20")
    return (found + timedelta(days=1) if is_day else found).astimezone(UTC)


def _of_name(found: dict[str, list[StoredBackup]], name: str) -> list[list[StoredBackup]]:
    """The backups of each project that is called so now, or has this id."""
    wanted = label_of(name)
    return [
        backups
        for project_id, backups in found.items()
        if name == project_id or backups[-1].file.project_name == wanted
    ]


async def stored_images(client: AsyncClient) -> dict[str, Image]:
    """Every available image by its MD5; of several with one content the oldest."""
    found: dict[str, Image] = {}
    async for image in client.images.list(status="available"):
        if image.md5:
            found.setdefault(image.md5, image)
    return found


async def manifest_of(client: AsyncClient, backup: StoredBackup) -> Manifest:
    """What a backup's archive says of itself. Raises Conflict when it is no project."""
    manifest = await client.files.manifest(backup.file.file_uuid)
    if manifest.archive != "gns3":
        raise Conflict(
            f"{backup.file.file_uuid} ({printable_name(backup.file.filename)}) is no export of a GNS3"
            f" project: {manifest.archive}."
        )
    return manifest

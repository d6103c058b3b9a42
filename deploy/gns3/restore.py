"""A backup becomes a project of a server again, with the images that it needs.

Everything that can be known beforehand is looked at before anything is changed: the archive, and for each
image whether it is there, can be given, or stands in the way. A project that cannot be opened afterwards is
removed again. Images that were given stay: they are whole, and of use.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import dataclass
from typing import Final

from ca.errors import Conflict, NotFound, Unavailable
from deploy.base.failures import FAILURES
from deploy.base.printed import printable_name
from deploy.gns3.fingerprint import TAIL_BYTES_MAX, ExportDamaged, Fingerprint, fingerprint_of_tail
from deploy.gns3.images import Progress, image_of, pull_image
from deploy.gns3.records import LabProject, ServerImage, is_built_in
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import StoredBackup, manifest_of, stored_images
from filestore_client import AsyncClient
from filestore_client.base.records import Image, ManifestImage

SMALL_TAIL_BYTES: Final = 1 << 20  # enough for the directory of nearly every project
CLEANING_S_MAX: Final = 30.0

Bar = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True)
class NeededImage:
    """An image that has to be given to the server first, and the file of the store that it is."""

    image: ServerImage
    file_uuid: str


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What a server lacks for a project; `unknown`: names that nothing tells of, such as Docker's."""

    needed: Sequence[NeededImage]
    unknown: Sequence[str]
    missing: Sequence[str]
    conflicts: Sequence[str]


@dataclass(frozen=True, slots=True)
class RestoredProject:
    """The new project, and what was given to the server for it."""

    project: LabProject
    images: int
    unknown_images: Sequence[str]
    nodes: int


def plan_images(
    wanted: Iterable[ManifestImage], on_server: Iterable[ServerImage], in_store: Mapping[str, Image]
) -> ImagePlan:
    """What a project's images ask for. A server finds an image by its name alone. Pure."""
    names = {image.filename: image.checksum for image in on_server}
    by_name = {image.filename: image for image in in_store.values()}
    needed: list[NeededImage] = []
    unknown: list[str] = []
    missing: list[str] = []
    conflicts: list[str] = []
    for image in wanted:
        if is_built_in(image.filename):
            continue
        present = names.get(image.filename)
        if present is not None:
            if image.md5 and present != image.md5:
                conflicts.append(f"{image.filename} has the MD5 {present} there, {image.md5} is needed")
            continue
        stored = in_store.get(image.md5) if image.md5 else by_name.get(image.filename)
        if stored is not None:
            needed.append(NeededImage(image_of(stored, filename=image.filename), stored.file_uuid))
            names[image.filename] = stored.md5
        elif image.md5:
            missing.append(f"{image.filename} ({image.md5})")
        else:
            unknown.append(image.filename)
    return ImagePlan(needed, unknown, missing, conflicts)


async def plan_restore(server: Gns3Server, client: AsyncClient, backup: StoredBackup) -> ImagePlan:
    """Look at everything beforehand. Raises Conflict, NotFound when it cannot succeed; nothing is changed."""
    manifest = await manifest_of(client, backup)
    await check_archive(client, backup)
    plan = plan_images(manifest.images, await server.images(), await stored_images(client))
    if plan.conflicts:
        told = printable_name("; ".join(plan.conflicts))
        raise Conflict(
            f"GNS3 server {server.name} has images of the same name with other content: {told}. They are"
            " left as they are; rename them there, or restore to another server."
        )
    if plan.missing:
        told = printable_name(", ".join(plan.missing))
        raise NotFound(
            f"Images that the project needs are neither on GNS3 server {server.name} nor in the store:"
            f" {told}. Push them from a server that has them: filestore gns3 images push"
        )
    return plan


async def restore(
    server: Gns3Server,
    client: AsyncClient,
    backup: StoredBackup,
    *,
    bar: Bar,
    name: str = "",
    start: bool = False,
) -> RestoredProject:
    """Make a new project of a backup, open it, and start it or close it again.

    Raises FilestoreError; then the server has no project more than before, unless it only does not start.
    """
    plan = await plan_restore(server, client, backup)
    for needed in plan.needed:
        with bar(needed.image.filename) as progress:
            await pull_image(server, client, needed.image, needed.file_uuid, progress=progress)
    project_id = str(uuid.uuid4())
    try:
        with bar(backup.file.filename) as progress:
            project = await _imported(server, client, backup, project_id, name, progress)
        await server.open(project_id)
        nodes = await server.nodes(project_id)
        if not start:
            await server.act(project_id, "close")
    except BaseException as error:
        with suppress(*FAILURES, TimeoutError):
            async with asyncio.timeout(CLEANING_S_MAX):
                await _remove(server, project_id, is_cut=isinstance(error, Unavailable))
        if isinstance(error, Conflict):
            raise Conflict(f"{error.details} The project was removed again.") from error
        raise
    if start:
        try:
            await server.act(project_id, "nodes/start")
        except Conflict as error:
            told = f"{printable_name(project.name)} ({project_id}) is restored, and does not start"
            raise Conflict(f"{told}: {error.details}") from error
    return RestoredProject(project, len(plan.needed), plan.unknown, len(nodes))


async def check_archive(client: AsyncClient, backup: StoredBackup) -> None:
    """Compare what a stored archive says of itself with the fingerprint that was taken when it was made.

    Raises Conflict. A file that is no backup of ours has no fingerprint, but must be whole all the same.
    """
    found: Fingerprint | None = None
    for tail_bytes in (SMALL_TAIL_BYTES, TAIL_BYTES_MAX):
        start = max(0, backup.file.size_bytes - tail_bytes)
        tail = b"".join([part async for part in client.files.read(backup.file.file_uuid, start)])
        try:
            found = await asyncio.to_thread(fingerprint_of_tail, tail, backup.file.size_bytes)
            break
        except ExportDamaged as error:
            if start and tail_bytes < TAIL_BYTES_MAX:
                continue
            raise Conflict(f"{backup.file.file_uuid} is no whole export: {error}.") from error
    if backup.fingerprint.digest and found != backup.fingerprint:
        raise Conflict(f"{backup.file.file_uuid} holds something else than its fingerprint says.")


async def _imported(
    server: Gns3Server,
    client: AsyncClient,
    backup: StoredBackup,
    project_id: str,
    name: str,
    progress: Progress,
) -> LabProject:
    size_bytes = backup.file.size_bytes

    async def told() -> AsyncGenerator[bytes, None]:
        done_bytes = 0
        async for part in client.files.read(backup.file.file_uuid):
            done_bytes += len(part)
            progress(done_bytes, size_bytes)
            yield part

    async with aclosing(told()) as content:
        return await server.import_project(project_id, content, name=name)


async def _remove(server: Gns3Server, project_id: str, *, is_cut: bool) -> None:
    """Remove a project that is not as it should be; what is unpacked of one that is none yet, too."""
    try:
        await server.delete_project(project_id)
    except NotFound:
        if not is_cut:  # of a request that was cut off the server removes everything itself
            await server.remove_remains(project_id)

"""Restore a backup as a project of a server, with the images that it needs.

Everything that can be checked is checked before anything is changed: the archive, and for each image whether
it exists, can be sent, or is in conflict. A project that cannot be opened afterwards is removed again. Images
that were sent stay, as they are complete and useful.

GNS3 takes the id of a project from the topology that it finds in a folder. While an archive is unpacked, its
topology therefore never has the original id, and it is unpacked last: a server that is killed during this
lists no project, or one that is marked as unfinished.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from ca.errors import Conflict, Forbidden, Internal, NotFound, Unavailable
from deploy.base.failures import FAILURES
from deploy.base.printed import printable_name
from deploy.gns3.archive import (
    Archive,
    ExportDamaged,
    Missing,
    end_with_topology,
    topology_of,
    topology_span,
)
from deploy.gns3.fingerprint import fingerprint_of
from deploy.gns3.images import Bar, Progress, image_of, pull_image
from deploy.gns3.records import LabProject, ServerImage, is_built_in
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import (
    StoredBackup,
    StoredImages,
    archive_of,
    is_full,
    manifest_of,
    stored_images,
)
from filestore_client import AsyncClient
from filestore_client.base.records import ManifestImage

CLEANING_S_MAX: Final = 30.0
REVISION_OF_2_2: Final = 9  # the newest format of a topology that GNS3 2.2 reads
REVISION_OF_3: Final = 10  # differs from it only in fields of nodes, and in which names nodes may have
# Fields that GNS3 3.0 added to the properties of nodes, by type: 2.2.61 rejects a topology that has one.
# Links and drawings are equal.
_USAGE: Final = frozenset({"usage"})
_ADDED: Final[Mapping[str, frozenset[str]]] = {
    "qemu": frozenset({"aux", "aux_type", "maxcpus", *(f"hd{disk}_disk_image_backed" for disk in "abcd")}),
    "docker": frozenset({"aux_type", "cpus", "memory"}),
    "dynamips": frozenset({"aux_type"}),
    **dict.fromkeys(
        ("vpcs", "cloud", "nat", "ethernet_switch", "ethernet_hub", "frame_relay_switch", "atm_switch"),
        _USAGE,
    ),
}
# Ports, and what GNS3 has elsewhere too: 3.0 keeps `compute_id` twice for nodes that its API has made.
_DERIVED: Final = ("aux", "aux_type", "_backed", "compute_id")
UNFINISHED: Final = "(restore not finished)"
# What GNS3 sets them to in every project that it imports.
_IMPORTED: Final = {"auto_open": False, "auto_start": False, "auto_close": True}


@dataclass(frozen=True, slots=True)
class NeededImage:
    """An image that has to be given to the server first, and the file of the store that it is."""

    image: ServerImage
    file_uuid: str


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The images that a server lacks for a project; `unknown`: names without a record, such as Docker's."""

    needed: Sequence[NeededImage]
    unknown: Sequence[str]
    missing: Sequence[str]
    conflicts: Sequence[str]


@dataclass(frozen=True, slots=True)
class StoredExport:
    """The contents of a backup's archive, once it was found to be complete.

    `lost`: settings of nodes that the server does not have.
    """

    archive: Archive
    topology: Mapping[str, Any]
    lost: Sequence[str] = ()

    @property
    def settings(self) -> dict[str, object]:
        """The settings that GNS3 does not take over when it imports the project."""
        return {
            name: self.topology[name]
            for name, imported in _IMPORTED.items()
            if isinstance(self.topology.get(name), bool) and self.topology[name] != imported
        }


@dataclass(frozen=True, slots=True)
class RestoredProject:
    """The new project, and what was given to the server for it.

    `nodes` is None if the project was left closed, as images are missing. `lost_settings` are those that the
    server did not take; `missing` are files that the backup lacks.
    """

    project: LabProject
    images: int
    unknown_images: Sequence[str]
    nodes: int | None
    missing_images: Sequence[str]
    lost_settings: Sequence[str]
    missing: Missing

    @property
    def is_whole(self) -> bool:
        """Whether it is as the project was when the backup was made."""
        return not (self.missing_images or self.lost_settings or self.missing.count)


def plan_images(
    wanted: Iterable[ManifestImage], on_server: Iterable[ServerImage], in_store: StoredImages
) -> ImagePlan:
    """Plan the images of a project. A server finds an image by its name alone. Pure.

    If the project has no MD5 either, an image of its owner is used, as any user may use its name.
    """
    names = {image.filename: image.checksum for image in on_server}
    by_name = {image.filename: image for image in in_store.own.values()}
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
                conflicts.append(f"{image.filename} has the MD5 {present} there, but {image.md5} is needed")
            continue
        stored = in_store.visible.get(image.md5) if image.md5 else by_name.get(image.filename)
        if stored is not None:
            needed.append(NeededImage(image_of(stored, filename=image.filename), stored.file_uuid))
            names[image.filename] = stored.md5
        elif image.md5:
            missing.append(f"{image.filename} ({image.md5})")
        else:
            unknown.append(image.filename)
    return ImagePlan(needed, unknown, missing, conflicts)


async def plan_restore(
    server: Gns3Server, client: AsyncClient, backup: StoredBackup, *, without_images: bool = False
) -> tuple[StoredExport, ImagePlan]:
    """Look at everything beforehand; nothing is changed.

    `without_images`: a missing image is no obstacle. Raises Conflict, NotFound when it cannot succeed.
    """
    if is_full(backup.file):
        raise Conflict(
            f"{backup.file.file_uuid} is a full backup, which GNS3 cannot import. Restore it with --local, "
            "on the machine of the GNS3 server."
        )
    manifest = await manifest_of(client, backup.file)
    export = await check_archive(client, backup)
    if not server.is_v3:
        export = _for_2_2(server, backup, export)
    in_store = await stored_images(client, backup.file.owner_id)
    plan = plan_images(manifest.images, await server.images(), in_store)
    if plan.conflicts:
        told = printable_name("; ".join(plan.conflicts))
        raise Conflict(
            f"GNS3 server {server.name} has images with the same names but other content: {told}. They "
            "were not changed. Rename them there, or restore to another server."
        )
    if plan.missing and not without_images:
        told = printable_name(", ".join(plan.missing))
        raise NotFound(
            f"Some images of the project are neither on GNS3 server {server.name} nor in the store: "
            f"{told}. Push them from a server that has them (filestore gns3 images push), or restore "
            "the project without them, which leaves it closed (--without-images)"
        )
    return export, plan


def _for_2_2(server: Gns3Server, backup: StoredBackup, export: StoredExport) -> StoredExport:
    """Return an export as GNS3 2.2 can read it.

    Raises Conflict for zstd, and for topologies that are newer than those of GNS3 3.0.
    """
    revision = export.topology.get("revision", 0)
    if not export.archive.has_zstd and revision <= REVISION_OF_2_2:
        return export
    if not export.archive.has_zstd and revision == REVISION_OF_3:
        topology, lost = converted_topology(export.topology, server.version)
        return replace(export, topology=topology, lost=lost)
    made_by = printable_name(str(export.topology.get("version", "3")))
    raise Conflict(
        f"The backup {backup.file.file_uuid} is of GNS3 {made_by}, and GNS3 {server.version} on {server.name}"
        " cannot read it. Restore it to a server of GNS3 3."
    )


def converted_topology(topology: Mapping[str, Any], version: str) -> tuple[dict[str, Any], list[str]]:
    """Return a topology of GNS3 3.0 for GNS3 2.2, and settings that are lost, such as `R1: cpus`. Pure."""
    inner = topology.get("topology")
    nodes = inner.get("nodes") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(nodes, list):
        return dict(topology), []
    lost: list[str] = []
    made: list[Any] = []
    for node in nodes:
        if isinstance(node, dict) and isinstance(properties := node.get("properties"), dict):
            added = _ADDED.get(str(node.get("node_type")), frozenset()) | {"compute_id"}
            kept = {name: value for name, value in properties.items() if name not in added}
            lost += [f"{node.get('name')}: {name}" for name in sorted(added) if _is_set(properties, name)]
            node = {name: value for name, value in node.items() if name not in ("aux", "aux_type")}
            node |= {"properties": kept}
        made.append(node)
    changed = {"revision": REVISION_OF_2_2, "version": version, "topology": {**inner, "nodes": made}}
    return {**topology, **changed}, lost


def _is_set(properties: Mapping[str, Any], name: str) -> bool:
    """Whether a setting says something that GNS3 would not do without it."""
    value = properties.get(name)
    if name == "maxcpus":
        return bool(value) and value != 1 and value != properties.get("cpus")
    return bool(value) and not name.endswith(_DERIVED)


async def restore(
    server: Gns3Server,
    client: AsyncClient,
    backup: StoredBackup,
    *,
    bar: Bar,
    name: str = "",
    start: bool = False,
    without_images: bool = False,
) -> RestoredProject:
    """Make a new project of a backup, open it, and start it or close it again.

    A project whose images are missing (`without_images`) stays closed. Raises FilestoreError; then the
    server has no project more than before, unless it only does not start.
    """
    export, plan = await plan_restore(server, client, backup, without_images=without_images)
    for needed in plan.needed:
        with bar(needed.image.filename) as progress:
            await pull_image(server, client, needed.image, needed.file_uuid, progress=progress)
    project_id, unfinished_id = str(uuid.uuid4()), str(uuid.uuid4())
    nodes: int | None = None
    missing = plan.missing
    lost = [*export.lost, *export.settings]
    try:
        with bar(backup.file.filename) as progress:
            content = _renamed(client, backup, export, unfinished_id, progress)
            async with aclosing(content):
                wanted = (name or str(export.topology.get("name", "")) or "project").replace("/", "_")
                project = await server.import_project(project_id, content, name=wanted)
        if not missing:
            missing = await _open(server, project_id, may_lack=plan.unknown if without_images else ())
        if not missing:
            nodes = len(await server.nodes(project_id))
            lost = [*export.lost, *await _set(server, project_id, export.settings)]
            if not start:
                await server.act(project_id, "close")
    except BaseException as error:
        with suppress(*FAILURES, TimeoutError):
            async with asyncio.timeout(CLEANING_S_MAX):
                await remove(server, project_id, unfinished_id, is_cut=isinstance(error, Unavailable))
        if isinstance(error, Conflict):
            raise Conflict(f"{error.details} The project was removed again.") from error
        raise
    if start and nodes is not None:
        try:
            await server.act(project_id, "nodes/start")
        except Conflict as error:
            told = f"{printable_name(project.name)} ({project_id}) was restored, but does not start"
            raise Conflict(f"{told}: {error.details}") from error
    return RestoredProject(
        project, len(plan.needed), plan.unknown, nodes, missing, lost, export.archive.missing
    )


async def check_archive(client: AsyncClient, backup: StoredBackup) -> StoredExport:
    """Compare a stored archive with the fingerprint that was taken when it was made.

    Raises Conflict. A file that is not a backup of this program has no fingerprint, but must be complete too.
    """
    try:
        archive = await archive_of(client, backup)
        entry = archive.topologies[-1]  # GNS3 takes the last
        start, stop = topology_span(entry)
        stop = min(stop, backup.file.size_bytes)
        head = b"".join([part async for part in client.files.read(backup.file.file_uuid, start, stop)])
        topology = await asyncio.to_thread(topology_of, head, entry)
    except ExportDamaged as error:
        raise Conflict(f"{backup.file.file_uuid} is not a complete export: {error}.") from error
    if backup.fingerprint.digest and fingerprint_of(archive) != backup.fingerprint:
        raise Conflict(f"{backup.file.file_uuid} differs from its fingerprint.")
    return StoredExport(archive, topology)


async def _renamed(
    client: AsyncClient,
    backup: StoredBackup,
    export: StoredExport,
    unfinished_id: str,
    progress: Progress,
) -> AsyncGenerator[bytes, None]:
    """The archive with another id and name in its topology. GNS3 replaces both at the end of an import.

    The id must not be that under which the project is imported: GNS3 would take it for a snapshot.
    """
    told = f"{export.topology.get('name', '')} {UNFINISHED}"
    topology = {**export.topology, "project_id": unfinished_id, "name": told, **_IMPORTED}
    start, done_bytes = export.archive.start, 0
    async for part in client.files.read(backup.file.file_uuid, 0, start):
        done_bytes += len(part)
        progress(done_bytes, start)
        yield part
    yield await asyncio.to_thread(end_with_topology, export.archive, json.dumps(topology).encode())


async def _open(server: Gns3Server, project_id: str, *, may_lack: Sequence[str]) -> Sequence[str]:
    """Open a project, or return `may_lack`: images without a checksum, which may be why it does not open."""
    try:
        await server.open(project_id)
    except Conflict:
        if not may_lack:
            raise
        return may_lack
    return ()


async def _set(server: Gns3Server, project_id: str, settings: Mapping[str, object]) -> list[str]:
    """Set what an import has reset. Returns the names of settings that the server did not take."""
    try:
        if settings:
            await server.update_project(project_id, settings)
    except FAILURES:
        return list(settings)
    return []


async def remove(server: Gns3Server, project_id: str, unfinished_id: str, *, is_cut: bool) -> None:
    """Remove a project that is not as it should be; what is unpacked of one that is none yet, too.

    A server that was killed and is back may list what it had unpacked, by `unfinished_id`.
    """
    with suppress(NotFound):
        await _delete(server, unfinished_id)
    try:
        await _delete(server, project_id)
    except NotFound:
        if not is_cut:  # of a request that was cut off the server removes everything itself
            await server.remove_remains(project_id)


async def _delete(server: Gns3Server, project_id: str) -> None:
    """Delete a project. After its start GNS3 2.2 fails to, until it has opened one."""
    try:
        await server.delete_project(project_id)
    except (Forbidden, Internal):
        with suppress(Conflict):
            await server.open(project_id)
        await server.delete_project(project_id)

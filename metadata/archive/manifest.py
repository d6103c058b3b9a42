"""Read the manifest of an exported GNS3 project: name, version of its format, images that it needs.

Such an export is a zip with the topology in `project.gns3` and, if requested, images in `images/KIND/NAME`.
Nothing else is unpacked. Files come from users: for any content, reading takes bounded time and memory and
raises nothing. Content that is too large to be examined is not reported as damaged, but omitted, and
`truncated` is set.
"""

import re
import threading
import unicodedata
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from metadata.archive.zip_reader import (
    END_MAGIC,
    LOCAL_MAGIC,
    CentralDirectory,
    TooLarge,
    ZipDamaged,
    ZipEntry,
    entries,
    find_directory,
    read_entry,
)
from metadata.model.records import Manifest, ManifestImage
from runtime.bounds import IMAGES_MAX, LABEL_CHARS_MAX

TOPOLOGY_BYTES_MAX = 8 * 1024 * 1024  # a node takes about 4 KiB
OBJECTS_MAX = 200_000  # JSON objects in it; a node has about twenty
_TOPOLOGY = b"project.gns3"
_IMAGES = b"images/"
_MD5 = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)
_ABSENT = Raw()
_reading = threading.Lock()  # a hostile topology takes some 100 MiB while it is decoded: one at a time

Images = dict[tuple[str, str], None]  # filename and md5, in order


class _Properties(Struct, frozen=True, gc=False):
    """The images in the properties of a node, each with its checksum.

    The names are those of gns3-server's schemas of Qemu, Dynamips, IOU and Docker nodes.
    """

    hda_disk_image: Raw = _ABSENT
    hda_disk_image_md5sum: Raw = _ABSENT
    hdb_disk_image: Raw = _ABSENT
    hdb_disk_image_md5sum: Raw = _ABSENT
    hdc_disk_image: Raw = _ABSENT
    hdc_disk_image_md5sum: Raw = _ABSENT
    hdd_disk_image: Raw = _ABSENT
    hdd_disk_image_md5sum: Raw = _ABSENT
    cdrom_image: Raw = _ABSENT
    cdrom_image_md5sum: Raw = _ABSENT
    bios_image: Raw = _ABSENT
    bios_image_md5sum: Raw = _ABSENT
    initrd: Raw = _ABSENT
    initrd_md5sum: Raw = _ABSENT
    kernel_image: Raw = _ABSENT
    kernel_image_md5sum: Raw = _ABSENT
    image: Raw = _ABSENT  # Dynamips; for Docker the name of an image in a registry
    image_md5sum: Raw = _ABSENT
    path: Raw = _ABSENT  # IOU
    md5sum: Raw = _ABSENT


class _Node(Struct, frozen=True, gc=False):
    node_type: Raw = _ABSENT
    properties: _Properties | None = None


class _Topology(Struct, frozen=True):
    nodes: list[_Node] | None = None


class _Project(Struct, frozen=True):
    """The topology file, as far as it is read. `revision` is the version of the format."""

    name: Raw = _ABSENT
    revision: Raw = _ABSENT
    topology: _Topology | None = None


_IMAGE_FIELDS = tuple(
    name for name in _Properties.__struct_fields__ if not name.endswith("md5sum") and name != "path"
)
_project = msgspec.json.Decoder(_Project).decode
_text = msgspec.json.Decoder(str).decode


def manifest_at_once(content: bytes) -> Manifest | None:
    """Classify content that does not contain the end of a zip; None if it may contain one."""
    if END_MAGIC in content:
        return None
    return Manifest(archive="damaged" if content.startswith(LOCAL_MAGIC) else "other")


def read_manifest(descriptor: int, size_bytes: int) -> Manifest:
    """Classify the file of `size_bytes` behind a descriptor. Blocks. Raises OSError if the disk fails."""
    try:
        directory = find_directory(descriptor, size_bytes)
        return Manifest(archive="other") if directory is None else _read(descriptor, directory)
    except ZipDamaged:
        return Manifest(archive="damaged")


def images_of_topology(content: bytes) -> list[ManifestImage]:
    """Return the images that a topology names, IMAGES_MAX at most; none for what is no topology."""
    try:
        with _reading:
            return _shown(_needed(_decode(content)))[:IMAGES_MAX]
    except (ZipDamaged, TooLarge):
        return []


def _read(descriptor: int, directory: CentralDirectory) -> Manifest:
    topology: ZipEntry | None = None
    images: Images = {}
    truncated = False
    try:
        for entry in entries(descriptor, directory):
            if entry.name == _TOPOLOGY:
                topology = entry  # the last one counts, as in Python's zipfile, with which GNS3 reads it
            elif entry.name.startswith(_IMAGES) and len(images) <= IMAGES_MAX:
                _note(images, _base_name(entry.shown_name), "")
    except TooLarge:
        truncated = True
    if topology is None:  # of what was looked at
        return Manifest(archive="other", truncated=truncated)
    try:
        with _reading:
            content = read_entry(descriptor, directory, topology, size_bytes_max=TOPOLOGY_BYTES_MAX)
            project = _decode(content)
            needed = _needed(project)
    except TooLarge:
        return Manifest(archive="gns3", truncated=True)
    for filename, md5 in images:
        _note(needed, filename, md5)
    shown = _shown(needed)
    return Manifest(
        archive="gns3",
        project_name=_label(_string(project.name)),
        format_version=_label(_string(project.revision) or _digits(project.revision)),
        images=shown[:IMAGES_MAX],
        truncated=truncated or len(shown) > IMAGES_MAX,
    )


def _decode(content: bytes) -> _Project:
    """The topology. Raises ZipDamaged when it is none, TooLarge."""
    if content.count(b"{") > OBJECTS_MAX:
        raise TooLarge
    try:
        return _project(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ZipDamaged("has a topology that cannot be read") from error


def _needed(project: _Project) -> Images:
    """The images that the nodes name, one more than are shown at most."""
    images: Images = {}
    nodes = project.topology.nodes if project.topology else None
    for node in nodes or ():
        for filename, md5 in _of_node(node):
            _note(images, filename, md5)
        if len(images) > 2 * IMAGES_MAX:  # one filename may stand there with and without its checksum
            break
    return images


def _of_node(node: _Node) -> Iterator[tuple[str, str]]:
    properties = node.properties
    if properties is None:
        return
    kind = _string(node.node_type)
    if kind == "docker":
        yield _label(_string(properties.image)), ""
        return
    for field in _IMAGE_FIELDS:
        value = getattr(properties, field)
        if value is not _ABSENT:
            yield _base_name(_string(value)), _md5(_string(getattr(properties, f"{field}_md5sum")))
    if kind == "iou":
        yield _base_name(_string(properties.path)), _md5(_string(properties.md5sum))


def _note(images: Images, filename: str, md5: str) -> None:
    if filename:
        images[filename, md5] = None


def _shown(images: Images) -> list[ManifestImage]:
    """Return each image once, without a checksum only if no entry has one."""
    known = {filename for filename, md5 in images if md5}
    return [ManifestImage(filename, md5) for filename, md5 in images if md5 or filename not in known]


def _string(value: Raw) -> str:
    """A JSON string; "" for anything else."""
    encoded = bytes(value)
    try:
        return _text(encoded) if encoded.startswith(b'"') else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _digits(value: Raw) -> str:
    encoded = bytes(value)
    return encoded.decode("ascii") if encoded.isdigit() and len(encoded) <= 9 else ""


def _md5(text: str) -> str:
    return text.lower() if _MD5.fullmatch(text) else ""


def _base_name(path: str) -> str:
    """The last part of a path of either kind; "" for a directory."""
    return _label(path.replace("\\", "/").rpartition("/")[2])


def _label(text: str) -> str:
    """Text as it may be shown and stored: no control characters, bounded."""
    shown = text[:LABEL_CHARS_MAX]
    return "".join(
        "_" if unicodedata.category(character) in ("Cc", "Cs") else character for character in shown
    )

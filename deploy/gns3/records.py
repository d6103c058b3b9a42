"""The records of a GNS3 server, as types. Shared by all parts; other fields are dropped.

Tested by tests/unit/deploy/gns3/test_images.py.
"""

import re
from typing import Final

from msgspec import Struct

EMULATORS: Final = {"qemu": "qemu", "ios": "dynamips", "iou": "iou"}  # what runs each type of image
FOLDERS: Final = {"qemu": "QEMU", "ios": "IOS", "iou": "IOU"}  # below the server's folder for images
_NEVER_EXPORTED: Final = ("virtualbox", "vmware")  # GNS3 refuses to export a project that has one
# They come with every server.
_BUILT_IN: Final = re.compile(r"empty\d+[GT]\.qcow2|OVMF(_CODE|_VARS)?(_4M)?\.fd|config\.img")
_ALWAYS_RUNNING: Final = (
    "cloud",
    "nat",
    "ethernet_hub",
    "ethernet_switch",
    "frame_relay_switch",
    "atm_switch",
)


def is_built_in(filename: str) -> bool:
    """Return whether every GNS3 server has an image with this name."""
    return _BUILT_IN.fullmatch(filename) is not None


class LabProject(Struct, frozen=True, kw_only=True):
    """A project of a server. `status` is `opened` or `closed`; `path` is its folder there."""

    project_id: str
    name: str
    status: str = ""
    path: str = ""
    auto_close: bool = True


class LabNode(Struct, frozen=True, kw_only=True):
    """A node of an opened project."""

    node_id: str
    name: str
    node_type: str
    status: str = "stopped"
    compute_id: str | None = "local"

    @property
    def is_exported(self) -> bool:
        """Whether GNS3 exports a project that has this node: disks of some lie outside of the project."""
        return self.node_type not in _NEVER_EXPORTED

    @property
    def keeps_project_running(self) -> bool:
        """Whether its project cannot be exported: switches and clouds are always on and do not count."""
        return self.status != "stopped" and self.node_type not in _ALWAYS_RUNNING


class ServerImage(Struct, frozen=True, kw_only=True):
    """An image in the folders of a server. `image_type`: qemu, ios or iou."""

    filename: str
    image_type: str
    image_size: int
    checksum: str


class ControllerImage(Struct, frozen=True, kw_only=True):
    """An image as reported by a controller; an unreadable one has no checksum."""

    filename: str
    image_type: str | None = None
    image_size: int | None = None
    checksum: str | None = None

    @property
    def image(self) -> ServerImage:
        """Without gaps."""
        return ServerImage(
            filename=self.filename,
            image_type=self.image_type or "",
            image_size=self.image_size or 0,
            checksum=self.checksum or "",
        )


class ComputeImage(Struct, frozen=True, kw_only=True):
    """An image as a compute lists it, which is how servers of version 2 do."""

    filename: str
    filesize: int = 0
    md5sum: str | None = None

    def image(self, image_type: str) -> ServerImage:
        """Return this image as one of a type."""
        return ServerImage(
            filename=self.filename,
            image_type=image_type,
            image_size=self.filesize,
            checksum=self.md5sum or "",
        )


class ServerVersion(Struct, frozen=True, kw_only=True):
    """The answer of a GNS3 server about its version."""

    version: str


class AccessToken(Struct, frozen=True, kw_only=True):
    """Proof of who asks, for a day."""

    access_token: str


class Notification(Struct, frozen=True, kw_only=True):
    """Something that happened on a server, such as `project.closed`, and to what."""

    action: str
    event: dict[str, object] = {}


class ListedFile(Struct, frozen=True, kw_only=True):
    """A file in the folder of a project, as a compute lists it."""

    path: str


class Refusal(Struct, frozen=True, kw_only=True):
    """The body of an error."""

    message: object = ""
    detail: object = ""

    @property
    def words(self) -> str:
        """Its text on one line. GNS3 2.2 sends tracebacks: of these only the last line is for people."""
        lines = str(self.message or self.detail).split("\n")
        if lines[0].startswith("Traceback"):
            lines = [line for line in lines if line.strip()][-1:]
        return " ".join(" ".join(lines).split())

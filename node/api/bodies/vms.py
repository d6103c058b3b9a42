"""Bodies of `/api/v1/vms`."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from node.api.bodies.fields import Count, MaybeMd5, NextCursor
from node.api.bodies.files import CreateFileBody, FileBody, UpdateFileBody

VIRT_TYPES: Final = ["qemu", "docker", "dynamips", "iou", "vmware", "virtualbox", "vpcs"]
VCPUS_MAX: Final = 1024
RAM_MB_MAX: Final = 2**24
IMAGE_FORMAT: Final = "[a-z0-9._-]{1,32}"  # the whole text

GivenVirtType = Annotated[
    Literal["qemu", "docker", "dynamips", "iou", "vmware", "virtualbox", "vpcs"],
    Meta(description="What runs the image.", examples=["qemu"]),
]
VirtType = Annotated[
    str, Meta(description="What runs the image.", examples=["qemu"], extra_json_schema={"enum": VIRT_TYPES})
]
ImageFormat = Annotated[
    str,
    Meta(
        description="The format of the image, as the program that runs it names it.",
        examples=["qcow2"],
        extra_json_schema={"pattern": f"^{IMAGE_FORMAT}$"},
    ),
]
Vcpus = Annotated[
    int, Meta(ge=1, le=VCPUS_MAX, description="Virtual processors of the machine.", examples=[2])
]
RamMb = Annotated[int, Meta(ge=1, le=RAM_MB_MAX, description="Memory of the machine in MB.", examples=[2048])]
ExtraAttributes = Annotated[
    str,
    Meta(
        description='A JSON object as text, at most 64 KiB, returned as it came; "" when none was given.',
        examples=['{"console": "vnc"}'],
    ),
]


class CreateVmBody(CreateFileBody, frozen=True, kw_only=True):
    """A VM image to be made. `bucket_id` left out: the default bucket."""

    virt_type: GivenVirtType
    format: ImageFormat
    vcpus: Vcpus = 1
    ram_mb: RamMb = 512
    extra_attributes_json: ExtraAttributes = ""


class UpdateVmBody(UpdateFileBody, frozen=True, kw_only=True):
    """What is absent stays as it is."""

    extra_attributes_json: ExtraAttributes | None = None
    format: ImageFormat | None = None
    ram_mb: RamMb | None = None
    vcpus: Vcpus | None = None
    virt_type: GivenVirtType | None = None


class VmBody(FileBody, frozen=True, kw_only=True):
    """A VM image: file record and image metadata in one."""

    virt_type: VirtType
    format: ImageFormat
    vcpus: Vcpus
    ram_mb: RamMb
    extra_attributes_json: ExtraAttributes
    md5: MaybeMd5


class VmList(Struct, frozen=True, kw_only=True):
    """A page of VM images, oldest first. It may be short of its limit and still have a next one."""

    count: Count
    vms: Annotated[list[VmBody], Meta(description="The VM images.")]
    next_cursor: NextCursor | UnsetType = UNSET

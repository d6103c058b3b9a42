"""Bodies of `/api/v1/vms`."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.checks import Checks
from api.bodies.fields import Count, MaybeMd5, NextCursor
from api.bodies.files import (
    CreateFileBody,
    FileBody,
    ListFilter,
    UpdateFileBody,
    in_answers,
    in_filters,
    in_requests,
)
from ca.errors import InvalidRequest
from metadata.model.later_fields import with_later
from metadata.model.records import VM
from runtime.bounds import DOCUMENT_CHARS_MAX

VIRT_TYPES: Final = ["qemu", "docker", "dynamips", "iou", "vmware", "virtualbox", "vpcs"]
VCPUS_MAX: Final = 1024
RAM_MB_MAX: Final = 2**24
IMAGE_FORMAT: Final = "[a-z0-9._-]{1,32}"  # the whole text
NESTED_MAX: Final = 128  # objects and lists of a document within one another
_FORMAT: Final = re.compile(IMAGE_FORMAT)
_MD5: Final = re.compile(r"[0-9a-f]{32}")

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
        description="The disk format of the image, such as qcow2.",
        examples=["qcow2"],
        extra_json_schema={"pattern": f"^{IMAGE_FORMAT}$"},
    ),
]
Vcpus = Annotated[int, Meta(ge=1, le=VCPUS_MAX, description="Number of virtual processors.", examples=[2])]
RamMb = Annotated[int, Meta(ge=1, le=RAM_MB_MAX, description="Memory in MB.", examples=[2048])]
ExtraAttributes = Annotated[
    str,
    Meta(
        description='A JSON object as text, at most 64 KiB, returned unchanged; "" if none was given.',
        examples=['{"console": "vnc"}'],
    ),
]


@with_later(VM, in_requests)
class CreateVmBody(CreateFileBody, frozen=True, kw_only=True):
    """A VM image to be made. `bucket_id` left out: the default bucket."""

    virt_type: GivenVirtType
    format: ImageFormat
    vcpus: Vcpus = 1
    ram_mb: RamMb = 512
    extra_attributes_json: ExtraAttributes = ""


@with_later(VM, in_requests)
class UpdateVmBody(UpdateFileBody, frozen=True, kw_only=True):
    """Absent fields keep their values."""

    extra_attributes_json: ExtraAttributes | None = None
    format: ImageFormat | None = None
    ram_mb: RamMb | None = None
    vcpus: Vcpus | None = None
    virt_type: GivenVirtType | None = None


@with_later(VM, in_answers)
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


@with_later(VM, in_filters)
class VmFilter(ListFilter, frozen=True, kw_only=True):
    """The filters of a list of VM images."""

    md5: Annotated[MaybeMd5, Meta(description="Only images whose content has this MD5.")] = ""


def check_format(text: str, field: str) -> str:
    """The name of an image format. Raises InvalidRequest."""
    if _FORMAT.fullmatch(text) is None:
        raise InvalidRequest(f"{field}: 1 to 32 of a-z 0-9 . _ - are required")
    return text


def check_md5(text: str, field: str) -> str:
    """32 hex digits, in lower case. Raises InvalidRequest."""
    if _MD5.fullmatch(text.lower()) is None:
        raise InvalidRequest(f"{field}: expected 32 hex digits")
    return text.lower()


def check_attributes(text: str, field: str) -> str:
    """A JSON object as text, which is kept as it came; "" is none. Raises InvalidRequest."""
    if len(text.encode()) > DOCUMENT_CHARS_MAX:
        raise InvalidRequest(f"{field}: at most {DOCUMENT_CHARS_MAX} bytes")
    try:
        value: Any = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field}: expected the text of a JSON object")
    if not _is_shallow(value):
        raise InvalidRequest(f"{field}: nested more than {NESTED_MAX} deep")
    return text


def _is_shallow(value: Any) -> bool:
    """Whether every reader can take it: how deep parsers go differs, also between versions of Python."""
    level = [value]
    for _ in range(NESTED_MAX):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False


CHECKS: Final[Checks] = {"format": check_format, "extra_attributes_json": check_attributes}
FILTER_CHECKS: Final[Checks] = {"md5": check_md5}

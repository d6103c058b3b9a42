"""Bodies of `/api/v1/project-files`."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.checks import Checks, check_label
from api.bodies.fields import Count, FileUuid, FilterText, Label, MaybeLabel, NextCursor
from api.bodies.files import (
    CreateFileBody,
    FileBody,
    ListFilter,
    UpdateFileBody,
    in_answers,
    in_filters,
    in_requests,
)
from metadata.model.later_fields import with_later
from metadata.model.records import PROJECT_FILE

Compression = Annotated[
    Literal["deflate", "bz2", "xz", "zstd", "none"],
    Meta(description="The compression that was used for the export.", examples=["zstd"]),
]
ProjectId = Annotated[
    Label,
    Meta(
        description="The project's id at its origin: any label.",
        examples=["0f8ac31c-6ae5-4a2e-9c1f-0d5b4b1a7c11"],
    ),
]
ProjectName = Annotated[Label, Meta(description="The project's name.", examples=["ospf lab"])]
VersionTag = Annotated[Label, Meta(description="The version of the project: any label.", examples=["v2"])]
MaybeProjectName = Annotated[MaybeLabel, Meta(description='The project\'s name, or "".')]
MaybeVersionTag = Annotated[MaybeLabel, Meta(description='The version\'s label, or "".', examples=["v2"])]
IncludeImages = Annotated[
    bool, Meta(description="Whether the export includes the disk images that it needs.")
]
IncludeSnapshots = Annotated[bool, Meta(description="Whether the export includes the project's snapshots.")]
IsReadOnly = Annotated[bool, Meta(description="Whether the project is meant to be opened but not changed.")]
KeepComputeIds = Annotated[
    bool, Meta(description="Whether the export keeps the ids of the computes that it ran on.")
]
ResetMacAddresses = Annotated[
    bool, Meta(description="Whether an import gives every interface a new MAC address.")
]
CHECKS: Final[Checks] = {
    "project_id": check_label,
    "project_name": check_label,
    "version_tag": check_label,
}


@with_later(PROJECT_FILE, in_requests)
class CreateProjectFileBody(CreateFileBody, frozen=True, kw_only=True):
    """A project file to be made. `bucket_id` left out: the default bucket."""

    compression: Compression = "none"
    project_id: ProjectId
    project_name: ProjectName | None = None
    version_tag: VersionTag | None = None
    include_images: IncludeImages = False
    include_snapshots: IncludeSnapshots = False
    is_read_only: IsReadOnly = False
    keep_compute_ids: KeepComputeIds = False
    reset_mac_addresses: ResetMacAddresses = False


@with_later(PROJECT_FILE, in_requests)
class UpdateProjectFileBody(UpdateFileBody, frozen=True, kw_only=True):
    """Absent fields keep their values."""

    compression: Compression | None = None
    include_images: IncludeImages | None = None
    include_snapshots: IncludeSnapshots | None = None
    is_read_only: IsReadOnly | None = None
    keep_compute_ids: KeepComputeIds | None = None
    project_name: ProjectName | None = None
    reset_mac_addresses: ResetMacAddresses | None = None
    version_tag: VersionTag | None = None


@with_later(PROJECT_FILE, in_answers)
class ProjectFileBody(FileBody, frozen=True, kw_only=True):
    """A project file: file record and project metadata in one."""

    project_id: ProjectId
    project_name: MaybeProjectName
    version_tag: MaybeVersionTag
    compression: Annotated[
        str,
        Meta(
            description="The compression that was used for the export.",
            examples=["zstd"],
            extra_json_schema={"enum": ["deflate", "bz2", "xz", "zstd", "none"]},
        ),
    ]
    include_images: IncludeImages
    include_snapshots: IncludeSnapshots
    is_read_only: IsReadOnly
    keep_compute_ids: KeepComputeIds
    reset_mac_addresses: ResetMacAddresses


class ProjectFileList(Struct, frozen=True, kw_only=True):
    """A page of project files, oldest first. It may be short of its limit and still have a next one."""

    count: Count
    project_files: Annotated[list[ProjectFileBody], Meta(description="The project files.")]
    next_cursor: NextCursor | UnsetType = UNSET


@with_later(PROJECT_FILE, in_filters)
class ProjectFileFilter(ListFilter, frozen=True, kw_only=True):
    """The filters of a list of project files."""

    project_id: Annotated[FilterText, Meta(description="Only files of this project.")] = ""


class ManifestImageBody(Struct, frozen=True, kw_only=True):
    """A disk image that a project needs."""

    filename: Annotated[
        MaybeLabel, Meta(description="The name of the image in the project.", examples=["vios.qcow2"])
    ]
    md5: Annotated[
        MaybeLabel,
        Meta(
            description=(
                'Its MD5, or "" if the archive has none. `GET /api/v1/vms?md5=` finds such an image.'
            ),
            examples=["098f6bcd4621d373cade4e832627b4f6"],
        ),
    ]


class ManifestBody(Struct, frozen=True, kw_only=True):
    """The contents of the archive of a project. All fields but `archive` are empty unless it is `gns3`."""

    file_uuid: FileUuid
    archive: Annotated[
        str,
        Meta(
            description=(
                "gns3: a zip file with a project in it. damaged: it looks like one but cannot "
                "be read; it is stored nevertheless. other: anything else, as far as the "
                "archive was examined."
            ),
            examples=["gns3"],
            extra_json_schema={"enum": ["gns3", "damaged", "other"]},
        ),
    ]
    project_name: MaybeProjectName
    format_version: Annotated[
        MaybeLabel, Meta(description="The revision of the project's file format.", examples=["9"])
    ]
    images: Annotated[list[ManifestImageBody], Meta(description="The disk images that the project needs.")]
    truncated: Annotated[
        bool,
        Meta(
            description=(
                "Whether the archive was examined only in part. It may then need more images "
                "than are listed, and `other` may still be a project."
            )
        ),
    ]

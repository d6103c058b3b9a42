"""The fields that bodies, answers and parameters are made of: type, bounds, meaning and an example of each.

The convention, which the OpenAPI document is made by and `tests/api/test_openapi.py` enforces:

- Every field of every body and answer has a description and an example. It takes them from an alias here, or
  adds its own: `Annotated[Label, Meta(description="...", examples=["..."])]`; a later Meta wins, the rest
  stays. A field that is a Struct, or a list of them, needs only a description. The example of a whole body
  is put together from those of its fields.
- `Meta(ge=, le=, min_length=, max_length=)` and `Literal` are enforced on requests by msgspec. A `pattern`,
  `format` or `enum` in `extra_json_schema` is only written down: a function of `checks` enforces it on
  requests, as its refusals read better; the tests enforce it on answers. A pattern is one of ECMA 262 and of
  Python's re alike, from `^` to `$`.
- Names that begin with `Given` are for requests, where they differ from what answers say. Optional fields of
  requests may be null or "" too: the document says so by itself, the Struct does not.
- In an answer, text without a value is "". Aliases that begin with `Maybe` allow that.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from runtime.bounds import LIFE_SECONDS_MAX, TEXT_CHARS_MAX

SIZE_BYTES_MAX: Final = 2**53 - 1  # what a JSON number holds exactly everywhere
RETENTION_HOURS_MAX: Final = 876_000  # a hundred years
LABEL_CHARS_MAX: Final = 255
PORT_MAX: Final = 65_535

_HEX: Final = "[0-9a-f]"
_ANY_HEX: Final = "[0-9a-fA-F]"
_NO_CONTROLS: Final = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_TIME: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z"
_MEMBER: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME_CHARACTERS: Final = "[A-Za-z0-9._@:-]"
_UUID: Final = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_ANY_UUID: Final = _UUID.replace(_HEX, _ANY_HEX)

# ---- text -------------------------------------------------------------------------------------------------
Text = Annotated[str, Meta(examples=["text"])]
Label = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LABEL_CHARS_MAX,
        examples=["lab 7"],
        extra_json_schema={"pattern": f"^[^{_NO_CONTROLS}]*$"},
    ),
]
MaybeLabel = Annotated[str, Meta(max_length=LABEL_CHARS_MAX, examples=["lab 7"])]
FilterText = Annotated[
    str,
    Meta(
        max_length=TEXT_CHARS_MAX,
        description="Any text. If nothing matches, the list is empty.",
        examples=["lab"],
    ),
]
Uuid = Annotated[
    str,
    Meta(
        examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
        extra_json_schema={"format": "uuid", "pattern": f"^{_UUID}$"},
    ),
]
MaybeUuid = Annotated[
    str,
    Meta(examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"], extra_json_schema={"pattern": f"^({_UUID})?$"}),
]
GivenUuid = Annotated[
    str,
    Meta(
        examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
        extra_json_schema={"format": "uuid", "pattern": f"^{_ANY_UUID}$"},
    ),
]
Timestamp = Annotated[
    str,
    Meta(
        description="RFC 3339, UTC, with milliseconds.",
        examples=["2026-11-20T12:00:00.000Z"],
        extra_json_schema={"format": "date-time", "pattern": f"^{_TIME}$"},
    ),
]
MaybeTimestamp = Annotated[
    str,
    Meta(
        description='RFC 3339, UTC, with milliseconds; "" when there is none.',
        examples=["2026-11-20T12:00:00.000Z"],
        extra_json_schema={"pattern": f"^({_TIME})?$"},
    ),
]
GivenTimestamp = Annotated[
    str,
    Meta(
        description="Any RFC 3339 time with a zone.",
        examples=["2026-11-20T12:00:00.000Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
TtlSeconds = Annotated[
    int,
    Meta(
        ge=1,
        le=LIFE_SECONDS_MAX,
        description=("Lifetime in seconds from now, by the cluster's clock. Use it instead of `expires_at`."),
        examples=[86_400],
    ),
]
Deleted = Annotated[
    bool, Meta(description="Always true.", examples=[True], extra_json_schema={"const": True})
]

# ---- files ------------------------------------------------------------------------------------------------
FileUuid = Annotated[Uuid, Meta(description="The file.")]
BucketId = Annotated[Uuid, Meta(description="The bucket. The default bucket's id is all zeros.")]
GivenBucketId = Annotated[
    GivenUuid, Meta(description="The bucket for the file. If absent: the default bucket.")
]
Filename = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LABEL_CHARS_MAX,
        description=(
            "A label for people and downloads, not a path: it contains no '/' and no control characters."
        ),
        examples=["lab.gns3project"],
        extra_json_schema={"pattern": f"^[^/{_NO_CONTROLS}]*$"},
    ),
]
_TCHAR: Final = "[A-Za-z0-9!#$%&'*+.^_`|~-]"
_MEDIA_PARAMETER: Final = f'[ \\t]*;[ \\t]*{_TCHAR}+=({_TCHAR}+|"[ !#-\\[\\]-~]*")'
ContentType = Annotated[
    Label,
    Meta(
        description="The media type of downloads (RFC 9110, section 8.3.1).",
        examples=["application/zip"],
        extra_json_schema={"pattern": f"^{_TCHAR}+/{_TCHAR}+({_MEDIA_PARAMETER})*$"},
    ),
]
SizeBytes = Annotated[
    int,
    Meta(
        ge=0,
        le=SIZE_BYTES_MAX,
        description="Size of the content in bytes; 0 if not known yet.",
        examples=[1048576],
    ),
]
GivenSizeBytes = Annotated[
    SizeBytes,
    Meta(
        description=(
            "Size of the content to upload. If absent, the size becomes known when the upload "
            "ends. A tus client that never sends `Upload-Length` needs to set it; otherwise an "
            "empty PUT with `Content-Range: bytes */SIZE` ends the upload."
        )
    ),
]
BlobSha256 = Annotated[
    str,
    Meta(
        description='SHA-256 of the content, or "" until the upload has ended.',
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
        extra_json_schema={"pattern": f"^({_HEX}{{64}})?$"},
    ),
]
GivenSha256 = Annotated[
    str,
    Meta(
        description="Expected SHA-256 of the finished content. If it differs, nothing is stored (460).",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
        extra_json_schema={"pattern": f"^{_ANY_HEX}{{64}}$"},
    ),
]
MaybeMd5 = Annotated[
    str,
    Meta(
        description='MD5 of the content, or "" if unknown.',
        examples=["098f6bcd4621d373cade4e832627b4f6"],
        extra_json_schema={"pattern": f"^({_HEX}{{32}})?$"},
    ),
]
FileStatus = Annotated[
    str,
    Meta(
        description=(
            "pending until the first byte is durable; uploading until the content is complete; "
            "then available; tombstoned after its retention period; finally deleted."
        ),
        examples=["available"],
        extra_json_schema={"enum": ["pending", "uploading", "available", "tombstoned", "deleted"]},
    ),
]
RetentionHours = Annotated[
    int,
    Meta(
        ge=1,
        le=RETENTION_HOURS_MAX,
        description=(
            "Whole hours from the moment the file becomes available until it is tombstoned. If "
            "absent: it is kept until it is deleted."
        ),
        examples=[720],
    ),
]
NewRetentionHours = Annotated[
    RetentionHours,
    Meta(
        description=(
            "Whole hours from the moment the file became available until it is tombstoned. "
            "null: it is kept until it is deleted. If absent: unchanged."
        )
    ),
]
ShownRetentionHours = Annotated[
    int,
    Meta(
        ge=0,
        description=(
            "Whole hours from the moment the file becomes available until it is tombstoned. "
            "Absent if it is kept until it is deleted."
        ),
        examples=[720],
    ),
]
ExpiresAt = Annotated[
    MaybeTimestamp,
    Meta(
        description=(
            "When the retention period ends and the content is removed. For a tombstoned file: "
            'when the record is removed as well. "" for never, and until the file is available.'
        )
    ),
]
UploadUrl = Annotated[
    str,
    Meta(
        description="Upload address, for PUT or tus. Every other node accepts the bytes too.",
        examples=["https://10.0.0.1:7443/api/v1/files/019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f/content"],
        extra_json_schema={"format": "uri"},
    ),
]
CreatedAt = Annotated[Timestamp, Meta(description="When the record was created.")]
UpdatedAt = Annotated[Timestamp, Meta(description="When the record last changed.")]

# ---- users and permissions --------------------------------------------------------------------------------
UserId = Annotated[
    str,
    Meta(
        description="The id of the user, as in `sub` of its tokens.",
        examples=["alice"],
        extra_json_schema={"pattern": f"^{_NAME_CHARACTERS}{{1,128}}$"},
    ),
]
OwnerId = Annotated[
    UserId, Meta(description=("The user who owns the file or bucket and has admin permission on it."))
]
GroupOrRole = Annotated[
    str, Meta(examples=["students"], extra_json_schema={"pattern": f"^{_NAME_CHARACTERS}{{1,64}}$"})
]
Roles = Annotated[
    list[GroupOrRole],
    Meta(
        max_length=64,
        description="Roles of the user. The role `admin` has every permission.",
        examples=[["teacher"]],
    ),
]
Groups = Annotated[
    list[GroupOrRole], Meta(max_length=64, description="Groups of the user.", examples=[["students"]])
]
KindOfFile = Annotated[
    str,
    Meta(
        description="The kind of the file. Its record is under /project-files, /vms or /backups.",
        examples=["project"],
        extra_json_schema={"enum": ["project", "image", "backup"]},
    ),
]
PermissionLevel = Annotated[
    Literal["read", "write", "admin"],
    Meta(description="admin implies write, write implies read.", examples=["write"]),
]
PrincipalKind = Annotated[
    Literal["user", "group", "role"],
    Meta(description=("The kind of principal that receives the permission."), examples=["user"]),
]

# ---- members of the cluster -------------------------------------------------------------------------------
MemberId = Annotated[
    str,
    Meta(
        description=(
            "The id of a member: up to 63 lower-case letters, digits and '-', with no '-' at either end."
        ),
        examples=["n1"],
        extra_json_schema={"pattern": f"^{_MEMBER}$"},
    ),
]
MaybeMemberId = Annotated[
    str,
    Meta(
        description='The id of a member, or "".',
        examples=["n1"],
        extra_json_schema={"pattern": f"^({_MEMBER})?$"},
    ),
]
IpAddress = Annotated[
    str, Meta(description="An IPv4 or IPv6 address, or the DNS name of the machine.", examples=["10.0.0.1"])
]
Port = Annotated[int, Meta(ge=1, le=PORT_MAX, description="A TCP port.", examples=[7443])]
Pem = Annotated[
    str, Meta(examples=["-----BEGIN CERTIFICATE-----\n(base64 lines)\n-----END CERTIFICATE-----\n"])
]

# ---- lists and numbers ------------------------------------------------------------------------------------
Amount = Annotated[int, Meta(ge=0, le=SIZE_BYTES_MAX, examples=[3])]
Count = Annotated[Amount, Meta(description="Number of elements in this response.", examples=[1])]
NextCursor = Annotated[
    str,
    Meta(
        description="Send it as `cursor` to get the next page. Absent on the last page.",
        examples=["4711"],
        extra_json_schema={"pattern": "^[1-9][0-9]{0,15}$"},
    ),
]


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown fields are refused. Optional ones may be absent, null or "" (`web.json_body`)."""

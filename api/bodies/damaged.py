"""Bodies of `/api/v1/cluster/damaged`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import Amount, BlobSha256, Count, Filename, MemberId, NextCursor, Uuid


class DamagedRange(Struct, frozen=True, kw_only=True):
    """Bytes of a content, as in a Range header: both ends belong to it."""

    first: Annotated[Amount, Meta(description="The first byte.", examples=[4194304])]
    last: Annotated[Amount, Meta(description="The last byte.", examples=[8388607])]


class DamagedFile(Struct, frozen=True, kw_only=True):
    """A file with this content."""

    file_uuid: Annotated[Uuid, Meta(description="The file.")]
    filename: Filename


class DamagedContent(Struct, frozen=True, kw_only=True):
    """Content that no node holds whole."""

    sha256: BlobSha256
    size_bytes: Annotated[Amount, Meta(description="Of all of it.", examples=[20971520])]
    lost_bytes: Annotated[
        Amount,
        Meta(description="That are damaged on every node; 0: it can be made whole.", examples=[4194304]),
    ]
    lost_ranges: Annotated[
        list[DamagedRange], Meta(description="Where they are. All other ranges can be read.")
    ]
    nodes: Annotated[list[MemberId], Meta(description="Nodes that keep a damaged copy.", examples=[["n1"]])]
    files: Annotated[list[DamagedFile], Meta(description="Files with this content, ten at most.")]


class DamagedList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of damaged content: first that of which bytes are lost."""

    count: Count
    contents: Annotated[list[DamagedContent], Meta(description="The contents.")]
    next_cursor: NextCursor | UnsetType = UNSET

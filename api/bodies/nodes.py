"""Bodies of moving, revoking and removing nodes."""

from typing import Annotated

from msgspec import Meta, Struct

from api.bodies.cluster import NodeId
from api.bodies.fields import Amount, Deleted, IpAddress, Request, Text


class MoveNodeBody(Request, frozen=True, kw_only=True):
    """Where a node is reached from now on."""

    address: IpAddress


class RevokedNode(Struct, frozen=True, kw_only=True):
    """The certificates of the node are revoked; what it held, and what only it held."""

    revoked: Annotated[bool, Meta(description="Always true.")]
    id: NodeId
    replicas: Annotated[
        Amount,
        Meta(description="Its copies, counted up to 10000: repair makes others.", examples=[1200]),
    ]
    uploads: Annotated[
        Amount, Meta(description="Unfinished uploads placed there, counted up to 10000.", examples=[0])
    ]
    only_there: Annotated[
        Amount,
        Meta(
            description="Blobs that no other node has which is there, counted up to 10000: its disk must "
            "come back, or they are given up.",
            examples=[0],
        ),
    ]
    uploads_only_there: Annotated[
        list[Text],
        Meta(
            description="The first unfinished uploads of which the same may be true.",
            examples=[["019a37c4-2e1b-7c33-9c62-6d2f0f6f3b11 (1048576 bytes)"]],
        ),
    ]


class RemovedNode(Struct, frozen=True, kw_only=True):
    """The node is no member any more; its certificates are revoked."""

    deleted: Deleted
    id: NodeId
    replicas: Annotated[
        Amount,
        Meta(description="Copies that went with a node removed by force, counted up to 10000.", examples=[0]),
    ]
    uploads: Annotated[
        Amount,
        Meta(
            description="Unfinished uploads placed on a node removed by force, counted up to 10000.",
            examples=[0],
        ),
    ] = 0

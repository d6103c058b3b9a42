"""Bodies of draining and removing nodes."""

from typing import Annotated

from msgspec import Meta, Struct

from node.api.bodies.cluster import NodeId
from node.api.bodies.fields import Amount, Deleted


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

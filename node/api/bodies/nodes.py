"""Bodies of draining and removing nodes."""

from msgspec import Struct

from node.api.bodies.cluster import NodeId
from node.api.bodies.fields import Deleted


class RemovedNode(Struct, frozen=True, kw_only=True):
    """The node is no member any more; its certificates are revoked."""

    deleted: Deleted
    id: NodeId

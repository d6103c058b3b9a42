"""Where a node's peers are: from the view, and from the coordinators for what is newer than it.

A view is up to a second old. A peer that joined or announced itself since must not look like a stranger.
"""

from coordinator.model.records import ClusterView, NodeRecord
from coordinator.protocol.queries import GetView
from coordinator.rpc.client import MetadataClient
from coordinator.rpc.view import View


async def find_node(metadata: MetadataClient, view: View, node_id: str) -> NodeRecord | None:
    """The record of a node that peers can reach, or what is known of it; None for a stranger.

    Raises Unavailable when the view does not tell and the coordinators cannot be asked.
    """
    known = view.node(node_id)
    if known is not None and known.peer_port:
        return known
    newest = await metadata.read(GetView(), ClusterView)
    return next((node for node in newest.nodes if node.node_id == node_id), None)

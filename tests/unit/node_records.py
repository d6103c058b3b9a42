"""Records of nodes, for tests that need one whatever is in it."""

from typing import Any

import msgspec

from metadata.model.records import NodeRecord

_RUNNING = NodeRecord(
    node_id="n",
    address="10.0.0.1",
    api_port=7443,
    peer_port=7444,
    zone="",
    weight=100,
    joined_at_ms=0,
)


def node_record(node_id: str, **fields: Any) -> NodeRecord:
    """A healthy node that has run, but for these fields."""
    return msgspec.structs.replace(_RUNNING, node_id=node_id, **fields)

"""What `filestore dev` tells the commands beside it: one file in its data directory."""

from pathlib import Path

import msgspec

from ca.errors import InvalidRequest
from coordinator.runtime.json_files import decode_foreign


class ClusterMember(msgspec.Struct, frozen=True):
    """A process of a development cluster."""

    id: str
    url: str
    pid: int
    data: str


class ClusterFile(msgspec.Struct, frozen=True):
    """What `filestore dev` writes once everything is ready, and removes when it stops. Paths are absolute."""

    nodes: list[ClusterMember]
    coordinators: list[ClusterMember]
    ca: str
    admin_token_file: str


def read_cluster_file(path: Path) -> ClusterFile:
    """Raises InvalidRequest when it is not what `filestore dev` writes."""
    try:
        return decode_foreign(path.read_bytes(), ClusterFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"Cannot use {path}: {error}") from error

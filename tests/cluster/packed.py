"""What lies in the packs of a node, as its index says; the node may run meanwhile."""

import sqlite3
from contextlib import closing
from pathlib import Path

from deploy.dev_cluster import Member
from tests.cluster.harness import Cluster


def packs_of(cluster: Cluster, node: Member) -> list[Path]:
    """The packs of a node."""
    return sorted((cluster.data(node) / "packs").glob("*.pack"))


def packed_on(cluster: Cluster, node: Member) -> set[str]:
    """The names of the blobs that are packed there."""
    index = cluster.data(node) / "packs" / "index.sqlite"
    if not index.exists():
        return set()
    with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=30)) as db:
        return {sha256.hex() for (sha256,) in db.execute("SELECT sha256 FROM blobs")}


def holders_of(cluster: Cluster, sha256: str) -> list[Member]:
    """The nodes that have a blob in a pack."""
    return [node for node in cluster.nodes if sha256 in packed_on(cluster, node)]

"""Clients of a cluster for tests, as its admin or as a user."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filestore_client import AsyncClient, Client
from tests.cluster.harness import Cluster


def options_of(
    cluster: Cluster, urls: Sequence[str] = (), *, token: str | Path = "", deadline_s: float = 30.0
) -> dict[str, Any]:
    """What a client of this cluster is made with. `urls`: instead of those of its nodes."""
    return {
        "urls": list(urls) or [node.url for node in cluster.nodes],
        "root_pem": cluster.ca.read_text(),
        "token": token or cluster.admin_token,
        "deadline_s": deadline_s,
    }


def client_of(cluster: Cluster, *urls: str, **options: Any) -> Client:
    """The blocking client."""
    return Client(**options_of(cluster, urls, **options))


def async_client_of(cluster: Cluster, *urls: str, **options: Any) -> AsyncClient:
    """The client for asyncio."""
    return AsyncClient(**options_of(cluster, urls, **options))

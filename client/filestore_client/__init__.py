"""The Python client of Filestore: `Client`, and `AsyncClient` for asyncio, with the same operations."""

from filestore_client.blocking import Client
from filestore_client.client import AsyncClient
from filestore_client.errors import FilestoreError

__all__ = ["AsyncClient", "Client", "FilestoreError"]

"""The Python client of Filestore: `Client`, and `AsyncClient` for asyncio, with the same operations.

`errors` has a class for each code of the API, `records` the types of what is answered.
"""

from filestore_client.base import errors, records
from filestore_client.base.errors import FilestoreError
from filestore_client.blocking import Client
from filestore_client.client import AsyncClient

__all__ = ["AsyncClient", "Client", "FilestoreError", "errors", "records"]

"""What the parts of an upload take of the node that they run in.

`node/services.py` makes it once at start; a part sees only what stands here.
"""

from typing import Protocol

from aiohttp import web

from node.api.services import ApiServices
from node.blobs import BlobStore
from node.content.locks import UploadLocks
from node.custody import Custody
from node.disk import DiskWorkers
from node.fetching import Fetches
from node.metrics import NodeMetrics
from node.peers import PeerClient
from node.prefixes import PrefixAnswers
from node.replication import Replication
from node.siblings import Siblings
from node.uploads import UploadStore


class UploadContext(Protocol):
    """One node. `disk` runs everything that `blobs` and `uploads` do: both block."""

    @property
    def node_id(self) -> str: ...

    @property
    def api(self) -> ApiServices: ...

    @property
    def blobs(self) -> BlobStore: ...

    @property
    def uploads(self) -> UploadStore: ...

    @property
    def peers(self) -> PeerClient: ...

    @property
    def replication(self) -> Replication: ...

    @property
    def disk(self) -> DiskWorkers: ...

    @property
    def metrics(self) -> NodeMetrics: ...

    @property
    def locks(self) -> UploadLocks: ...

    @property
    def siblings(self) -> Siblings: ...

    @property
    def prefixes(self) -> PrefixAnswers: ...

    @property
    def fetches(self) -> Fetches: ...

    @property
    def custody(self) -> Custody | None: ...


UPLOADS = web.AppKey[UploadContext]("uploads")

"""What the parts of an upload take of the node that they run in.

`node/services.py` makes it once at start; a part sees only what stands here.
"""

from typing import Protocol

from aiohttp import web

from node.api.context import ApiServices
from node.base.metrics import NodeMetrics
from node.custody.custody import Custody
from node.diskio.executor import DiskWorkers
from node.packs.group_commit import GroupCommit
from node.peer.client import PeerClient
from node.peer.fetch import Fetches
from node.staging.prefixes import PrefixAnswers
from node.staging.upload_store import UploadStore
from node.storage.blobs import BlobStore
from node.uploads.replicate import Replication
from node.uploads.small_copies import SmallCopies
from node.uploads.write_locks import UploadLocks
from node.workers.siblings import Siblings


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
    def small_blobs(self) -> GroupCommit: ...

    @property
    def small_copies(self) -> SmallCopies: ...

    @property
    def custody(self) -> Custody | None: ...


UPLOADS = web.AppKey[UploadContext]("uploads")

"""The services of a node's handlers. Shared by all of them; `node/server.py` creates them at start.

Tested by tests/unit/node/uploads/test_handing_over.py.
"""

from dataclasses import dataclass, field

from aiohttp import web

from api.context import API, ApiServices
from metadata.model.records import UploadRecord
from node.base.metrics import NodeMetrics
from node.base.record_cache import RecordCache
from node.base.shared_work import SharedWork
from node.custody.custody import Custody
from node.diskio.executor import DiskWorkers
from node.packs.group_commit import GroupCommit
from node.peer.client import PeerClient
from node.peer.fetch import Fetches
from node.peer.pulls import Pulls
from node.staging.resumed_hash import PrefixAnswers
from node.staging.upload_store import UploadStore
from node.storage.blobs import BlobStore
from node.uploads.replicate import Replication
from node.uploads.upload_copies import UploadCopies
from node.uploads.write_locks import UploadLocks
from node.workers.siblings import Siblings


@dataclass(frozen=True, slots=True)
class NodeServices:
    """One node. `disk` runs everything that `blobs` and `uploads` do: both block."""

    node_id: str
    api: ApiServices
    blobs: BlobStore
    uploads: UploadStore
    peers: PeerClient
    replication: Replication
    disk: DiskWorkers
    metrics: NodeMetrics
    records: RecordCache
    locks: UploadLocks = field(default_factory=UploadLocks)
    siblings: Siblings = field(default_factory=Siblings)
    prefixes: PrefixAnswers = field(default_factory=PrefixAnswers)
    concatenations: SharedWork[str, UploadRecord] = field(
        default_factory=lambda: SharedWork("concatenations")
    )
    small_blobs: GroupCommit = field(init=False)
    fetches: Fetches = field(kw_only=True)
    pulls: Pulls = field(kw_only=True)
    copies: UploadCopies = field(kw_only=True)
    custody: Custody | None = field(default=None, kw_only=True)  # in the first process of a node

    def __post_init__(self) -> None:
        """Create the separate path of small content to the disk."""
        object.__setattr__(self, "small_blobs", GroupCommit(self.disk, self.blobs.pack))


NODE = web.AppKey[NodeServices]("node")


def provide(app: web.Application, services: NodeServices) -> None:
    """Give the node to the handlers in `app`, and its shared parts to those of the metadata API."""
    app[API] = services.api
    app[NODE] = services

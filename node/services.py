"""What the handlers of a node work with; `node/server.py` makes it once at start."""

from dataclasses import dataclass, field

from aiohttp import web

from node.api.services import API, ApiServices
from node.blobs import BlobStore
from node.content.context import CONTENT
from node.content.locks import UploadLocks
from node.custody import Custody
from node.disk import DiskWorkers
from node.fetching import Fetches
from node.metrics import NodeMetrics
from node.peer_context import PEER
from node.peers import PeerClient
from node.prefixes import PrefixAnswers
from node.pulls import Pulls
from node.record_cache import RecordCache
from node.replication import Replication
from node.siblings import Siblings
from node.upload_context import UPLOADS
from node.upload_copies import UploadCopies
from node.uploads import UploadStore


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
    fetches: Fetches = field(kw_only=True)
    pulls: Pulls = field(kw_only=True)
    copies: UploadCopies = field(kw_only=True)
    custody: Custody | None = field(default=None, kw_only=True)  # in the first process of a node


def provide(app: web.Application, services: NodeServices) -> None:
    """Give each room whose handlers are in `app` what it takes of the node."""
    app[API] = services.api
    app[UPLOADS] = app[CONTENT] = app[PEER] = services

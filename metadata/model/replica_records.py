"""The records about blobs and their replicas that queries and commands answer with.

A page holds rows after the `after` of its query; `more` says that there are further ones.

Tested by tests/unit/coordinator/reconcile/test_rounds.py.
"""

from msgspec import Struct

from metadata.model.records import BlobRecord
from runtime.bounds import Span

HELD_MAX = 2_000  # blobs of a kind whose holders are looked at: 6 ms of a leader


class ReplicaToDelete(Struct, frozen=True, kw_only=True):
    """A replica that its node shall delete.

    `wanted`: files need it again, since others were lost meanwhile: better spared.
    """

    sha256: str
    size_bytes: int
    wanted: bool


class DeletionPage(Struct, frozen=True, kw_only=True):
    """Doomed replicas of one node in the order of their sha256, as of `log_index`."""

    log_index: int
    replicas: list[ReplicaToDelete]
    more: bool


class HeldReplica(Struct, frozen=True, kw_only=True):
    """A replica that the log names a node for."""

    sha256: str
    size_bytes: int
    doomed: bool


class ReplicaPage(Struct, frozen=True, kw_only=True):
    """Replicas of one node in the order of their sha256, as of `log_index`."""

    log_index: int
    replicas: list[HeldReplica]
    more: bool


class KnownReplica(Struct, frozen=True, kw_only=True):
    """The log's view of a blob on one node.

    `state`: held; doomed; wanted (files refer to the blob, but this node should hold no replica);
    unreferenced (no file refers to the blob, and this node should hold no replica). `damaged`: it is known to
    keep a damaged copy.
    """

    sha256: str
    state: str
    damaged: bool = False


class DamagedCopy(Struct, frozen=True, kw_only=True):
    """A damaged copy that a node keeps. `spans`: bytes that are known to be wrong there, ascending."""

    node_id: str
    spans: list[Span]


class NamedFile(Struct, frozen=True, kw_only=True):
    """A file, as people and the API know it."""

    file_uuid: str
    filename: str


class DamagedBlob(Struct, frozen=True, kw_only=True):
    """A blob that no node holds whole.

    `gone`: bytes that are wrong in every copy; `copies`: the nodes that keep a damaged one; `files`: some of
    those whose content it is; `doomed`: nodes that have yet to drop a replica.
    """

    sha256: str
    size_bytes: int
    gone: list[Span]
    copies: list[str]
    files: list[NamedFile]
    doomed: list[str] = []


class DamagedPage(Struct, frozen=True, kw_only=True):
    """Blobs that no node holds whole, in the order of their sha256."""

    blobs: list[DamagedBlob]
    more: bool


class ShortBlob(Struct, frozen=True, kw_only=True):
    """A blob with too few replicas that count.

    `missing`: how many replicas it lacks, plus one if no node holds it. `holders`: nodes whose replica is to
    be kept, in any state. `doomed`: nodes that have yet to delete theirs. `damaged`: nodes that keep a
    damaged copy with some intact bytes.
    """

    sha256: str
    size_bytes: int
    missing: int
    holders: list[str]
    doomed: list[str]
    damaged: list[str] = []


class ShortPage(Struct, frozen=True, kw_only=True):
    """Blobs by `missing`, the largest first, then by sha256, as of `log_index`."""

    log_index: int
    blobs: list[ShortBlob]
    more: bool


class SurplusPage(Struct, frozen=True, kw_only=True):
    """Blobs with more replicas than wanted, in the order of their sha256.

    Nodes that do not count are included. `after` is the last blob that was examined.
    """

    blobs: list[BlobRecord]
    after: str
    more: bool


class ReplicaCounts(Struct, frozen=True, kw_only=True):
    """The numbers of blobs by state. Each number stops at COUNTED_MAX (coordinator/machine/replicas.py).

    `short`: blobs by how many replicas they lack, without those that no node holds. Blobs that no node holds
    are counted as `lost` if there is not even a damaged copy; as `damaged` if every byte may be intact in
    some copy; and as `gone` if some bytes (`gone_bytes` in total) are wrong in every copy.

    `absent`: blobs of `short` whose only replicas are on nodes that are down, or that were down and are not
    compared yet. `last`: blobs that only one live node has, although more replicas are wanted. `few`: blobs
    of `short` that fewer nodes have than wanted, including draining ones, among the first HELD_MAX blobs of
    each number. `unreferenced`: blobs that wait for Collect. `doomed`: replicas that wait for their node, by
    node. `recounting`: nodes whose change of state is not fully counted yet, see RecountReplicas.
    """

    short: dict[int, int]
    lost: int
    unreferenced: int
    doomed: dict[str, int]
    recounting: list[str]
    absent: int = 0
    last: int = 0
    few: int = -1  # not told
    damaged: int = 0
    gone: int = 0
    gone_bytes: int = 0


class NodeReplicas(Struct, frozen=True, kw_only=True):
    """How many replicas the log names a node for, and how many more of its are marked for deletion."""

    replicas: int
    doomed: int


class Collected(Struct, frozen=True, kw_only=True):
    """The result of one Collect: blobs (and their bytes) to be deleted, replicas marked for deletion.

    `more`: it stopped at its bound.
    """

    blobs: int
    bytes: int
    replicas: int
    more: bool


class Dropped(Struct, frozen=True, kw_only=True):
    """The result of a ReportDropped: replicas (and their bytes) that are deleted, and those taken back."""

    dropped: int
    bytes: int
    spared: int


class Lost(Struct, frozen=True, kw_only=True):
    """The result of a ReportLost: lost replicas, and blobs that files need but no node holds now."""

    replicas: int
    blobs: int


class Recounted(Struct, frozen=True, kw_only=True):
    """Replicas that one RecountReplicas looked at; of a node removed by force they are gone now."""

    replicas: int
    more: bool


class SolePage(Struct, frozen=True, kw_only=True):
    """How many of the replicas looked at are `sole`: of content that no other node of those asked for holds.

    `after` is the sha256 of the last one.
    """

    sole: int
    after: str
    more: bool


class NodeRemoval(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Replicas that went with a node that was removed by force; at most COUNTED_MAX are counted.

    `uploads` that were placed there and had not ended are counted the same.
    """

    replicas: int
    uploads: int = 0

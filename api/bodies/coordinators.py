"""Bodies of the cluster's status and of changes to its coordinators."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.cluster import NodeId, NodeUrl, PeerPort, Weight, Zone
from api.bodies.fields import (
    Amount,
    Deleted,
    IpAddress,
    MaybeMemberId,
    MaybeTimestamp,
    MemberId,
    Port,
    Request,
    Text,
    Timestamp,
)
from api.bodies.jobs import JobRunBody
from metadata.model.records import DOWN, HEALTHY, RETURNING
from metadata.rpc.node_health import NODE_STATES

CoordinatorId = Annotated[MemberId, Meta(description="The coordinator.", examples=["c1"])]
CoordinatorApiPort = Annotated[Port, Meta(description="The port for clients.", examples=[7441])]
Membership = Annotated[
    str,
    Meta(
        description="`voter`, or `learner`, which has no vote until it has caught up.",
        examples=["voter"],
        extra_json_schema={"enum": ["voter", "learner"]},
    ),
]


ClockOffset = Annotated[
    int,
    Meta(
        description=(
            "Difference of its clock from most other clocks, including the time that messages took."
        ),
        ge=-(2**53),
        le=2**53,
        examples=[3],
    ),
]


MemberVersion = Annotated[
    Text, Meta(description='The version of Filestore there, or "" from older versions.', examples=["0.2.0"])
]
KnownRules = Annotated[
    Amount,
    Meta(
        description="The newest rules of the state machine that it supports, or 0 from older versions.",
        examples=[6],
    ),
]
CertificateEnd = Annotated[
    MaybeTimestamp,
    Meta(
        description=(
            'When its certificate expires, or "" if unknown. Certificates are renewed days before that.'
        )
    ),
]


class AddCoordinatorBody(Request, frozen=True, kw_only=True):
    """A coordinator that already runs, and is to join the group."""

    id: CoordinatorId
    address: IpAddress
    peer_port: Annotated[int, Meta(description="The port for other members.", examples=[7442])]
    api_port: Annotated[int, Meta(description="The port for clients.", examples=[7441])]


class TransferLeaderBody(Request, frozen=True, kw_only=True):
    """Without `id`, the most advanced coordinator takes over."""

    id: Annotated[MaybeMemberId, Meta(description="The id of the new leader.", examples=["c2"])] = ""


class CoordinatorState(Struct, frozen=True, kw_only=True):
    """A coordinator's view of itself; `match` to `active` are the leader's view of it.

    Unknown fields are absent: its own fields if the role is `unreachable`, and the leader's fields if there
    is no leader.
    """

    id: CoordinatorId
    role: Annotated[
        str,
        Meta(
            description="The role that it reports, or `unreachable` if it does not answer.",
            examples=["leader"],
            extra_json_schema={"enum": ["leader", "follower", "candidate", "pre_candidate", "unreachable"]},
        ),
    ]
    membership: Membership
    term: Annotated[Amount, Meta(description="Its term.")] | UnsetType = UNSET
    commit: (
        Annotated[
            Amount, Meta(description="The last log entry that it knows to be committed.", examples=[4711])
        ]
        | UnsetType
    ) = UNSET
    applied: (
        Annotated[Amount, Meta(description="The last log entry in its state.", examples=[4711])] | UnsetType
    ) = UNSET
    last_index: (
        Annotated[Amount, Meta(description="The last entry in its log.", examples=[4711])] | UnsetType
    ) = UNSET
    disk_full: (
        Annotated[bool, Meta(description="Whether its disk is full. It then serves reads only.")] | UnsetType
    ) = UNSET
    recovering: (
        Annotated[
            bool,
            Meta(
                description=(
                    "Whether it has lost the end of its log. It then neither votes nor leads "
                    "until a leader of a later term has sent it the missing entries."
                )
            ),
        ]
        | UnsetType
    ) = UNSET
    match: (
        Annotated[Amount, Meta(description="The last log entry that is durable there.", examples=[4711])]
        | UnsetType
    ) = UNSET
    lag: Annotated[Amount, Meta(description="How many log entries it lacks.", examples=[0])] | UnsetType = (
        UNSET
    )
    replication: (
        Annotated[
            str,
            Meta(
                description="How the leader sends it what it lacks.",
                examples=["replicate"],
                extra_json_schema={"enum": ["probe", "replicate", "snapshot", "leader"]},
            ),
        ]
        | UnsetType
    ) = UNSET
    active: (
        Annotated[bool, Meta(description="Whether the leader has received a message from it recently.")]
        | UnsetType
    ) = UNSET
    diverged: Annotated[bool, Meta(description="Whether its state is known to be wrong.")] = False
    clock_offset_ms: ClockOffset | UnsetType = UNSET
    version: MemberVersion | UnsetType = UNSET
    rules: KnownRules | UnsetType = UNSET
    certificate_expires_at: CertificateEnd | UnsetType = UNSET


class CoordinatorBody(Struct, frozen=True, kw_only=True):
    """A coordinator that was added: a learner until it has caught up, then a voter."""

    id: CoordinatorId
    address: IpAddress
    peer_port: PeerPort
    api_port: CoordinatorApiPort
    membership: Membership


class RemovedCoordinator(Struct, frozen=True, kw_only=True):
    """The coordinator is out of the group; its id is never used again."""

    deleted: Deleted
    id: CoordinatorId


class Leader(Struct, frozen=True, kw_only=True):
    """The coordinator that is the leader now."""

    leader: Annotated[MemberId, Meta(description="The coordinator that is the leader now.", examples=["c2"])]


class NodeState(Struct, frozen=True, kw_only=True):
    """A node as the coordinators hear it."""

    id: NodeId
    url: NodeUrl
    state: Annotated[
        str,
        Meta(
            description=(
                "healthy; unreachable if most other members cannot connect to it; suspect or "
                "down if it sent no heartbeat for a time; returning if it is back but its "
                "replicas do not count yet; unheard if the current leader has received no "
                "heartbeat from it since the leader was started; joined if it has never run; "
                "draining if nothing new is placed there."
            ),
            examples=["healthy"],
            extra_json_schema={"enum": list(NODE_STATES)},
        ),
    ]
    heard_ms_ago: Annotated[
        Amount,
        Meta(description="Milliseconds since its last heartbeat, or 0 if there was none.", examples=[250]),
    ]
    free_bytes: Annotated[Amount, Meta(description="Free bytes on its disk.", examples=[500_000_000_000])]
    total_bytes: Annotated[Amount, Meta(description="The size of its disk.", examples=[1_000_000_000_000])]
    uploads: Annotated[Amount, Meta(description="Uploads that are stored there.", examples=[2])]
    zone: Zone
    weight: Weight
    disk: Annotated[
        str,
        Meta(
            description=(
                "ok; low if only the reserve is left, so that nothing new is placed there; "
                "full if nothing is left; failed if it cannot be written."
            ),
            examples=["ok"],
            extra_json_schema={"enum": ["ok", "low", "full", "failed"]},
        ),
    ] = "ok"
    recorded: Annotated[
        str,
        Meta(
            description="The state that is recorded in the log.",
            examples=["healthy"],
            extra_json_schema={"enum": [HEALTHY, DOWN, RETURNING]},
        ),
    ] = HEALTHY
    scrubbed_since: Annotated[
        MaybeTimestamp,
        Meta(
            description=(
                "Every replica on the node was read from its disk, or arrived, after this "
                'time. "" if unknown.'
            )
        ),
    ] = ""
    custody_stopped: Annotated[
        list[Text],
        Meta(
            description=(
                "Passes (collect, compare or scrub) that stopped because they would have "
                "removed too many of the node's replicas at once."
            ),
            examples=[["compare"]],
        ),
    ] = []
    copy_failures: Annotated[
        str,
        Meta(
            description=(
                "What the node has repeatedly failed to do when it had to create replicas or "
                'send them to others, as seen by the leader; "" for nothing.'
            ),
            examples=["failed 3 times in a row to create its assigned replicas (answered 500)"],
        ),
    ] = ""
    poison: Annotated[
        list[Text],
        Meta(
            description=(
                "The first few unusable files or directories on its disk, which the node "
                "skips, each with the reason."
            ),
            examples=[["quarantine: Input/output error"]],
        ),
    ] = []
    poison_count: Annotated[
        Amount, Meta(description="Number of unusable files and directories.", examples=[1])
    ] = 0
    rival: Annotated[
        str,
        Meta(
            description=(
                'Why a second process that claims to be this node is rejected, or "" if there is none.'
            ),
            examples=["another directory with the same name and certificate is in use"],
        ),
    ] = ""
    revoked: Annotated[
        bool, Meta(description="Whether its certificates were revoked and it has not joined again since.")
    ] = False
    clock_offset_ms: ClockOffset | UnsetType = UNSET
    version: MemberVersion = ""
    rules: KnownRules = 0
    is_too_old: Annotated[
        bool,
        Meta(description="Whether it is rejected because its version does not support the rules in force."),
    ] = False
    replicas: Annotated[
        Amount, Meta(description="Replicas of the node that count, according to the log.", examples=[1200])
    ] = 0
    blocked_dead_bytes: Annotated[
        Amount,
        Meta(
            description=(
                "Bytes of deleted small files that the node cannot free, because rewriting "
                "their packs needs more room than its disk has."
            ),
            examples=[104_857_600],
        ),
    ] = 0
    blocked_wanted_bytes: Annotated[
        Amount,
        Meta(
            description="How much more free space its disk needs before some of them can be freed.",
            examples=[67_108_864],
        ),
    ] = 0
    cold_bytes: Annotated[
        Amount,
        Meta(
            description="Content of the replicas that the node stores as chunks (cold).",
            examples=[5_368_709_120],
        ),
    ] = 0
    cold_stored_bytes: Annotated[
        Amount,
        Meta(
            description="Bytes that these chunks take on its disk, each chunk once.", examples=[536_870_912]
        ),
    ] = 0
    certificate_expires_at: CertificateEnd = ""


class EndingCertificate(Struct, frozen=True, kw_only=True):
    """A certificate that ends soon: within 36 hours one of a member, which is renewed days before; within 10
    days one that a member shows browsers; within 30 days one of the authority.
    """

    holder: Annotated[
        Text,
        Meta(
            description=(
                "root, intermediate, or a role and an id, followed by `for browsers` for a "
                "browser certificate."
            ),
            examples=["node n1"],
        ),
    ]
    expires_at: Annotated[Timestamp, Meta(description="When the certificate expires.")]


class ReplicaState(Struct, frozen=True, kw_only=True):
    """How the replicas of blobs are. Numbers stop at 10,000."""

    short: Annotated[
        dict[str, Amount],
        Meta(description="Number of blobs by how many replicas they lack.", examples=[{"1": 12}]),
    ]
    lost: Annotated[
        Amount,
        Meta(description="Blobs of files that no live node has any replica of.", examples=[0]),
    ]
    damaged: Annotated[
        Amount,
        Meta(
            description="Blobs without a complete replica that can be restored from damaged copies.",
            examples=[0],
        ),
    ]
    incomplete: Annotated[
        Amount,
        Meta(description="Blobs with bytes that are damaged on every node.", examples=[0]),
    ]
    lost_bytes: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="Number of damaged bytes in the blobs of `incomplete`.", examples=[0]),
    ]
    absent: Annotated[
        Amount,
        Meta(description="Blobs of `short` whose only replicas are on nodes that are down.", examples=[0]),
    ]
    last: Annotated[
        Amount,
        Meta(description="Blobs of `short` with a replica on only one live node.", examples=[0]),
    ]
    unreferenced: Annotated[
        Amount, Meta(description="Blobs that no file refers to. The job gc deletes them.", examples=[3])
    ]
    doomed: Annotated[Amount, Meta(description="Replicas that their nodes have yet to delete.", examples=[0])]


class Finding(Struct, frozen=True, kw_only=True):
    """One of the reasons why a cluster is not healthy."""

    problem: Annotated[str, Meta(description="A sentence.", examples=["The node n3 is down."])]
    runbook: Annotated[
        Text,
        Meta(
            description=(
                "The section of docs/runbook.md that explains what to do. Its anchor is the "
                "same name in lower case."
            ),
            examples=["FilestoreNodeDown"],
        ),
    ]
    since: Annotated[
        MaybeTimestamp, Meta(description=('The problem has existed at least since this time; "" if unknown.'))
    ] = ""


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """How the cluster is."""

    cluster: Annotated[MemberId, Meta(description="The cluster's name.", examples=["lab"])]
    leader: Annotated[
        MaybeMemberId,
        Meta(description=('The coordinator that is the leader, or "" if there is none.'), examples=["c1"]),
    ]
    rules: Annotated[
        Amount,
        Meta(
            description=(
                "The rules of the state machine that are in force. They are raised once every "
                "member supports newer ones, and older versions are rejected from then on. 0 "
                "from older versions."
            ),
            examples=[6],
        ),
    ]
    healthy: Annotated[
        bool,
        Meta(
            description=(
                "Whether there is a leader, every coordinator answers, has room and the "
                "correct state, and every node is healthy with a writable disk."
            ),
            examples=[True],
        ),
    ]
    health: Annotated[
        str,
        Meta(
            description=(
                "healthy; degraded if something needs attention; unavailable if changes or "
                "uploads are rejected."
            ),
            examples=["healthy"],
            extra_json_schema={"enum": ["healthy", "degraded", "unavailable"]},
        ),
    ]
    problems: Annotated[
        list[str],
        Meta(
            description="Why the cluster is not healthy, one sentence each.",
            examples=[["The node n3 is down."]],
        ),
    ]
    findings: Annotated[
        list[Finding],
        Meta(
            description=(
                "The same problems, with the time since when they exist and "
                "the section that explains what to do."
            )
        ),
    ]
    coordinators: Annotated[list[CoordinatorState], Meta(description="The coordinators.")]
    nodes: Annotated[list[NodeState], Meta(description="The nodes.")]
    files: Annotated[Amount, Meta(description="Number of file records.", examples=[1200])]
    blobs: Annotated[
        Amount, Meta(description="Number of different contents that are stored.", examples=[1100])
    ]
    blob_bytes: Annotated[
        Amount,
        Meta(description="Their total size, with each content counted once.", examples=[84_000_000_000]),
    ]
    replicas: Annotated[ReplicaState, Meta(description="Which blobs lack replicas.")]
    replicas_wanted: Annotated[
        Amount, Meta(description="Replicas that each blob should have. 0 if unknown.", examples=[3])
    ] = 0
    runs: Annotated[list[JobRunBody], Meta(description="Job runs that have not ended.")]
    certificates: Annotated[list[EndingCertificate], Meta(description="Certificates that expire soon.")]

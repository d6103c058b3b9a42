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
CoordinatorApiPort = Annotated[Port, Meta(description="The port that clients reach it at.", examples=[7441])]
Membership = Annotated[
    str,
    Meta(
        description="voter; or learner, which has no vote while it catches up.",
        examples=["voter"],
        extra_json_schema={"enum": ["voter", "learner"]},
    ),
]


ClockOffset = Annotated[
    int,
    Meta(
        description="Its clock less what most clocks show, with what the messages took on their way.",
        ge=-(2**53),
        le=2**53,
        examples=[3],
    ),
]


MemberVersion = Annotated[
    Text, Meta(description='Of the product, there; "" from older versions.', examples=["0.2.0"])
]
KnownRules = Annotated[
    Amount,
    Meta(
        description="The newest rules of the state machine that it knows; 0 from older versions.",
        examples=[6],
    ),
]
CertificateEnd = Annotated[
    MaybeTimestamp,
    Meta(description='When its certificate ends, which is renewed days before; "" when that is not known.'),
]


class AddCoordinatorBody(Request, frozen=True, kw_only=True):
    """A coordinator that already runs, and is to join the group."""

    id: CoordinatorId
    address: IpAddress
    peer_port: Annotated[int, Meta(description="The port that members reach it at.", examples=[7442])]
    api_port: Annotated[int, Meta(description="The port that clients reach it at.", examples=[7441])]


class TransferLeaderBody(Request, frozen=True, kw_only=True):
    """Without `id`, the most advanced coordinator takes over."""

    id: Annotated[MaybeMemberId, Meta(description="Who is to lead.", examples=["c2"])] = ""


class CoordinatorState(Struct, frozen=True, kw_only=True):
    """A coordinator as it sees itself; `match` to `active` as the leader sees it.

    What is not known is left out: what a coordinator with role `unreachable` would say, what a leader would
    say if there were one.
    """

    id: CoordinatorId
    role: Annotated[
        str,
        Meta(
            description="What it says of itself; unreachable when it says nothing.",
            examples=["leader"],
            extra_json_schema={"enum": ["leader", "follower", "candidate", "pre_candidate", "unreachable"]},
        ),
    ]
    membership: Membership
    term: Annotated[Amount, Meta(description="Its term.")] | UnsetType = UNSET
    commit: (
        Annotated[Amount, Meta(description="What it knows to be committed.", examples=[4711])] | UnsetType
    ) = UNSET
    applied: Annotated[Amount, Meta(description="What its state contains.", examples=[4711])] | UnsetType = (
        UNSET
    )
    last_index: Annotated[Amount, Meta(description="The end of its log.", examples=[4711])] | UnsetType = (
        UNSET
    )
    disk_full: (
        Annotated[bool, Meta(description="Its disk has no room: it serves reads only.")] | UnsetType
    ) = UNSET
    recovering: (
        Annotated[
            bool,
            Meta(
                description="It has lost the end of its log: it neither votes nor leads until a leader of a "
                "later term has brought it up to date."
            ),
        ]
        | UnsetType
    ) = UNSET
    match: Annotated[Amount, Meta(description="What is durable there.", examples=[4711])] | UnsetType = UNSET
    lag: (
        Annotated[Amount, Meta(description="How many entries are missing there.", examples=[0])] | UnsetType
    ) = UNSET
    replication: (
        Annotated[
            str,
            Meta(
                description="How the leader brings it up to date.",
                examples=["replicate"],
                extra_json_schema={"enum": ["probe", "replicate", "snapshot", "leader"]},
            ),
        ]
        | UnsetType
    ) = UNSET
    active: Annotated[bool, Meta(description="The leader has heard it lately.")] | UnsetType = UNSET
    diverged: Annotated[bool, Meta(description="Its state is known to be wrong.")] = False
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
    """Who leads now."""

    leader: Annotated[MemberId, Meta(description="The coordinator that leads now.", examples=["c2"])]


class NodeState(Struct, frozen=True, kw_only=True):
    """A node as the coordinators hear it."""

    id: NodeId
    url: NodeUrl
    state: Annotated[
        str,
        Meta(
            description="healthy; unreachable when most others cannot connect to it; suspect or down when it "
            "was not heard for long; returning when it is back and its replicas do not count yet; unheard "
            "while the coordinator that leads has not heard it since that one was started; joined when it "
            "has never run; draining when nothing new is placed there.",
            examples=["healthy"],
            extra_json_schema={"enum": list(NODE_STATES)},
        ),
    ]
    heard_ms_ago: Annotated[
        Amount, Meta(description="Milliseconds since it was heard; 0 if never.", examples=[250])
    ]
    free_bytes: Annotated[Amount, Meta(description="Room on its disk.", examples=[500_000_000_000])]
    total_bytes: Annotated[Amount, Meta(description="The size of its disk.", examples=[1_000_000_000_000])]
    uploads: Annotated[Amount, Meta(description="Uploads that lie there.", examples=[2])]
    zone: Zone
    weight: Weight
    disk: Annotated[
        str,
        Meta(
            description="ok; low when nothing new is placed there, since only the reserve is left; full "
            "when nothing is left; failed when it takes no bytes.",
            examples=["ok"],
            extra_json_schema={"enum": ["ok", "low", "full", "failed"]},
        ),
    ] = "ok"
    recorded: Annotated[
        str,
        Meta(
            description="What the log has it as, whoever hears it.",
            examples=["healthy"],
            extra_json_schema={"enum": [HEALTHY, DOWN, RETURNING]},
        ),
    ] = HEALTHY
    scrubbed_since: Annotated[
        MaybeTimestamp,
        Meta(
            description="Every replica there was read from the disk, or came, after this time; "
            '"" when that is not known.'
        ),
    ] = ""
    custody_stopped: Annotated[
        list[Text],
        Meta(
            description="Passes that stopped because they would have given up too many of its replicas at "
            "once: collect, compare or scrub.",
            examples=[["compare"]],
        ),
    ] = []
    copy_failures: Annotated[
        str,
        Meta(
            description="What the leader has seen fail again and again of the copies that it shall make, or "
            'give others; "" for nothing.',
            examples=["does not make the replicas that it shall (3 failures in a row: answered 500)"],
        ),
    ] = ""
    poison: Annotated[
        list[Text],
        Meta(
            description="The first few things on its disk that cannot be used and are passed over, each "
            "with why.",
            examples=[["quarantine: Input/output error"]],
        ),
    ] = []
    poison_count: Annotated[Amount, Meta(description="How many there are.", examples=[1])] = 0
    rival: Annotated[
        str,
        Meta(
            description='Why a second process that claims to be this node is refused; "" if there is none.',
            examples=["another directory has this name and certificate"],
        ),
    ] = ""
    revoked: Annotated[
        bool, Meta(description="Whether its certificates were revoked; it has joined anew otherwise.")
    ] = False
    clock_offset_ms: ClockOffset | UnsetType = UNSET
    version: MemberVersion = ""
    rules: KnownRules = 0
    is_too_old: Annotated[
        bool, Meta(description="It runs a version that does not know the rules in force, and is refused.")
    ] = False
    replicas: Annotated[
        Amount, Meta(description="Its replicas that count, as the log has them.", examples=[1200])
    ] = 0
    blocked_dead_bytes: Annotated[
        Amount,
        Meta(
            description="Bytes of deleted small files that the node cannot give back, because rewriting "
            "their packs needs more room than its disk has.",
            examples=[104_857_600],
        ),
    ] = 0
    blocked_wanted_bytes: Annotated[
        Amount,
        Meta(
            description="How much more room its disk must have before some of them can be given back.",
            examples=[67_108_864],
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
            description="root, intermediate, or a role and an id; then `for browsers`, if it is that one.",
            examples=["node n1"],
        ),
    ]
    expires_at: Annotated[Timestamp, Meta(description="When it ends.")]


class ReplicaState(Struct, frozen=True, kw_only=True):
    """How the replicas of blobs are. Numbers stop at 10,000."""

    short: Annotated[
        dict[str, Amount],
        Meta(description="Blobs by how many replicas they lack.", examples=[{"1": 12}]),
    ]
    lost: Annotated[
        Amount,
        Meta(description="Blobs of files of which no node has anything any more.", examples=[0]),
    ]
    damaged: Annotated[
        Amount,
        Meta(
            description="Blobs that no node holds whole, and that can be made whole from damaged copies.",
            examples=[0],
        ),
    ]
    incomplete: Annotated[
        Amount,
        Meta(description="Blobs of which some bytes are damaged on every node.", examples=[0]),
    ]
    lost_bytes: Annotated[
        Annotated[int, Meta(ge=0)], Meta(description="So many bytes of those in `incomplete`.", examples=[0])
    ]
    absent: Annotated[
        Amount,
        Meta(description="Blobs of those in `short` that only nodes hold which are down.", examples=[0]),
    ]
    last: Annotated[
        Amount,
        Meta(description="Blobs of those in `short` that one node holds which is not down.", examples=[0]),
    ]
    unreferenced: Annotated[
        Amount, Meta(description="Blobs that no file refers to: the job gc removes them.", examples=[3])
    ]
    doomed: Annotated[
        Amount, Meta(description="Replicas that their nodes have still to delete.", examples=[0])
    ]


class Finding(Struct, frozen=True, kw_only=True):
    """One of the reasons why a cluster is not healthy."""

    problem: Annotated[str, Meta(description="A sentence.", examples=["The node n3 is down."])]
    runbook: Annotated[
        Text,
        Meta(
            description="The section of docs/runbook.md that says what to do; its anchor is the same in "
            "small letters.",
            examples=["FilestoreNodeDown"],
        ),
    ]
    since: Annotated[MaybeTimestamp, Meta(description='Since when, at least; "" when it is not known.')] = ""


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """How the cluster is."""

    cluster: Annotated[MemberId, Meta(description="The cluster's name.", examples=["lab"])]
    leader: Annotated[MaybeMemberId, Meta(description='The coordinator that leads, or "".', examples=["c1"])]
    rules: Annotated[
        Amount,
        Meta(
            description="The rules of the state machine that are in force. They are raised once every member"
            " knows newer ones; from then on older versions are refused. 0 from older versions.",
            examples=[6],
        ),
    ]
    healthy: Annotated[
        bool,
        Meta(
            description="A leader is known, every coordinator answers, has room and the right state, and "
            "every node is healthy and its disk takes bytes.",
            examples=[True],
        ),
    ]
    health: Annotated[
        str,
        Meta(
            description="healthy; degraded when something needs attention; unavailable when changes or "
            "uploads are refused.",
            examples=["healthy"],
            extra_json_schema={"enum": ["healthy", "degraded", "unavailable"]},
        ),
    ]
    problems: Annotated[
        list[str],
        Meta(description="Why it is not healthy, a sentence each.", examples=[["The node n3 is down."]]),
    ]
    findings: Annotated[
        list[Finding], Meta(description="The same, with since when and with what to do about it.")
    ]
    coordinators: Annotated[list[CoordinatorState], Meta(description="The coordinators.")]
    nodes: Annotated[list[NodeState], Meta(description="The nodes.")]
    files: Annotated[Amount, Meta(description="Files with a record.", examples=[1200])]
    blobs: Annotated[Amount, Meta(description="Different contents that are stored.", examples=[1100])]
    blob_bytes: Annotated[
        Amount, Meta(description="Their bytes, each counted once.", examples=[84_000_000_000])
    ]
    replicas: Annotated[ReplicaState, Meta(description="Who lacks copies.")]
    runs: Annotated[list[JobRunBody], Meta(description="Runs of jobs that have not ended.")]
    certificates: Annotated[list[EndingCertificate], Meta(description="Certificates that end soon.")]

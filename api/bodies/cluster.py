"""Bodies below `/api/v1/cluster`: joining, its authority, nodes, join tokens and damaged content.

Tested by tests/api/test_nodes.py.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Amount,
    BlobSha256,
    Count,
    CreatedAt,
    Deleted,
    Filename,
    IpAddress,
    MaybeMemberId,
    MemberId,
    NextCursor,
    Pem,
    Port,
    Request,
    Text,
    Timestamp,
    UserId,
    Uuid,
)
from runtime.bounds import PEM_CHARS_MAX, WRAPPED_BYTES_MAX

TokenId = Annotated[
    str,
    Meta(
        description="The id of a join token. It is not secret.",
        examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
        extra_json_schema={"pattern": "^[a-z0-9-]{1,64}$"},
    ),
]
OnlyNode = Annotated[
    MaybeMemberId, Meta(description=('The only node that may use the token, or "" for any node.'))
]
UsesMax = Annotated[
    int, Meta(ge=1, le=1000, description="How many nodes may join with the token.", examples=[1])
]
NodeId = Annotated[MemberId, Meta(description="The id of a node.")]
ApiPort = Annotated[Port, Meta(description="The port for clients.")]
PeerPort = Annotated[Port, Meta(description="The port for other members.", examples=[7442])]
Zone = Annotated[
    Text,
    Meta(
        description=('Nodes in one zone are expected to fail together, for example a rack. "" for none.'),
        examples=["rack-1"],
    ),
]
Weight = Annotated[
    Amount, Meta(description="Relative share of new files compared with other nodes.", examples=[1])
]
NodeUrl = Annotated[
    Text,
    Meta(
        description='The address for clients, or "" if this member does not know it.',
        examples=["https://10.0.0.1:7443"],
    ),
]


class JoinBody(Request, frozen=True, kw_only=True):
    """A node that wants to join."""

    api_port: Annotated[int, Meta(description="The port for clients.", examples=[7443])]
    csr: Annotated[
        str,
        Meta(
            description=(
                "One PEM certificate signing request: P-256, P-384 or RSA of 2048 to 4096 "
                "bits. Only its public key is used. A common name, if present, must be the id. "
                "It may not ask for the rights of an authority."
            ),
            examples=["-----BEGIN CERTIFICATE REQUEST-----\n(base64)\n-----END CERTIFICATE REQUEST-----\n"],
        ),
    ]
    id: NodeId
    ip_address: IpAddress


class JoinCoordinatorBody(Request, frozen=True, kw_only=True):
    """A machine that is to become a coordinator."""

    id: Annotated[MemberId, Meta(description="The id of the new coordinator.", examples=["c2"])]
    address: IpAddress
    peer_port: Annotated[int, Meta(description="The port for other members.", examples=[7442])]
    api_port: Annotated[int, Meta(description="The port for clients.", examples=[7441])]
    attempt: Annotated[
        str,
        Meta(
            min_length=43,
            max_length=43,
            description=(
                "A random value that the joining machine keeps. With it, the machine can "
                "repeat an interrupted join for ten minutes."
            ),
            examples=["0" * 43],
        ),
    ]
    running: Annotated[
        bool,
        Meta(description="Set once the new coordinator runs with what it received: add it to the group."),
    ] = False


class JoinedCoordinator(Struct, frozen=True, kw_only=True):
    """The secret bundle that makes a machine a coordinator; empty once the coordinator runs."""

    bundle: Annotated[
        bytes,
        Meta(description="The bundle, as written by `filestore coordinator bundle`.", examples=["c2VjcmV0"]),
    ]


class CreateJoinTokenBody(Request, frozen=True, kw_only=True):
    """Without `node_id`, the token admits any id."""

    ttl_seconds: Annotated[
        int, Meta(ge=60, le=86_400, description="How long the token is valid.", examples=[1800])
    ] = 1800
    node_id: OnlyNode = ""
    max_uses: UsesMax = 1
    token_id: Annotated[
        str,
        Meta(
            description=(
                "The id of a token that `filestore setup` created on another machine. It "
                "begins with `setup-`."
            ),
            examples=["setup-1764230400-00112233445566778899aabbccddeeff"],
        ),
    ] = ""
    secret_sha256: Annotated[
        str,
        Meta(
            description=(
                "For a token from `filestore setup`: the SHA-256 of its secret, in hex. The "
                "response then contains no token."
            ),
            examples=["0" * 64],
        ),
    ] = ""


class JoinResult(Struct, frozen=True, kw_only=True):
    """PEM: the root bundle, and the node's leaf with its intermediate."""

    ca_cert: Annotated[
        Pem, Meta(description="The root certificate that every member of the cluster is verified with.")
    ]
    node_cert: Annotated[
        Pem, Meta(description="The node's certificate, followed by the intermediate certificate.")
    ]


class CoordinatorAddress(Struct, frozen=True, kw_only=True):
    """The address of a coordinator."""

    coordinator_id: Annotated[MemberId, Meta(description="The coordinator.", examples=["c1"])]
    address: IpAddress
    peer_port: PeerPort
    api_port: Annotated[ApiPort, Meta(examples=[7441])]


class ClusterAuthority(Struct, frozen=True, kw_only=True):
    """The root certificate, which a joiner compares with the digest in its token."""

    ca_cert: Annotated[
        Pem, Meta(description="The root certificate that every member of the cluster is verified with.")
    ]
    cluster: Annotated[MemberId, Meta(description="The cluster's name.", examples=["lab"])]
    coordinators: Annotated[
        list[CoordinatorAddress], Meta(description="URLs of the coordinators that accept joins.")
    ]


class IntermediateBody(Request, frozen=True, kw_only=True):
    """A new intermediate certificate, as created by `filestore coordinator renew-intermediate`."""

    certificate: Annotated[
        Pem, Meta(description="A certificate signed with the cluster's root key.", max_length=PEM_CHARS_MAX)
    ]
    wrapped_key: Annotated[
        bytes,
        Meta(
            description="Its private key, encrypted with the cluster key.",
            max_length=WRAPPED_BYTES_MAX,
            examples=["AXNlYWxlZA=="],
        ),
    ]


class Intermediate(Struct, frozen=True, kw_only=True):
    """It signs from now on."""

    expires_at: Annotated[Timestamp, Meta(description="When the token expires.")]


class NodeBody(Struct, frozen=True, kw_only=True):
    """A node that has joined."""

    id: NodeId
    url: NodeUrl
    address: IpAddress
    api_port: ApiPort
    peer_port: Annotated[
        Amount,
        Meta(description="The port for other members, or 0 until the node has run once.", examples=[7444]),
    ]
    zone: Zone
    weight: Weight
    joined_at: Annotated[Timestamp, Meta(description="When the node joined.")]
    draining: Annotated[bool, Meta(description="Whether new files are kept away from the node.")] = False


class NodeList(Struct, frozen=True, kw_only=True):
    """A page of nodes, those that joined first before others."""

    count: Count
    nodes: Annotated[list[NodeBody], Meta(description="The nodes.")]
    next_cursor: NextCursor | UnsetType = UNSET


class JoinTokenBody(Struct, frozen=True, kw_only=True):
    """A join token without its secret."""

    token_id: TokenId
    node_id: OnlyNode
    max_uses: UsesMax
    uses: Annotated[Amount, Meta(description="How many nodes have joined with the token.", examples=[0])]
    created_by: Annotated[UserId, Meta(description="The user who created the token.", examples=["admin"])]
    created_at: CreatedAt
    expires_at: Annotated[Timestamp, Meta(description="When the token expires.")]


class JoinTokenList(Struct, frozen=True, kw_only=True):
    """A page of join tokens, oldest first."""

    count: Count
    join_tokens: Annotated[list[JoinTokenBody], Meta(description="The join tokens.")]
    next_cursor: NextCursor | UnsetType = UNSET


class MintedJoinToken(Struct, frozen=True, kw_only=True):
    """A join token, shown once."""

    token_id: TokenId
    token: Annotated[
        str,
        Meta(
            description=(
                "The whole token, which includes the fingerprint of the cluster's root certificate."
            ),
            examples=["FST1.019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f.(secret).(sha256 of the root)"],
        ),
    ]
    expires_at: Annotated[Timestamp, Meta(description="When the token expires.")]
    node_id: OnlyNode
    max_uses: UsesMax


class DeletedJoinToken(Struct, frozen=True, kw_only=True):
    """The revoked token. No node can join with it any more."""

    deleted: Deleted
    token_id: TokenId


class MoveNodeBody(Request, frozen=True, kw_only=True):
    """The new address of a node."""

    address: IpAddress


class RevokedNode(Struct, frozen=True, kw_only=True):
    """The certificates of the node are revoked; what it held, and what only it held."""

    revoked: Annotated[bool, Meta(description="Always true.")]
    id: NodeId
    replicas: Annotated[
        Amount,
        Meta(
            description="Replicas on the node, counted up to 10000. Repair creates others.", examples=[1200]
        ),
    ]
    uploads: Annotated[
        Amount, Meta(description="Unfinished uploads on the node, counted up to 10000.", examples=[0])
    ]
    only_there: Annotated[
        Amount,
        Meta(
            description=(
                "Blobs that no other live node has, counted up to 10000. To keep them, bring "
                "the node's disk back."
            ),
            examples=[0],
        ),
    ]
    uploads_only_there: Annotated[
        list[Text],
        Meta(
            description="The first unfinished uploads whose bytes may be on no other live node.",
            examples=[["019a37c4-2e1b-7c33-9c62-6d2f0f6f3b11 (1048576 bytes)"]],
        ),
    ]


class RemovedNode(Struct, frozen=True, kw_only=True):
    """The node is no member any more; its certificates are revoked."""

    deleted: Deleted
    id: NodeId
    replicas: Annotated[
        Amount,
        Meta(description="Replicas that were on a node removed by force, counted up to 10000.", examples=[0]),
    ]
    uploads: Annotated[
        Amount,
        Meta(
            description="Unfinished uploads that were on a node removed by force, counted up to 10000.",
            examples=[0],
        ),
    ] = 0


class DamagedRange(Struct, frozen=True, kw_only=True):
    """Bytes of a content, as in a Range header: both ends belong to it."""

    first: Annotated[Amount, Meta(description="The first byte.", examples=[4194304])]
    last: Annotated[Amount, Meta(description="The last byte.", examples=[8388607])]


class DamagedFile(Struct, frozen=True, kw_only=True):
    """A file with this content."""

    file_uuid: Annotated[Uuid, Meta(description="The file.")]
    filename: Filename


class DamagedContent(Struct, frozen=True, kw_only=True):
    """Content that no node holds whole."""

    sha256: BlobSha256
    size_bytes: Annotated[Amount, Meta(description="Size of the whole content.", examples=[20971520])]
    lost_bytes: Annotated[
        Amount,
        Meta(
            description=(
                "Number of bytes that are damaged on every node. 0 means that the content can "
                "be restored completely."
            ),
            examples=[4194304],
        ),
    ]
    lost_ranges: Annotated[
        list[DamagedRange], Meta(description="The damaged ranges. All other ranges can be read.")
    ]
    nodes: Annotated[list[MemberId], Meta(description="Nodes that keep a damaged copy.", examples=[["n1"]])]
    files: Annotated[list[DamagedFile], Meta(description="Up to ten files with this content.")]


class DamagedList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of damaged content, with content whose bytes are lost first."""

    count: Count
    contents: Annotated[list[DamagedContent], Meta(description="The contents.")]
    next_cursor: NextCursor | UnsetType = UNSET

"""Commands about the cluster itself: its beginning, sessions, join tokens, nodes, coordinators, digests.

Tested by tests/unit/coordinator/machine/test_instances.py.
"""

from typing import Annotated, Literal

from msgspec import Meta

from metadata.model.records import Caller, CertificateRecord, CoordinatorRecord
from metadata.model.rules import COORDINATORS_JOIN, MEMBERS_ARE_NAMED, RESTORES_ARE_KNOWN
from metadata.protocol.commands.root import ITSELF, NODES, Command
from runtime.bounds import Count, Names, Pem, Text, WrappedKey

COORDINATORS_LISTED_MAX = 64  # voters and learners; far beyond what Raft admits
HASH_ROWS_MAX = 100_000  # in one slice: a second of every member's time
SESSIONS_MAX = 4096  # client processes with duplicate suppression; the longest unused goes first
SESSION_NUMBER_MIN = 2**48  # of random numbers: no log gets this many entries


class Bootstrap(Command, frozen=True, kw_only=True, tag="bootstrap"):
    """The first entry of every log: the cluster as `filestore coordinator init` made it."""

    cluster: str
    root_pem: str
    members: list[CoordinatorRecord]
    replicas: int
    write_quorum: int
    development: bool
    intermediate_pem: str
    intermediate_wrapped: bytes
    user_token_kid: str
    user_token_jwk: dict[str, str]
    user_token_wrapped: bytes
    admin_user_id: str
    rules: Count = 1  # see RaiseRules


class OpenSession(Command, frozen=True, kw_only=True, tag="open_session"):
    """A client process asks for duplicate suppression; replies with the number of its session.

    The process draws `number`, at least SESSION_NUMBER_MIN, so that no other can guess it: a process that
    knows the number can read the replies, and make its own changes count for the session. A lower number is
    replaced by the log index.
    """

    proposed_by = NODES
    nonce: Text
    number: Count = 0


class AddIntermediate(Command, frozen=True, kw_only=True, tag="add_intermediate"):
    """The certificate, and its key wrapped under the cluster key, that sign leaves from now on. Admin only.

    What it signs was found to lead to the root before it was proposed. Replies with None.
    """

    proposed_by = NODES
    caller: Caller
    pem: Pem
    wrapped: WrappedKey


class AddTokenKey(Command, frozen=True, kw_only=True, tag="add_token_key"):
    """The key that signs user tokens from now on; those before it end `grace_ms` later. Admin only.

    Made by the leader that proposes it. A conflict while KEYS_MAX are valid. Replies with a TokenKeyRecord.
    """

    caller: Caller
    kid: Text
    jwk: dict[str, Text]
    wrapped: WrappedKey
    grace_ms: Count


class CreateJoinToken(Command, frozen=True, kw_only=True, tag="create_join_token"):
    """Admin only. `node_id` "" admits any id. Lives `ttl_seconds` from the leader's time."""

    proposed_by = NODES
    caller: Caller
    token_id: Text
    secret_sha256: Text
    node_id: Text
    uses_max: Count
    ttl_seconds: Count


class DeleteJoinToken(Command, frozen=True, kw_only=True, tag="delete_join_token"):
    """Admin only."""

    proposed_by = NODES
    caller: Caller
    token_id: Text


class JoinNode(Command, frozen=True, kw_only=True, tag="join_node"):
    """Check the token, consume one use, register the node and its certificate: together or not at all.

    The same token, id and key again within ten minutes replies with the certificate of the first time. A
    taken id is a conflict unless `proved_serial` names a live certificate of that node, whose possession
    the caller has proved.
    """

    token_id: Text
    secret_sha256: Text
    node_id: Text
    address: Text
    api_port: Count
    certificate: CertificateRecord
    proved_serial: Text = ""


class AdmitCoordinator(Command, frozen=True, kw_only=True, tag="admit_coordinator"):
    """Check the token and consume one use of it, for a machine that becomes a coordinator by it.

    The same token, id and attempt again within ten minutes changes nothing. It is in no group by that, and
    what a coordinator has is not in the log: who proposes this hands it over.
    """

    since = COORDINATORS_JOIN
    token_id: Text
    secret_sha256: Text
    coordinator_id: Text
    attempt_sha256: Text


class RenewCertificate(Command, frozen=True, kw_only=True, tag="renew_certificate"):
    """A node that holds the live certificate `proved_serial` gets a new one; the old one expires."""

    node_id: Text
    proved_serial: Text
    certificate: CertificateRecord


class AnnounceNode(Command, frozen=True, kw_only=True, tag="announce_node"):
    """A node reports its peer address, and its current directory and start.

    The latter is `instance`. Only proposed for the node that its certificate names.

    It is a conflict for an earlier start than the last one, and for another directory. `succeeds`: the
    process that has ended, according to the same directory on the same machine.
    """

    proposed_by = ITSELF
    node_id: Text
    peer_port: Count
    zone: Text
    weight: Count
    instance: Text = ""
    succeeds: Text = ""


class MoveNode(Command, frozen=True, kw_only=True, tag="move_node"):
    """A node is reached at another address from now on, as `check_address` gave it. Admin only.

    Its next certificate is for that address. Replies with the NodeRecord.
    """

    since = MEMBERS_ARE_NAMED
    proposed_by = NODES
    caller: Caller
    node_id: Text
    address: Text


class DrainNode(Command, frozen=True, kw_only=True, tag="drain_node"):
    """Take a node out of placement, or (`draining` false) back in. Admin only.

    A conflict where it keeps damaged copies with bytes that no other node has, unless `force` says that they
    may go with it.

    Replies with the NodeRecord.
    """

    proposed_by = NODES
    caller: Caller
    node_id: Text
    draining: bool
    force: bool = False


class MarkNode(Command, frozen=True, kw_only=True, tag="mark_node"):
    """The leader records the state of a node, for every coordinator and the next leader.

    The leader only. `healthy` is allowed only after `returning`, and a conflict otherwise, as its replicas
    were compared with the log then. Replies with the NodeRecord.
    """

    node_id: Text
    state: Literal["healthy", "down", "returning"]


class RemoveNode(Command, frozen=True, kw_only=True, tag="remove_node"):
    """A node leaves for good: its row goes, its certificates are revoked. Admin only.

    A conflict unless it is draining and empty: no replica, and no upload whose bytes come to it. With
    `force` unless it is recorded as down: its replicas go in steps, see RecountReplicas; replies with a
    NodeRemoval then, else with None. In any case a conflict where it keeps damaged copies with bytes that no
    other node has, unless `give_up` says that these are lost.

    `is_gone`: with `force`, also one that is not recorded as down yet, since who asks knows better.
    """

    proposed_by = NODES
    caller: Caller
    node_id: Text
    force: bool = False
    give_up: bool = False
    is_gone: bool = False


class RevokeNode(Command, frozen=True, kw_only=True, tag="revoke_node"):
    """Revoke the certificates of a node in any state; its replicas do not count any more.

    Admin only. It stays in the list, to be removed, or to join again with a token for its name. Replies with
    a NodeRemoval that counts what it holds.
    """

    proposed_by = NODES
    caller: Caller
    node_id: Text


class ForgetInstance(Command, frozen=True, kw_only=True, tag="forget_instance"):
    """Accept the next process that announces itself as this node, with its certificate. Admin only.

    Its replicas count again after they were compared with the log. Replies with the NodeRecord.
    """

    proposed_by = NODES
    caller: Caller
    node_id: Text


class RecordCoordinators(Command, frozen=True, kw_only=True, tag="record_coordinators"):
    """The whole new list of voters and learners; a member that is not in it becomes a tombstone.

    Never rejected. It is the payload of a membership entry of Raft: the state must follow what the log has
    decided.
    """

    coordinators: Annotated[list[CoordinatorRecord], Meta(max_length=COORDINATORS_LISTED_MAX)]


class RecordRestore(Command, frozen=True, kw_only=True, tag="record_restore"):
    """The state is a snapshot's, and a new cluster begins with it, whose history bears this id.

    In no log: `filestore coordinator restore` applies it, and the log begins behind it. `intermediate_pem`
    and `intermediate_wrapped`: what signs leaves, if the bundle has a newer one than the snapshot.
    """

    since = RESTORES_ARE_KNOWN
    history: Text
    intermediate_pem: Pem = ""
    intermediate_wrapped: WrappedKey = b""


class AdmitCertificate(Command, frozen=True, kw_only=True, tag="admit_certificate"):
    """A node has proved that it holds this certificate, which a restore has forgotten.

    The leader only. Replies with None; unauthorized for a certificate that is revoked, too old or too new,
    or of a node that is unknown or revoked.
    """

    since = RESTORES_ARE_KNOWN
    node_id: Text
    certificate: CertificateRecord


class RaiseRules(Command, frozen=True, kw_only=True, tag="raise_rules"):
    """Apply what follows by these rules. Replies with those in force then.

    Only proposed by a leader whose coordinators all know them.
    """

    version: Count


class HashState(Command, frozen=True, kw_only=True, tag="hash_state"):
    """Hash the next slice of the state, at most `rows_max` rows of one table. Replies with a StateHash."""

    is_long = True
    rows_max: Annotated[int, Meta(ge=1, le=HASH_ROWS_MAX)] = 2000


class HashWhole(Command, frozen=True, kw_only=True, tag="hash_whole"):
    """Hash all of the state at this entry, concurrently with later entries. Replies with its log index."""


class ReportHash(Command, frozen=True, kw_only=True, tag="report_hash"):
    """A coordinator reports its digest at one place in the log to all others. Replies with a HashReport.

    It changes nothing, and is only proposed by the coordinator that it names. `digest` is "" if the
    coordinator knows that its state is wrong. `origin`: the source of the state, if it came as a snapshot
    that no other member confirmed; "" if it is its own. `agreed_at`: where in the log a majority had this
    digest of the same rows, which were not changed since; 0 if unknown. `touched`: the rows were changed
    since. `odd`: the coordinator whose state it knows to be wrong. `rebuilt_at_ms`: when it lost its state
    and got another one, 0 for never; earlier reports about its state are void then.
    """

    coordinator_id: Text
    log_index: Count
    digest: Text
    origin: Text = ""
    agreed_at: Count = 0
    touched: bool = False
    odd: Names = []
    rebuilt_at_ms: Count = 0

"""The version of the rules by which commands are applied, and the version that each meaning needs.

The meaning of commands may change from one version of this program to the next, but never while coordinators
run different versions: each applies the same log, and must reach the same state.

So the state contains the rules by which a command is applied. They are raised by an entry of the log, which
the leader proposes once every coordinator knows the newer ones (`coordinator.member.rules_upgrade`); until
then a newer program behaves like the older ones. To change what a command does, add a number here and apply
the new behaviour only from this number on. List a new command in SINCE: older programs cannot read it, so it
is not proposed before. Queries need no number: each coordinator answers on its own, and if one does not know
a query, another does (`metadata.rpc.client`). (etcd and CockroachDB have the same under the name of cluster
version.)
"""

from typing import Final

from msgspec import UNSET

from ca.errors import Unavailable
from metadata.protocol.commands import (
    AddIntermediate,
    AddTokenKey,
    AdmitCertificate,
    AdmitCoordinator,
    CollectOverQuota,
    Command,
    CreateFile,
    CreatePartial,
    CreatePublicToken,
    DeleteBucket,
    DeleteFile,
    ForgetInstance,
    GrantPermission,
    HashWhole,
    MoveNode,
    PlaceUpload,
    RecordRestore,
    ReportDamaged,
    ReportOrphans,
    RestartUpload,
    RevokeNode,
    UpdateBucket,
    UpdateFile,
)

FIRST: Final = 1
SIZES_WITHIN_QUOTA: Final = 2  # a size beyond the quota is refused when it is declared
PROVED_SERIALS_STAY: Final = 2  # an expired certificate stays while a renewal is proved with it
GENERATIONS_BY_CLOCK: Final = 4  # of users: none comes twice, also where a snapshot was restored
USED_TOKENS_END: Final = 4  # a join token that was used, and may be again, ends with what its maker had
SESSIONS_ARE_DRAWN: Final = 4  # a session has the number that its process has drawn
DAMAGED_COPIES_STAY: Final = 5  # the log remembers damaged copies, which are sources of what is sound in them
UPLOADS_ARE_GUARDED: Final = 5  # a node that unfinished uploads are placed on is not removed
QUOTAS_RESERVED: Final = 5  # uploads reserve of a quota, and content that waits for gc counts
WHOLE_DIGESTS: Final = 5  # all of the state is hashed before it is handed out
INSTANCES_KNOWN: Final = 5  # the log knows who speaks for a node, and nodes are revoked
KEYS_RETIRE: Final = 5  # another key signs user tokens, and the one before ends
LAST_PATCH_IS_KNOWN: Final = 5  # where the PATCH began that completed an upload
STATES_ARE_DISTINCT: Final = 5  # the time of a record's last change rises, and its retention can be changed
FILES_ARE_RENAMED: Final = 6  # a change may give a file another name and content type
LONG_SERVICE_TOKENS: Final = 6  # a token of a user with the role `service` may live for 400 days
MEMBERS_ARE_NAMED: Final = 6  # the address of a member may be the DNS name of its machine
UPLOADS_ARE_CONCATENATED: Final = 6  # there are partial uploads, and files are put together from them
COORDINATORS_JOIN: Final = 6  # a machine becomes a coordinator by a token
REVOKED_TOKENS_STAY_KNOWN: Final = 6  # so that a revoked token cannot be created again
NODES_TELL_RULES: Final = 6  # nodes say which rules they know, and are refused if these are in force no more
CONTENT_COMES_WITH_CREATION: Final = 6  # a file is created with content that nodes have stored already
SMALL_BLOBS_ARE_PACKED: Final = 6  # on the disks of nodes, where an older release would not find them
PARTS_END_WITH_THEIR_USER: Final = 6  # a user that is deleted or disabled leaves no partial uploads
# the expiry of a permission or a public link may be relative to the leader's time
ENDS_ARE_COUNTED: Final = 6
RESTORES_ARE_KNOWN: Final = 6  # what the members of a restored cluster know from before is admitted
BEFORE_TOLD: Final = 5  # coordinators that do not tell the rules in force with each heartbeat know these
RULES: Final = 6  # the newest that this program knows

SINCE: Final[dict[type[Command], int]] = {  # the rules that a command needs
    AddIntermediate: 3,
    ReportDamaged: DAMAGED_COPIES_STAY,
    PlaceUpload: UPLOADS_ARE_GUARDED,
    RestartUpload: UPLOADS_ARE_GUARDED,
    CollectOverQuota: QUOTAS_RESERVED,
    ReportOrphans: QUOTAS_RESERVED,
    HashWhole: WHOLE_DIGESTS,
    RevokeNode: INSTANCES_KNOWN,
    ForgetInstance: INSTANCES_KNOWN,
    AddTokenKey: KEYS_RETIRE,
    CreatePartial: UPLOADS_ARE_CONCATENATED,
    AdmitCoordinator: COORDINATORS_JOIN,
    MoveNode: MEMBERS_ARE_NAMED,
    RecordRestore: RESTORES_ARE_KNOWN,
    AdmitCertificate: RESTORES_ARE_KNOWN,
}
FIELDS_SINCE: Final[dict[tuple[type[Command], str], int]] = {  # a field of a command, if it is set
    (CreateFile, "parts"): UPLOADS_ARE_CONCATENATED,
    (CreateFile, "content"): CONTENT_COMES_WITH_CREATION,
    (UpdateFile, "filename"): FILES_ARE_RENAMED,
    (UpdateFile, "content_type"): FILES_ARE_RENAMED,
    (UpdateFile, "retention_hours"): STATES_ARE_DISTINCT,
    (UpdateFile, "unchanged_since_ms"): STATES_ARE_DISTINCT,
    (DeleteFile, "unchanged_since_ms"): STATES_ARE_DISTINCT,
    (UpdateBucket, "unchanged_since_ms"): STATES_ARE_DISTINCT,
    (DeleteBucket, "unchanged_since_ms"): STATES_ARE_DISTINCT,
    (GrantPermission, "ttl_seconds"): ENDS_ARE_COUNTED,
    (CreatePublicToken, "ttl_seconds"): ENDS_ARE_COUNTED,
}
_OF_LATER_FIELDS: Final = tuple(kind for kind, _ in FIELDS_SINCE)
# Digests of the state have these tables from there on, in this order: coordinators that know only older rules
# do not have them. A newer table is the last one here.
TABLES_SINCE: Final = {
    "damaged_copies": DAMAGED_COPIES_STAY,
    "damaged_blobs": DAMAGED_COPIES_STAY,
    "replica_totals": DAMAGED_COPIES_STAY,
    "concatenations": UPLOADS_ARE_CONCATENATED,
    "parts": UPLOADS_ARE_CONCATENATED,
    "restores": RESTORES_ARE_KNOWN,
}
# Do not add entries. After a downgrade, a coordinator hashes every column that it finds in a known table, and
# would differ from those that were never upgraded. New data needs a table of its own (see CONTRIBUTING.md).
COLUMNS_SINCE: Final = {
    ("uploads", "reserved_bytes"): QUOTAS_RESERVED,
    ("buckets", "reserved_bytes"): QUOTAS_RESERVED,
    ("buckets", "released_bytes"): QUOTAS_RESERVED,
    ("blobs", "released_by"): QUOTAS_RESERVED,
    ("nodes", "instance"): INSTANCES_KNOWN,
    ("nodes", "revoked"): INSTANCES_KNOWN,
    ("keys", "retires_at_ms"): KEYS_RETIRE,
    ("files", "patch_offset"): LAST_PATCH_IS_KNOWN,
}


class NotInForce(Unavailable):
    """The rules in force do not have this yet: it works once every member has been upgraded.

    To try again in a moment is of no use.
    """


def require(needed: int, known: int) -> None:
    """Raises NotInForce unless the rules in force, as far as they are known, are those that are needed."""
    if known < needed:
        raise NotInForce(
            "This change needs the current version on every member. Upgrade members that run an older "
            "version, start those that are down, and remove those that are gone."
        )


def needed(command: Command) -> int:
    """Return the oldest rules that support this command with all of its fields."""
    return max(SINCE.get(type(command), FIRST), needed_by_fields(command))


def needed_by_fields(command: Command) -> int:
    """The oldest rules that all fields of this command need which are set.

    Who knows the command and not such a field applies it without that field, and says that it is done.
    """
    oldest = FIRST
    if isinstance(command, _OF_LATER_FIELDS):
        for (kind, name), since in FIELDS_SINCE.items():
            if isinstance(command, kind) and getattr(command, name) is not UNSET:
                oldest = max(oldest, since)
    return oldest

"""The versions of the rules by which commands are applied. Shared by proposers and the state machine.

The meaning of commands may change from one version of this program to the next, but never while coordinators
run different versions: each applies the same log, and must reach the same state.

So the state contains the version of the rules by which commands are applied. It is raised by an entry of the
log, which the leader proposes once every coordinator knows the newer rules
(`coordinator.member.rules_upgrade`). Until then a newer program behaves like the older ones. A change to what
a command does adds a number here, and applies only from that version on. A new command has a `since`: older
programs cannot read it, so it is not proposed before. Queries need none: each coordinator answers for itself,
and if one does not know a query, another does (`metadata.rpc.client`). (etcd and CockroachDB have the same
under the name of cluster version.)
"""

from typing import Final

from ca.errors import Unavailable
from metadata.model.later_fields import LATER

UNKNOWN: Final = 0  # which rules are in force: before the first heartbeat of a process
FIRST: Final = 5  # those of release 0.1.0, the first: no state and no log of older rules is read
# until 0.3.0: FIRST becomes 6, and what asks for these is always so
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
FILES_HAVE_FOLDERS: Final = 6  # a file may be in a folder of its bucket
RESTORES_ARE_KNOWN: Final = 6  # what the members of a restored cluster know from before is admitted
GROUPS_ARE_MANAGED: Final = 6  # groups have a list, and providers of sign-in give some
PROVIDERS_SIGN_IN: Final = 6  # people sign in with identity providers
SESSIONS_ARE_RECORDED: Final = 6  # tokens that belong together are listed, and ended together
INVITATIONS_ARE_MADE: Final = 6  # a link gives a user its first token, once
FILES_GO_TO_TRASH: Final = 6  # a deleted file can be restored for some days
FILES_ARE_PROTECTED: Final = 6  # a protected file is not deleted before a date
SNAPSHOTS_HOLD_CONTENT: Final = 6  # content that a kept snapshot refers to stays on the disks
REPLICAS_TURN_COLD: Final = 6  # on the disks of nodes; buckets say which (docs/cold.md)
RULES: Final = 6  # the newest that this program knows

# Digests of the state include these tables from that version on, in this order: coordinators that know only
# older rules do not have them. A newer table is the last one here. No column is added to a table: a version
# that is put back hashes every column that it finds in a table that it knows, and so would differ from those
# that were never upgraded. New columns are in a table of their own (see CONTRIBUTING.md).
TABLES_SINCE: Final = {
    "concatenations": UPLOADS_ARE_CONCATENATED,
    "parts": UPLOADS_ARE_CONCATENATED,
    "restores": RESTORES_ARE_KNOWN,
    "file_paths": FILES_HAVE_FOLDERS,
    "groups": GROUPS_ARE_MANAGED,
    "group_members": GROUPS_ARE_MANAGED,
    "providers": PROVIDERS_SIGN_IN,
    "identities": PROVIDERS_SIGN_IN,
    "user_sessions": SESSIONS_ARE_RECORDED,
    "invitations": INVITATIONS_ARE_MADE,
    "trash": FILES_GO_TO_TRASH,
    "trash_totals": FILES_GO_TO_TRASH,
    "bucket_safety": FILES_GO_TO_TRASH,
    "purged_blobs": FILES_GO_TO_TRASH,
    "protected_files": FILES_ARE_PROTECTED,
    "kept_snapshots": SNAPSHOTS_HOLD_CONTENT,
    "held_blobs": SNAPSHOTS_HOLD_CONTENT,
    "bucket_storage": REPLICAS_TURN_COLD,
    **{each.table: each.since for each in LATER},
}


OLDER_MEMBERS: Final = (
    "This change needs the current version on every member. Upgrade members that run an older version, start "
    "those that are down, and remove those that are gone."
)
UPGRADE_S: Final = 60  # no member is upgraded sooner; the client gives up at once from this on


class NotInForce(Unavailable):
    """The rules in force do not have this yet: it works once every member has been upgraded.

    To try again in a moment is of no use, so `Retry-After` is longer than clients wait.
    """

    def __init__(self, details: str) -> None:
        super().__init__(details, retry_after_s=UPGRADE_S)


def require(needed: int, known: int) -> None:
    """Raises NotInForce unless the rules in force, as far as they are known, are those that are needed.

    Raises Unavailable while none are known: a process knows them some moments after its start.
    """
    if needed <= max(known, FIRST):
        return
    if known == UNKNOWN:
        raise Unavailable("This process has just started, and no coordinator has answered it yet.")
    raise NotInForce(OLDER_MEMBERS)

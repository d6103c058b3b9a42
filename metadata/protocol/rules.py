"""The rules by which commands are applied, and since which of them each meaning is in force.

What commands mean may change from one version of this program to the next, but never under coordinators that
run different ones: each applies the same log, and must come to the same state.

So the state contains the rules by which a command is applied. They are raised by an entry of the log, which
the leader proposes once every coordinator knows the newer ones (`coordinator.member.rules_upgrade`); until
then a newer program does as the older ones do. Whoever changes what a command does adds a number here and
does the new thing only from there on. A command that is added stands in SINCE: older programs cannot read it,
so that it is not proposed before. Queries need none: each coordinator answers for itself, and for one that
does not know a query another does (`metadata.rpc.client`). (etcd and CockroachDB have the same under the
name of cluster version.)
"""

from typing import Final

from msgspec import UNSET

from ca.errors import Unavailable
from metadata.protocol.commands import (
    AdmitCertificate,
    AdmitCoordinator,
    Command,
    CreateFile,
    CreatePartial,
    CreatePublicToken,
    GrantPermission,
    MoveNode,
    RecordRestore,
    UpdateFile,
)

FIRST: Final = 5  # those of release 0.1.0, the first: no state and no log of older rules is read
# until 0.3.0: FIRST becomes 6, and what asks for these is always so
FILES_ARE_RENAMED: Final = 6  # a change may give a file another name and content type
LONG_SERVICE_TOKENS: Final = 6  # a token of a user with the role `service` may live for 400 days
MEMBERS_ARE_NAMED: Final = 6  # the address of a member may be the DNS name of its machine
UPLOADS_ARE_CONCATENATED: Final = 6  # there are partial uploads, and files are put together from them
COORDINATORS_JOIN: Final = 6  # a machine becomes a coordinator by a token
REVOKED_TOKENS_STAY_KNOWN: Final = 6  # so that nobody makes one again that was revoked
NODES_TELL_RULES: Final = 6  # nodes say which rules they know, and are refused if these are in force no more
CONTENT_COMES_WITH_CREATION: Final = 6  # a file is created with content that nodes have stored already
SMALL_BLOBS_ARE_PACKED: Final = 6  # on the disks of nodes, where an older release would not find them
PARTS_END_WITH_THEIR_USER: Final = 6  # a user that is deleted or disabled leaves no partial uploads
ENDS_ARE_COUNTED: Final = 6  # a permission or a public link may end so many seconds from the leader's time
RESTORES_ARE_KNOWN: Final = 6  # what the members of a restored cluster know from before is admitted
RULES: Final = 6  # the newest that this program knows

SINCE: Final[dict[type[Command], int]] = {  # a command, and from which rules on
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
    (GrantPermission, "ttl_seconds"): ENDS_ARE_COUNTED,
    (CreatePublicToken, "ttl_seconds"): ENDS_ARE_COUNTED,
}
_OF_LATER_FIELDS: Final = tuple(kind for kind, _ in FIELDS_SINCE)
# Digests of the state have these tables from there on, in this order: coordinators that know only older rules
# do not have them. A newer table is the last one here. No column is added to a table: a version that is put
# back hashes every column that it finds in a table that it knows, and so would differ from those that were
# never upgraded. What is new has a table of its own (see CONTRIBUTING.md).
TABLES_SINCE: Final = {
    "concatenations": UPLOADS_ARE_CONCATENATED,
    "parts": UPLOADS_ARE_CONCATENATED,
    "restores": RESTORES_ARE_KNOWN,
}


class NotInForce(Unavailable):
    """The rules in force do not have this yet: it works once every member has been upgraded.

    To try again in a moment is of no use.
    """


def require(needed: int, known: int) -> None:
    """Raises NotInForce unless the rules in force, as far as they are known, are those that are needed."""
    if known < needed:
        raise NotInForce(
            "A member is not known to know this change, which is new: upgrade one that runs an older"
            " version, start one that is down, remove one that is gone."
        )


def needed(command: Command) -> int:
    """The oldest rules by which this command means what it says."""
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

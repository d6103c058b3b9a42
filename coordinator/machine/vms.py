"""VM images, as one kind of file, found by md5 too. Apart from `kinds`, which is the same for every kind."""

from coordinator.machine import kinds
from coordinator.machine.execution.access import Level, User, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition
from metadata.model.records import VM, UploadRecord, VmPage, VmRecord
from metadata.protocol.commands import CreateVm, UpdateVm
from metadata.protocol.queries import GetVm, ListVms

KIND = kinds.describe(VM, "vms", VmRecord, CreateVm, UpdateVm, ListVms, indexed=("md5",))


def create(change: Change, command: CreateVm, user: User | None = None) -> UploadRecord:
    """Create the file record, its image row and its upload in one change.

    `user`: whose it is; the caller by default.
    """
    return kinds.create(change, KIND, user or require_user(change.users, command.caller), command)


def update(change: Change, command: UpdateVm) -> VmRecord:
    """Change what the command names. Needs write."""
    user = require_user(change.users, command.caller)
    sequence, record = kinds.require(change, KIND, user, command.file_uuid, Level.WRITE)
    return kinds.store(change, KIND, sequence, record, command, kinds.named(KIND, command))


def get(question: Question, query: GetVm) -> VmRecord:
    """Return the record. Needs read."""
    return kinds.get(question, KIND, query.caller, query.file_uuid)


def list_page(question: Question, query: ListVms) -> VmPage:
    """Return one page, oldest first: what the caller owns, for admins all.

    The filters are applied after access control. There are few images of one md5, so the search uses their
    index.
    """
    if not query.md5:
        return VmPage(*kinds.list_page(question, KIND, query))
    same_content = Condition("k.md5 = ? AND k.md5 <> ''", (query.md5,))  # as in the partial index
    return VmPage(*kinds.list_page(question, KIND, query, candidates=(same_content,), owner_is_filter=True))

"""Project files, as one kind of file. Apart from `kinds`, which is the same for every kind."""

from coordinator.machine import kinds
from coordinator.machine.execution.access import Level, User, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition
from metadata.model.records import PROJECT_FILE, ProjectFilePage, ProjectFileRecord, UploadRecord
from metadata.protocol.commands import CreateProjectFile, UpdateProjectFile
from metadata.protocol.queries import GetProjectFile, ListProjectFiles

KIND = kinds.describe(
    PROJECT_FILE,
    "project_files",
    ProjectFileRecord,
    CreateProjectFile,
    UpdateProjectFile,
    ListProjectFiles,
    indexed=("project_id",),
)


def create(change: Change, command: CreateProjectFile, user: User | None = None) -> UploadRecord:
    """Create the file record, its project row and its upload in one change.

    `user`: whose it is; the caller by default.
    """
    return kinds.create(change, KIND, user or require_user(change.users, command.caller), command)


def update(change: Change, command: UpdateProjectFile) -> ProjectFileRecord:
    """Change what the command names. Needs write."""
    user = require_user(change.users, command.caller)
    sequence, record = kinds.require(change, KIND, user, command.file_uuid, Level.WRITE)
    return kinds.store(change, KIND, sequence, record, command, kinds.named(KIND, command))


def get(question: Question, query: GetProjectFile) -> ProjectFileRecord:
    """Return the record. Needs read."""
    return kinds.get(question, KIND, query.caller, query.file_uuid)


def list_page(question: Question, query: ListProjectFiles) -> ProjectFilePage:
    """Return one page, oldest first: what the caller owns, for admins all.

    The filters are applied after access control.
    """
    of_project = (Condition("k.project_id = ?", (query.project_id,)),) if query.project_id else ()
    return ProjectFilePage(*kinds.list_page(question, KIND, query, candidates=of_project))

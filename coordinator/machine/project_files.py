"""Project files, as one kind of file. Apart from `kinds`, which is the same for every kind."""

from coordinator.machine import kinds
from coordinator.machine.execution.access import Level, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition
from metadata.model.records import PROJECT_FILE, ProjectFilePage, ProjectFileRecord, UploadRecord
from metadata.protocol.commands import CreateProjectFile, UpdateProjectFile
from metadata.protocol.queries import GetProjectFile, ListProjectFiles

_KIND = kinds.describe(
    PROJECT_FILE,
    "project_files",
    ProjectFileRecord,
    CreateProjectFile,
    UpdateProjectFile,
    ListProjectFiles,
    indexed=("project_id",),
)


def create(change: Change, command: CreateProjectFile) -> UploadRecord:
    """Create the file record, its project row and its upload in one change."""
    return kinds.create(change, _KIND, require_user(change.users, command.caller), command)


def update(change: Change, command: UpdateProjectFile) -> ProjectFileRecord:
    """Change what the command names. Needs write."""
    user = require_user(change.users, command.caller)
    sequence, record = kinds.require(change, _KIND, user, command.file_uuid, Level.WRITE)
    return kinds.store(change, _KIND, sequence, record, command, kinds.named(_KIND, command))


def get(question: Question, query: GetProjectFile) -> ProjectFileRecord:
    """Return the record. Needs read."""
    return kinds.get(question, _KIND, query.caller, query.file_uuid)


def list_page(question: Question, query: ListProjectFiles) -> ProjectFilePage:
    """Return one page, oldest first: what the caller owns, for admins all.

    The filters are applied after access control.
    """
    of_project = (Condition("k.project_id = ?", (query.project_id,)),) if query.project_id else ()
    return ProjectFilePage(*kinds.list_page(question, _KIND, query, candidates=of_project))

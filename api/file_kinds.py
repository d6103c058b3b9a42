"""The definition of a kind of file: its Structs, the checks of their fields, the texts of its operations.

The Structs define the fields: those that a creation sets, those that a change may name, those in a record,
and those that narrow a list. A kind's own fields are the additional ones, compared with the base of the
Struct. They have the same names in bodies, commands, queries and records, so that `file_operations` need not
name any. A field missing in a body gets the default of the command. A new field is a line of
`metadata.model.later_fields`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from api.bodies.checks import Checks
from api.bodies.files import CreateFileBody, FileBody, ListFilter, UpdateFileBody
from ca.errors import FilestoreError
from metadata.model.records import BackupPage, FileRecord, ProjectFilePage, VmPage
from metadata.protocol.commands import (
    CreateBackup,
    CreateFile,
    CreateProjectFile,
    CreateVm,
    UpdateBackup,
    UpdateFile,
    UpdateProjectFile,
    UpdateVm,
)
from metadata.protocol.queries import (
    GetBackup,
    GetProjectFile,
    GetVm,
    ListBackups,
    ListFilesQuery,
    ListProjectFiles,
    ListVms,
)

CreateAnyFile = CreateProjectFile | CreateVm | CreateBackup
Act = Literal["create", "list", "get", "update", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """A kind of file: its Structs, and the texts of its operations.

    `checks` are the checks of the own fields of bodies beyond their types, `filter_checks` those of
    `list_filter`. `metadata` names the part of the record that belongs to this kind. `descriptions` replace
    the general description of an operation. `deleted_errors` are errors in addition to those of every kind.
    """

    name: str  # in the log, and of its operations
    path: str
    tag: str
    noun: str
    metadata: str
    create_body: type[CreateFileBody]
    update_body: type[UpdateFileBody]
    body: type[FileBody]
    list_body: type[Struct]
    list_filter: type[ListFilter] = ListFilter
    create_command: type[CreateAnyFile]
    update_command: type[UpdateProjectFile | UpdateVm | UpdateBackup]
    get_query: type[GetProjectFile | GetVm | GetBackup]
    list_query: type[ListProjectFiles | ListVms | ListBackups]
    record: type[FileRecord]
    page: type[ProjectFilePage | VmPage | BackupPage]
    checks: Checks = field(default_factory=dict)
    filter_checks: Checks = field(default_factory=dict)
    descriptions: Mapping[Act, str] = field(default_factory=dict)
    deleted: str = "file"
    deleted_errors: tuple[type[FilestoreError], ...] = ()

    def __post_init__(self) -> None:
        """Check that the Structs of the kind fit each other; otherwise no process starts."""
        assert _are_same(self.create_body, CreateFileBody, self.create_command, CreateFile)
        assert _are_same(self.update_body, UpdateFileBody, self.update_command, UpdateFile)
        assert _are_same(self.body, FileBody, self.record, FileRecord)
        assert _are_same(self.list_filter, ListFilter, self.list_query, ListFilesQuery)
        assert self.list_body.__struct_fields__ == ("count", self.names, "next_cursor")
        assert self.checks.keys() <= {*own_fields(self.create_body, CreateFileBody)}
        assert self.filter_checks.keys() <= {*own_fields(self.list_filter, ListFilter)}

    @property
    def names(self) -> str:
        """The name in the plural; it is also the field of a list that has them."""
        return f"{self.name}s"


@functools.cache
def own_fields(struct: type[Struct], base: type[Struct]) -> tuple[str, ...]:
    """Return the fields that a Struct has in addition to its base, in their order."""
    return tuple(name for name in struct.__struct_fields__ if name not in base.__struct_fields__)


def _are_same(
    struct: type[Struct], base: type[Struct], other: type[Struct], other_base: type[Struct]
) -> bool:
    return {*own_fields(struct, base)} == {*own_fields(other, other_base)}

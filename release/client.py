"""Writes what the Python client has from the servers, which it does not import: `python -m release.client`.

In three of its modules all between two marks is made: the records from the bodies of the API, the errors from
their catalogue, and the operations that do not await from those that do. Two modules are copies of those of a
node. `tests/test_release.py` compares.
"""

import ast
import inspect
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, UnsetType
from msgspec.structs import FieldInfo

from api.bodies.audit import AuditEntryBody
from api.bodies.backups import BackupBody
from api.bodies.buckets import BucketBody, BucketUploadBody, FolderBody
from api.bodies.cluster import JoinTokenBody, MintedJoinToken, NodeBody, RemovedNode, RevokedNode
from api.bodies.coordinators import CoordinatorBody
from api.bodies.files import FileBody, FileSummary, TicketBody
from api.bodies.jobs import JobBody, JobRunBody, TriggeredRun
from api.bodies.permissions import OwnPermissionBody, PermissionBody
from api.bodies.project_files import ManifestBody, ManifestImageBody, ProjectFileBody
from api.bodies.public_tokens import ListedPublicToken, OwnPublicToken, PublicTokenBody
from api.bodies.users import CallerBody, MintedToken, RotatedKey, UserBody
from api.bodies.vms import VmBody
from api.routes import METADATA
from ca.errors import CATALOGUE

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "client/filestore_client"
BEGIN: Final = "# ---- written by `python -m release.client` from here on ----\n"
END: Final = "# ---- to here ----\n"
COLUMNS: Final = 100
_CONSTANT: Final = frozenset({"deleted", "revoked", "token_type"})  # that tell a program nothing


@dataclass(frozen=True)
class Known:
    """A record of the client: `body` with its docstring. What `least` lacks is "" where it is not told."""

    name: str
    body: type[Struct]
    base: str = "Struct"
    least: type[Struct] | None = None
    kind: str = ""
    more: tuple[str, ...] = ()


RECORDS: Final = (
    Known("FileRecord", FileBody, "Record", more=("kind: ClassVar[Kind]",)),
    Known("Project", ProjectFileBody, "FileRecord", kind="project"),
    Known("Image", VmBody, "FileRecord", kind="image"),
    Known("Backup", BackupBody, "FileRecord", kind="backup"),
    Known("FileSummary", FileSummary, "Record"),
    Known("ManifestImage", ManifestImageBody),
    Known("Manifest", ManifestBody),
    Known("Bucket", BucketBody, "Record"),
    Known("BucketUpload", BucketUploadBody),
    Known("Folder", FolderBody),
    Known("Grant", OwnPermissionBody, least=PermissionBody),
    Known("Share", PublicTokenBody, "Secret"),
    Known("ListedShare", OwnPublicToken, least=ListedPublicToken),
    Known("User", CallerBody, least=UserBody),
    Known("MintedToken", MintedToken, "Secret"),
    Known("RotatedKey", RotatedKey),
    Known("JoinToken", JoinTokenBody),
    Known("MintedJoinToken", MintedJoinToken, "Secret"),
    Known("JobRun", JobRunBody),
    Known("Job", JobBody),
    Known("TriggeredRun", TriggeredRun),
    Known("Node", NodeBody),
    Known("RevokedNode", RevokedNode),
    Known("RemovedNode", RemovedNode),
    Known("Coordinator", CoordinatorBody),
    Known(
        "AuditEntry",
        AuditEntryBody,
        more=('member: str = ""  # Who has it on record; the client that asked knows.',),
    ),
    Known("Ticket", TicketBody, "Secret"),
)
LISTS: Final = {  # the lists of the client that accept filters, and the operation of each
    "project": "list_project_files",
    "image": "list_vms",
    "backup": "list_backups",
    "bucket": "list_bucket_files",
    "audit": "list_audit_entries",
}
_NAMES: Final = {record.body: record.name for record in RECORDS}
PARTS: Final = {  # modules with operations, and their classes; in brackets the object that they belong to
    "kind_files": ("KindFiles[Project]", "Images", "KindFiles[Backup]"),
    "files": ("Files",),
    "administration": (
        "Buckets",
        "Grants",
        "Shares",
        "Users",
        "JoinTokens",
        "Jobs",
        "Nodes",
        "Cluster",
        "Audit",
    ),
}


def records() -> str:
    """The classes of all records, and the filters of lists."""
    return "\n\n".join([*(_record(known) for known in RECORDS), _list_filters()])


def _list_filters() -> str:
    """The query parameters of each list that has filters, by the name of the client; pages are its own."""
    queries = {operation.name: operation.query for operation in METADATA}
    lines = [
        f'"{name}": ({", ".join(repr(each.name) for each in queries[list_name] if each.name != "cursor")}),'
        for name, list_name in LISTS.items()
    ]
    return "\n    ".join(["LIST_FILTERS: Mapping[str, Sequence[str]] = {", *lines]) + "\n}"


def _record(known: Known) -> str:
    inherited = next((each.body for each in RECORDS if each.name == known.base), None)
    names = {*(inherited.__struct_fields__ if inherited else ()), *_CONSTANT}
    fields = [field for field in msgspec.structs.fields(known.body) if field.name not in names]
    told = set(known.least.__struct_fields__ if known.least else known.body.__struct_fields__)
    lines = [line for field in fields for line in _field(field, is_told=field.name in told)]
    if known.kind:
        lines.append(f'kind: ClassVar[Kind] = "{known.kind}"')
    options = "frozen=True, kw_only=True" + ", omit_defaults=True" * (
        known.least in (PermissionBody, ListedPublicToken)
    )
    doc = _docstring(known.body)
    return f"class {known.name}({known.base}, {options}):\n" + textwrap.indent(
        "\n".join([doc, "", *lines, *known.more]) + "\n", "    "
    )


def _field(field: FieldInfo, *, is_told: bool) -> Iterable[str]:
    """The field, and in a comment what it is. A server of an older version may leave it out."""
    (kind,) = (each for each in _options(field.type) if each not in (UnsetType, types.NoneType))
    line = f"{field.name}: {_text(kind)}"
    if not (is_told and field.required):
        is_plain = isinstance(field.default, str | int)
        default = repr(field.default) if is_plain else '""' if kind is str else "None"
        line += f"{' | None' * (default == 'None')} = {default}"
    described = msgspec.json.schema(field.type).get("description", "")
    if len(line) + len(described) < COLUMNS:
        yield f"{line}  # {described}"
    else:
        yield from (*textwrap.wrap(f"# {described}", width=COLUMNS, subsequent_indent="# "), line)


def _options(kind: Any) -> Iterable[Any]:
    """The types that a field may have, without what is said of them."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _options(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return [option for each in typing.get_args(kind) for option in _options(each)]
    if origin is typing.Literal:
        return [str]
    return [kind]


def _text(kind: Any) -> str:
    if typing.get_origin(kind) in (list, dict):
        inner = ", ".join(_text(next(iter(_options(each)))) for each in typing.get_args(kind))
        return f"{typing.get_origin(kind).__name__}[{inner}]"
    return _NAMES.get(kind) or kind.__name__


def error_classes() -> str:
    """A class for each code of the API that the client has nothing to add to."""
    own = (PACKAGE / "base/errors.py").read_text("utf-8").partition(BEGIN)[0]
    return "\n\n".join(
        f"class {kind.__name__}(FilestoreError):\n"
        + textwrap.indent(f'{_docstring(kind)}\n\ncode = "{kind.code}"\nstatus = {kind.status}\n', "    ")
        for kind in CATALOGUE
        if f"class {kind.__name__}(" not in own
    )


def blocking_parts() -> str:
    """A class for each part of the client, with its operations for callers that do not await."""
    made = []
    for module, names in PARTS.items():
        tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
        classes = {found.name: found for found in tree.body if isinstance(found, ast.ClassDef)}
        made += [_part(name, module, classes) for name in names]
    return "\n\n".join(made)


def _part(name: str, module: str, classes: Mapping[str, ast.ClassDef]) -> str:
    kind, _, of = name.rstrip("]").partition("[")
    inner = f"{module}.{name}" if module == "administration" else name
    base = "OpeningFiles" if name == "Files" else f"Blocking[{inner}]"
    lines = [f'"""{ast.get_docstring(classes[kind])}"""', ""]
    inherited = classes["KindFiles"].body if name == "Images" else []
    for found in (*inherited, *classes[kind].body):
        if not isinstance(found, ast.AsyncFunctionDef | ast.FunctionDef):
            continue
        if found.name[0] != "_" and found.name != "open":  # which is written by hand
            lists = found.returns is not None and ast.unparse(found.returns).startswith("AsyncIterator")
            how = "listing" if lists else "blocking"
            lines.append(f"{found.name} = {how}({inner}.{found.name})")
    title = f"{of}s" if of else name
    return f"class Blocking{title}({base}):\n" + textwrap.indent("\n".join(lines) + "\n", "    ")


def _docstring(kind: type) -> str:
    return f'"""{inspect.cleandoc(kind.__doc__ or "")}"""'


MADE: Final = {"base/records.py": records, "base/errors.py": error_classes, "blocking.py": blocking_parts}
COPIED: Final = {"base/node_choice.py": "node/peer/source_choice.py", "base/spans.py": "node/base/spans.py"}


def current(name: str) -> str:
    """Return the source of a module of the client, as ruff formats it."""
    if name in COPIED:
        source = (ROOT / COPIED[name]).read_text("utf-8")
        return f"# A copy of {COPIED[name]}, written by `python -m release.client`.\n{source}"
    before, rest = (PACKAGE / name).read_text("utf-8").split(BEGIN)
    made = f"{before}{BEGIN}\n\n{MADE[name]()}\n\n{END}{rest.partition(END)[2]}"
    command = (
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--quiet",
        "--stdin-filename",
        str(PACKAGE / name),
        "-",
    )
    return subprocess.run(command, input=made, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    for each in (*MADE, *COPIED):
        (PACKAGE / each).write_text(current(each), "utf-8")

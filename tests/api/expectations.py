"""What tests of the interface expect: the shapes that users were promised, field by field, and refusals.

What users were promised is in `promises`; the shapes of what the service offers beyond that are here.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ca.errors import CATALOGUE
from tests.api import promises
from tests.api.promises import (
    BACKUP_METADATA,
    INITIALISATION,
    PROJECT_METADATA,
    RECORD,
    RUN,
    SUMMARY,
    VM_METADATA,
    Fields,
)
from tests.cluster.harness import Answer, Cluster

NOBODY = "0192f0c1-2345-7abc-8def-0123456789ab"  # an id that nothing has
DEFAULT_BUCKET = "00000000-0000-0000-0000-000000000000"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PAST, FUTURE = "2001-02-03T04:05:06Z", "2096-02-03T04:05:06+01:00"

_TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}


def _shape(fields: Fields) -> dict[str, type]:
    """The same fields by the types that Python reads them as."""
    return {name: _TYPES[kind] for name, kind in fields.items()}


LATER: Fields = {
    "expires_at": "string",
    "path": "string",
    "protected_until": "string",
}  # not in the interface; `retention_period` where set
FILE = _shape(RECORD | LATER)
PROJECT_FILE = _shape(RECORD | LATER | PROJECT_METADATA | {"message": "string", "tag": "string"})
BACKUP = _shape(RECORD | LATER | BACKUP_METADATA)
VM = _shape(RECORD | LATER | VM_METADATA)
VM_EXTENDED = VM | {"md5": str}
PERMISSION = _shape(promises.PERMISSION)
FILE_SUMMARY = _shape(SUMMARY | LATER | {"kind": "string", "owner_id": "string"})
OWN_PERMISSION = PERMISSION | dict.fromkeys(("target", "bucket_id", "file_uuid", "name", "kind"), str)
UPLOAD = _shape(INITIALISATION)
PUBLIC_TOKEN = _shape(promises.PUBLIC_TOKEN)
LISTED_PUBLIC_TOKEN = {
    "id": str,
    "file_uuid": str,
    "bucket_uuid": str,
    "created_by": str,
    "created_at": str,
    "expires_at": str,
    "status": str,
}
OWN_PUBLIC_TOKEN = LISTED_PUBLIC_TOKEN | {"filename": str, "kind": str}
BUCKET = {
    "bucket_id": str,
    "name": str,
    "owner_id": str,
    "quota_bytes": int,
    "used_bytes": int,
    "reserved_bytes": int,
    "file_count": int,
    "storage": str,
    "protect_days": int,
    "trash_files": int,
    "trash_bytes": int,
    "created_at": str,
    "updated_at": str,
}
USER = {
    "user_id": str,
    "roles": list,
    "groups": list,
    "disabled": bool,
    "created_at": str,
    "updated_at": str,
}
JOB_RUN = _shape(RUN | {"result": "object"})
TIMES_THAT_MAY_BE_EMPTY = {"expires_at", "completed_at"}

# What creation needs, by the path of the kind.
KINDS: dict[str, dict[str, Any]] = {
    "/project-files": {"filename": "lab.gns3project", "project_id": "lab"},
    "/vms": {"filename": "disk.qcow2", "virt_type": "qemu", "format": "qcow2"},
    "/backups": {"filename": "nightly.tar", "backup_type": "full"},
}


@dataclass(frozen=True)
class Person:
    """A user with a token."""

    id: str
    token: str


def person(cluster: Cluster, name: str = "person", **fields: Any) -> Person:
    """A new user of its own."""
    user_id = f"{name}-{uuid.uuid4().hex[:12]}"
    return Person(user_id, cluster.user_token(user_id, **fields))


def unique(name: str) -> str:
    """A name that no other test takes."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


def check_shape(value: Any, shape: Mapping[str, type]) -> None:
    """Exactly these fields, each of its type, in any order; times are written as promised."""
    assert set(value) == set(shape)
    for name, kind in shape.items():
        assert type(value[name]) is kind, (name, value[name])
        if name.endswith("_at") and (value[name] or name not in TIMES_THAT_MAY_BE_EMPTY):
            assert TIME.fullmatch(value[name]), (name, value[name])


def check_refused(answer: Answer, code: str, field: str = "") -> None:
    """The error body with this code, its status and title; `field` is what the details begin with."""
    kind = next(kind for kind in CATALOGUE if kind.code == code)
    assert answer.status == kind.status, answer.body
    check_shape(answer.json, {"code": str, "error": str, "details": str})
    assert (answer.json["code"], answer.json["error"]) == (code, kind.title)
    if field:
        assert answer.json["details"].startswith(f"{field}: "), answer.json["details"]


def create(cluster: Cluster, kind: str, token: str = "", **fields: Any) -> Any:
    """A new file of the kind with this path; the upload initialisation result."""
    answer = cluster.post(kind, KINDS[kind] | fields, token=token)
    assert answer.status == 201, answer.body
    return answer.json


def store(cluster: Cluster, kind: str, content: bytes, token: str = "", **fields: Any) -> str:
    """The same with its content; the file_uuid."""
    made = create(cluster, kind, token, **fields)
    answer = cluster.request("PUT", made["upload_url"], content=content, token=token)
    assert answer.status == 200, answer.body
    return str(made["file_uuid"])


def grant(
    cluster: Cluster, place: str, permission: str, principal_id: str, *, kind: str = "user", **fields: Any
) -> str:
    """A permission on `/files/ID` or `/buckets/ID`, given by the admin (or `token`); its id."""
    token = fields.pop("token", "")
    body = {"permission": permission, "principal_type": kind, "principal_id": principal_id, **fields}
    answer = cluster.post(f"{place}/permissions", body, token=token)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


def pages(cluster: Cluster, path: str, name: str, *, limit: int, token: str = "") -> list[Any]:
    """Every element of a list, page by page along its Link headers."""
    found: list[Any] = []
    following = f"/api/v1{path}{'&' if '?' in path else '?'}limit={limit}"
    while following:
        answer = cluster.get(following, token=token)
        assert answer.status == 200, answer.body
        assert answer.json["count"] == len(answer.json[name]) <= limit
        found += answer.json[name]
        link = re.fullmatch(r'<(.+)>; rel="next"', answer.headers.get("link", ""))
        assert (link is not None) == ("next_cursor" in answer.json)
        following = link[1] if link else ""
    return found

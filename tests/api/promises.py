"""What the interface document promises to users: every endpoint, with the fields and their JSON types.

Copied by hand from that document, so that no change of ours can change it too.
"""

from dataclasses import dataclass, field

Fields = dict[str, str]

RECORD: Fields = {
    "file_uuid": "string",
    "bucket_id": "string",
    "owner_id": "string",
    "filename": "string",
    "content_type": "string",
    "size_bytes": "integer",
    "blob_sha256": "string",
    "status": "string",
    "created_at": "string",
    "updated_at": "string",
}
PROJECT_METADATA: Fields = {
    "project_id": "string",
    "project_name": "string",
    "version_tag": "string",
    "compression": "string",
    "include_images": "boolean",
    "include_snapshots": "boolean",
    "is_read_only": "boolean",
    "keep_compute_ids": "boolean",
    "reset_mac_addresses": "boolean",
}
BACKUP_METADATA: Fields = {
    "backup_type": "string",
    "is_compressed": "boolean",
    "is_encrypted": "boolean",
    "parent_backup_uuid": "string",
    "source_node_id": "string",
}
VM_METADATA: Fields = {
    "virt_type": "string",
    "format": "string",
    "vcpus": "integer",
    "ram_mb": "integer",
    "extra_attributes_json": "string",
}
CREATION: Fields = {
    "bucket_id": "string",
    "content_type": "string",
    "filename": "string",
    "retention_period": "integer",
    "size_bytes": "integer",
}
PERMISSION: Fields = {
    "id": "string",
    "permission": "string",
    "principal_id": "string",
    "principal_type": "string",
    "granted_by": "string",
    "created_at": "string",
    "expires_at": "string",
}
GRANT: Fields = {
    "expires_at": "string",
    "permission": "string",
    "principal_id": "string",
    "principal_type": "string",
}
SUMMARY: Fields = {
    "file_uuid": "string",
    "filename": "string",
    "content_type": "string",
    "size_bytes": "integer",
    "blob_sha256": "string",
    "status": "string",
    "created_at": "string",
}
INITIALISATION: Fields = {
    "file_uuid": "string",
    "upload_url": "string",
    "expires_at": "string",
    "status": "string",
}
PUBLIC_TOKEN: Fields = {
    "token": "string",
    "url": "string",
    "file_uuid": "string",
    "bucket_uuid": "string",
    "expires_at": "string",
}
RUN: Fields = {
    "run_id": "string",
    "job_name": "string",
    "node_id": "string",
    "invoked_by": "string",
    "started_at": "string",
    "completed_at": "string",
    "status": "string",
    "result": "any",
}
DELETED: Fields = {"file_uuid": "string", "status": "string"}
WITHDRAWN: Fields = {"deleted": "boolean", "id": "string"}
OFFSET: Fields = {"offset": "integer"}
JOINED: Fields = {"ca_cert": "string", "node_cert": "string"}
PERMISSIONS: Fields = {"count": "integer", "permissions": "array"}

_CREATED_PROJECT = CREATION | {name: kind for name, kind in PROJECT_METADATA.items() if name not in RECORD}
_CHANGED_PROJECT = {name: kind for name, kind in PROJECT_METADATA.items() if name != "project_id"}


@dataclass(frozen=True, slots=True)
class Promise:
    """An endpoint; `takes` and `answers` are fields of its bodies, `elements` those of a list's elements."""

    method: str
    path: str
    takes: Fields = field(default_factory=dict)
    answers: Fields = field(default_factory=dict)
    elements: dict[str, Fields] = field(default_factory=dict)


_API = "/api/v1"
_FILE = f"{_API}/files/{{file_uuid}}"
_BUCKET = f"{_API}/buckets/{{bucket_id}}"
ENDPOINTS = (
    Promise("POST", f"{_API}/auth/users/{{user_id}}/token"),
    Promise("POST", f"{_API}/auth/revoke"),
    Promise(
        "POST",
        f"{_API}/cluster/join/filestore",
        {"api_port": "integer", "csr": "string", "id": "string", "ip_address": "string"},
        JOINED,
    ),
    Promise("POST", f"{_API}/project-files", _CREATED_PROJECT, INITIALISATION),
    Promise(
        "GET",
        f"{_API}/project-files",
        answers={"count": "integer", "project_files": "array"},
        elements={"project_files": RECORD | PROJECT_METADATA},
    ),
    Promise("GET", f"{_API}/project-files/{{file_uuid}}", answers=RECORD | PROJECT_METADATA),
    Promise("PATCH", f"{_API}/project-files/{{file_uuid}}", _CHANGED_PROJECT, RECORD | PROJECT_METADATA),
    Promise("DELETE", f"{_API}/project-files/{{file_uuid}}", answers=DELETED),
    Promise("POST", f"{_API}/vms", CREATION | VM_METADATA, INITIALISATION),
    Promise("GET", f"{_API}/vms/{{file_uuid}}", answers=RECORD | VM_METADATA),
    Promise("PATCH", f"{_API}/vms/{{file_uuid}}", VM_METADATA, RECORD | VM_METADATA),
    Promise(
        "GET",
        f"{_API}/backups",
        answers={"count": "integer", "backups": "array"},
        elements={"backups": RECORD | BACKUP_METADATA},
    ),
    Promise("GET", f"{_API}/backups/{{file_uuid}}", answers=RECORD | BACKUP_METADATA),
    Promise("PATCH", f"{_API}/backups/{{file_uuid}}", BACKUP_METADATA, RECORD | BACKUP_METADATA),
    Promise("DELETE", f"{_API}/backups/{{file_uuid}}", answers=DELETED),
    Promise("GET", f"{_FILE}/status", answers=OFFSET),
    Promise("GET", _FILE),
    Promise(
        "POST",
        f"{_FILE}/public-token",
        {"bucket_uuid": "string", "expires_at": "string", "file_uuid": "string"},
        PUBLIC_TOKEN,
    ),
    Promise(
        "GET",
        f"{_BUCKET}/files",
        answers={"bucket_uuid": "string", "count": "integer", "files": "array"},
        elements={"files": SUMMARY},
    ),
    Promise("POST", f"{_BUCKET}/permissions", GRANT, PERMISSION),
    Promise("GET", f"{_BUCKET}/permissions", answers=PERMISSIONS, elements={"permissions": PERMISSION}),
    Promise("DELETE", f"{_BUCKET}/permissions/{{perm_id}}", answers=WITHDRAWN),
    Promise("POST", f"{_FILE}/permissions", GRANT, PERMISSION),
    Promise("GET", f"{_FILE}/permissions", answers=PERMISSIONS, elements={"permissions": PERMISSION}),
    Promise("DELETE", f"{_FILE}/permissions/{{perm_id}}", answers=WITHDRAWN),
    Promise("POST", f"{_API}/jobs/{{job_name}}"),
    Promise("GET", f"{_API}/jobs/runs/{{run_id}}", answers=RUN),
)

"""The bodies of the metadata API, as msgspec Structs in the field order of the interface, and their checks.

The OpenAPI document is made from them. An answer has every field, "" for text without a value. A request's
optional fields may be absent, null or "". One module per resource; `fields` tells how fields are described.
"""

from node.api.bodies.checks import (
    check_filename,
    check_label,
    check_media_type,
    check_sha256,
    check_uuid,
    path_uuid,
)
from node.api.bodies.cluster import (
    ClusterAuthority,
    CoordinatorAddress,
    CreateJoinTokenBody,
    DeletedJoinToken,
    JoinBody,
    JoinResult,
    JoinTokenBody,
    JoinTokenList,
    MintedJoinToken,
    NodeBody,
    NodeList,
)
from node.api.bodies.coordinators import (
    AddCoordinatorBody,
    ClusterStatus,
    CoordinatorBody,
    CoordinatorState,
    Leader,
    NodeState,
    RemovedCoordinator,
    TransferLeaderBody,
)
from node.api.bodies.fields import (
    LABEL_CHARS_MAX,
    RETENTION_HOURS_MAX,
    SIZE_BYTES_MAX,
    Label,
    RetentionHours,
    SizeBytes,
)
from node.api.bodies.files import DeletedFile, UploadInitialisation
from node.api.bodies.health import Health
from node.api.bodies.project_files import (
    Compression,
    CreateProjectFileBody,
    ManifestBody,
    ManifestImageBody,
    ProjectFileBody,
    ProjectFileList,
    UpdateProjectFileBody,
)
from node.api.bodies.request import Request
from node.api.bodies.users import KeySet, MintBody, MintedToken, UserBody

__all__ = [
    "LABEL_CHARS_MAX",
    "RETENTION_HOURS_MAX",
    "SIZE_BYTES_MAX",
    "AddCoordinatorBody",
    "ClusterAuthority",
    "ClusterStatus",
    "Compression",
    "CoordinatorAddress",
    "CoordinatorBody",
    "CoordinatorState",
    "CreateJoinTokenBody",
    "CreateProjectFileBody",
    "DeletedFile",
    "DeletedJoinToken",
    "Health",
    "JoinBody",
    "JoinResult",
    "JoinTokenBody",
    "JoinTokenList",
    "KeySet",
    "Label",
    "Leader",
    "ManifestBody",
    "ManifestImageBody",
    "MintBody",
    "MintedJoinToken",
    "MintedToken",
    "NodeBody",
    "NodeList",
    "NodeState",
    "ProjectFileBody",
    "ProjectFileList",
    "RemovedCoordinator",
    "Request",
    "RetentionHours",
    "SizeBytes",
    "TransferLeaderBody",
    "UpdateProjectFileBody",
    "UploadInitialisation",
    "UserBody",
    "check_filename",
    "check_label",
    "check_media_type",
    "check_sha256",
    "check_uuid",
    "path_uuid",
]

"""The kinds of file, for tests that hold for each of them: how one is made, asked for, changed and listed."""

from dataclasses import dataclass
from typing import Any

from metadata.protocol import commands, queries
from tests.unit.state import create, create_backup, create_vm


@dataclass(frozen=True)
class KindOfFile:
    """`changes`: another value for every field that an update may change."""

    name: str
    create: Any
    get: Any
    update: Any
    list_page: Any
    changes: dict[str, Any]


KINDS = (
    KindOfFile(
        "project_file",
        create,
        queries.GetProjectFile,
        commands.UpdateProjectFile,
        queries.ListProjectFiles,
        {
            "project_name": "name",
            "version_tag": "v2",
            "compression": "zstd",
            "include_images": True,
            "include_snapshots": True,
            "is_read_only": True,
            "keep_compute_ids": True,
            "reset_mac_addresses": True,
        },
    ),
    KindOfFile(
        "vm",
        create_vm,
        queries.GetVm,
        commands.UpdateVm,
        queries.ListVms,
        {
            "virt_type": "docker",
            "format": "raw",
            "vcpus": 4,
            "ram_mb": 0,
            "extra_attributes_json": '{"a": 1}',
        },
    ),
    KindOfFile(
        "backup",
        create_backup,
        queries.GetBackup,
        commands.UpdateBackup,
        queries.ListBackups,
        {"is_compressed": True, "is_encrypted": True, "source_node_id": "n1"},
    ),
)

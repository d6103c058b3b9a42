"""Find projects that a person must confirm before a backup replaces a better one. Pure.

GNS3 lists a project by the topology that it finds in a folder. After an import that gns3-server did not
survive, this can be the topology of a project of which only a part is there. All functions are pure.
"""

import re
from typing import Final

from ca.errors import Conflict
from deploy.base.lookup import is_uuid
from deploy.base.output import size
from deploy.gns3.export import ExportEnd
from deploy.gns3.records import LabProject
from deploy.gns3.stored import StoredBackup

SHRUNK_TO: Final = 0.5  # of the newest backup; less is a loss until a person says otherwise
_PATH_PARTS: Final = re.compile(r"[/\\]")
_SAY_SO: Final = "Nothing was stored. If this is intended: filestore gns3 backup --accept-loss"


def refuse_foreign(project: LabProject) -> None:
    """Raise Conflict for a project whose folder is named after another project's id."""
    folder = _PATH_PARTS.split(project.path.rstrip("/\\"))[-1]
    if is_uuid(folder) and folder.lower() != project.project_id.lower():
        raise Conflict(
            f"GNS3 lists this project from the folder {folder}, which is not its own. Probably an "
            "interrupted import left a part of it there, and the complete project is in the folder "
            f"{project.project_id}. {_SAY_SO}"
        )


def refuse_loss(project: LabProject, newest: StoredBackup | None, end: ExportEnd) -> None:
    """Raise Conflict for an export that is another project's, or that shrank by more than half.

    Sizes are those of the archives, and are compared only if both are compressed in the same way.
    """
    if len(end.project_ids) > 1:
        raise Conflict(
            f"Its folder has {len(end.project_ids)} topologies (files named *.gns3). GNS3 restores one "
            f"of them, which may be the wrong one. Move the others away. {_SAY_SO}"
        )
    if any(each.lower() != project.project_id.lower() for each in end.project_ids):
        raise Conflict(f"Its export contains the project {end.project_ids[0]}. {_SAY_SO}")
    if newest is None or newest.file.compression != end.compression:
        return
    if end.size_bytes < newest.file.size_bytes * SHRUNK_TO:
        raise Conflict(
            f"It has shrunk from {size(newest.file.size_bytes)} to {size(end.size_bytes)} since its newest"
            f" backup {newest.file.file_uuid}. {_SAY_SO}"
        )

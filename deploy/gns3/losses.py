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
# GNS3 looks at the whole path of a file to leave out snapshots, captures and what is temporary.
_LEFT_OUT_BELOW: Final = re.compile(r"[/\\](snapshots|project-files[/\\](tmp|captures))[/\\]")
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


def refuse_hidden(project: LabProject) -> None:
    """Raise Conflict for a project whose folder makes GNS3 export the topology alone."""
    if found := _LEFT_OUT_BELOW.search(f"{project.path}/"):
        raise Conflict(
            f"GNS3 exports no files of it, because its folder {project.path} is below a folder named "
            f"{_PATH_PARTS.split(found[0])[-2]}. Nothing was stored. Move it, or GNS3's folder of projects."
        )


def refuse_loss(
    project: LabProject, newest: StoredBackup | None, end: ExportEnd, *, newest_unpacked_bytes: int = 0
) -> None:
    """Raise Conflict for an export that is another project's, or that shrank by more than half.

    Sizes are those of the archives. If these are compressed in different ways, sizes of their files are
    compared: `newest_unpacked_bytes`, or 0 if it is not known.
    """
    if len(end.project_ids) > 1:
        raise Conflict(
            f"Its folder has {len(end.project_ids)} topologies (files named *.gns3). GNS3 restores one "
            f"of them, which may be the wrong one. Move the others away. {_SAY_SO}"
        )
    if any(each.lower() != project.project_id.lower() for each in end.project_ids):
        raise Conflict(f"Its export contains the project {end.project_ids[0]}. {_SAY_SO}")
    if newest is None:
        return
    before_bytes, now_bytes = newest.file.size_bytes, end.size_bytes
    if newest.file.compression != end.compression:
        before_bytes, now_bytes = newest_unpacked_bytes, end.unpacked_bytes
    if now_bytes < before_bytes * SHRUNK_TO:
        raise Conflict(
            f"It has shrunk from {size(before_bytes)} to {size(now_bytes)} since its newest"
            f" backup {newest.file.file_uuid}. {_SAY_SO}"
        )

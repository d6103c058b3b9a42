"""The folders of a GNS3 server other than its projects. Shared by their backup and their restore.

The folder of the configuration has the database of GNS3 3 too: users, roles, pools, templates and the list of
images. Symbols, appliances and configurations have folders of their own, which the configuration names.

Tested by tests/gns3/test_lost.py.
"""

import configparser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pwd import getpwuid
from typing import Final

from ca.errors import Conflict, InvalidRequest
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.records import LabProject

CONFIGURATION: Final = "gns3-server-configuration"  # in the place of the id of a project
SERVER_FOLDERS: Final = "gns3-server-"  # begins all of these ids
_BASE: Final = "~/GNS3"
_TREES: Final = ("symbols", "appliances", "configs")
# The folder may have anything else, also projects and images.
_FILES: Final = ("gns3_server.conf", "gns3_controller.", "gns3_jwt_secret_key", "iou_license")
_UNFINISHED: Final = ("-journal", "-wal", "-shm")  # of a database


def is_server_folder(project_id: str) -> bool:
    """Whether this is the id of a folder of the server, and of no project."""
    return project_id.startswith(SERVER_FOLDERS)


def identity_apart(server: ServerIdentity) -> ServerIdentity:
    """Return the identity for the journal of these folders: it misses none when they are not backed up."""
    return replace(server, id=f"{server.id}-server")


def is_kept(name: str) -> bool:
    """Whether a file in the folder of the configuration belongs to the server."""
    return name.startswith(_FILES)


def server_folders(configuration: Path) -> Iterator[LabProject]:
    """The folders that there are, that of the configuration first. Raises InvalidRequest."""
    yield _folder(CONFIGURATION, "server configuration", configuration.parent)
    for name in _TREES:
        path = tree_of(configuration, name)
        if path.is_dir():
            yield _folder(f"{SERVER_FOLDERS}{name}", f"server {name}", path)


def tree_of(configuration: Path, name: str) -> Path:
    """The folder with symbols and so on that a configuration names. Raises InvalidRequest."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(configuration.read_text(encoding="utf-8"))
        owner = configuration.stat().st_uid
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise InvalidRequest(f"--config: cannot read {configuration}: {error}") from error
    given = parser.get("Server", f"{name}_path", fallback=f"{_BASE}/{name}")
    if given.startswith("~/"):
        given = f"{getpwuid(owner).pw_dir}{given[1:]}"
    return Path(given)


def require_stopped_cleanly(configuration: Path) -> None:
    """Raise Conflict if its database has changes that are in another file yet."""
    for ending in _UNFINISHED:
        path = configuration.parent / f"gns3_controller.db{ending}"
        if path.exists():
            raise Conflict(f"{path} exists: the server was killed. Start it, and stop it again.")


def _folder(project_id: str, name: str, path: Path) -> LabProject:
    return LabProject(project_id=project_id, name=name, status="closed", path=str(path))

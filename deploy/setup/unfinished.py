"""The on-disk record of an unfinished setup. Shared by its steps and by its continuation.

`setup.begun` is created first in the directory of a coordinator, and deleted when everything is there. If it
exists without coordinator.json, all other files were created by a setup that died, and are unused.

Tested by tests/cluster/test_start_again.py.
"""

import secrets
import shutil
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ca.errors import Conflict
from ca.secretfiles import make_directory, read_secret, sync_directory, write_secret
from coordinator.admin.setup import SETUP_BEGUN, check_empty
from coordinator.storage.config import CoordinatorFiles
from node.base.config import NodeFiles

TOKEN: Final = "setup.token"  # noqa: S105  # a file in the directory of a node that has not joined yet
_KEPT: Final = {"lost+found", SETUP_BEGUN}
_ATTEMPT_BYTES: Final = 32


class UnfinishedSetup(Struct, frozen=True, kw_only=True):
    """A coordinator that is being created. `token`: the text of the setup token, "" for the first machine.

    `attempt`: a random value that identifies this machine to the coordinator that accepts the token.
    """

    token: str = ""
    attempt: str = ""


def new_attempt(token: str) -> UnfinishedSetup:
    """One that begins now."""
    return UnfinishedSetup(token=token, attempt=secrets.token_urlsafe(_ATTEMPT_BYTES))


def read(files: CoordinatorFiles) -> UnfinishedSetup | None:
    """Read the record of an unfinished setup; None if there is none. Raises UnsafeSecretFile, Conflict."""
    path = files.data / SETUP_BEGUN
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_secret(path), type=UnfinishedSetup)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Conflict(f"{path} cannot be read. Remove {files.data} and start again.") from error


def begin(files: CoordinatorFiles, begun: UnfinishedSetup) -> None:
    """An empty directory with the mark; what an earlier setup left there is removed. Raises Conflict."""
    if files.config.exists():
        raise Conflict(f"{files.data} already contains a coordinator.")
    if read(files) is not None:
        for path in files.data.iterdir():
            if path.name not in _KEPT:
                _remove(path)
    check_empty(files)
    make_directory(files.data)
    write_secret(files.data / SETUP_BEGUN, msgspec.json.encode(begun))


def note(files: CoordinatorFiles, begun: UnfinishedSetup) -> None:
    """Go on with another token."""
    write_secret(files.data / SETUP_BEGUN, msgspec.json.encode(begun))


def end(files: CoordinatorFiles) -> None:
    """All of it is there."""
    (files.data / SETUP_BEGUN).unlink(missing_ok=True)
    sync_directory(files.data)


def end_node(files: NodeFiles) -> None:
    """The node has joined."""
    for name in (TOKEN, "joining.key"):
        (files.data / name).unlink(missing_ok=True)
    sync_directory(files.data)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()

"""Clusters that this user has signed in to, as `filestore login` stores them: `config.toml`, read only here.

    current = "lab"

    [contexts.lab]
    urls = ["https://files.lab.example:7443"]
    ca = ".../filestore/lab.ca.pem"          # the root certificate that was pinned
    token_file = ".../filestore/lab.token"   # mode 0600

Also the cluster of `filestore dev`, which writes `.filestore/cluster.json` in its working directory.
"""

import os
import tomllib
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from filestore_client.base.errors import InvalidRequest, NotFound

CLUSTER_FILE: Final = Path(".filestore/cluster.json")


class Context(msgspec.Struct, frozen=True):
    """One cluster: its nodes, and the files that hold its root certificate and the user's token."""

    urls: list[str]
    ca: str
    token_file: str


class Contexts(msgspec.Struct, frozen=True):
    """All contexts by name; `current` is "" if none is in use."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Return the context of this name. Raises NotFound if there is none."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotFound(f"You are not signed in to {name!r}. The known clusters are: {known}.")
        return self.contexts[name]


class ClusterMember(msgspec.Struct, frozen=True):
    """A process of a development cluster."""

    id: str
    url: str
    pid: int
    data: str


class ClusterFile(msgspec.Struct, frozen=True):
    """The file that `filestore dev` writes when it is ready, and removes at its end. Paths are absolute."""

    nodes: list[ClusterMember]
    coordinators: list[ClusterMember]
    ca: str
    admin_token_file: str


def config_directory() -> Path:
    """Return the folder of this user's configuration. Raises InvalidRequest for a user without a home."""
    try:
        return platformdirs.user_config_path("filestore", appauthor=False)
    except RuntimeError as error:
        raise InvalidRequest("This user has no home directory: set HOME or XDG_CONFIG_HOME.") from error


def state_directory() -> Path:
    """Return the folder for what one run leaves to the next. Raises InvalidRequest for a user without a home.

    ${XDG_STATE_HOME:-~/.local/state}/filestore
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise InvalidRequest("This user has no home directory: set HOME or XDG_STATE_HOME.") from error
    return base / "filestore"


def read_contexts() -> Contexts:
    """Return the contexts of this user; none without a file. Raises InvalidRequest for an unusable file."""
    path = config_directory() / "config.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"Cannot use {path}: {error}") from error


def read_cluster_file(path: Path) -> ClusterFile:
    """Return what `filestore dev` wrote. Raises InvalidRequest for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"Cannot use {path}: {error}") from error


def find_context(name: str = "") -> Context | None:
    """Return the context of this name. Without a name: the cluster of this directory, or the current context.

    None if there is neither. Raises NotFound for an unknown name, InvalidRequest for an unusable file.
    """
    if not name and os.access(CLUSTER_FILE, os.R_OK):  # not one of another user
        cluster = read_cluster_file(CLUSTER_FILE)
        return Context([node.url for node in cluster.nodes], cluster.ca, cluster.admin_token_file)
    contexts = read_contexts()
    name = name or contexts.current
    return contexts.find(name) if name else None

"""`filestore gns3 restore --local` for a server that does not run: whose backups root unpacks, and where.

Restores with a real GNS3 server are in tests/gns3/test_local.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ca.errors import Conflict
from deploy.commands.gns3.restore_local import LocalRestore
from deploy.gns3.fingerprint import Fingerprint
from deploy.gns3.identity import BackupTag, ServerIdentity
from deploy.gns3.local.server_files import CONFIGURATION
from deploy.gns3.server import Gns3Server, ServerAddress
from tests.cluster.command_output import output, refusal
from tests.cluster.connections import async_client_of
from tests.cluster.harness import Cluster
from tests.unit.deploy.gns3.folders.test_packing import packed

STOPPED = "http://127.0.0.1:1"
OURS, THEIRS = ServerIdentity("a" * 16, "ours"), ServerIdentity("b" * 16, "theirs")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, Any]:
    """A user who has signed in to one server, which does not run."""
    logins = tmp_path / "config" / "filestore" / "gns3.toml"
    logins.parent.mkdir(parents=True)
    logins.write_text(f'[servers.ours]\nurl = "{STOPPED}"\nserver_id = "{OURS.id}"\n')
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """The folder of projects, which is empty."""
    made = tmp_path / "projects"
    made.mkdir()
    return made


Store = Callable[..., str]


def kept(directory: Path, token: str) -> str:
    """A file with a token that only this user can read."""
    path = directory / "token"
    path.touch(0o600)
    path.write_text(token)
    return str(path)


@pytest.fixture
def store(cluster: Cluster, tmp_path: Path) -> Store:
    """Stores a full backup of a folder with a topology; returns its file_uuid."""

    def stored(name: str, *, server: ServerIdentity = OURS, token: str = "", project_id: str = "") -> str:
        lab = tmp_path / f"made on {server.name}" / name
        lab.mkdir(parents=True)
        project_id = project_id or f"id of {name}"
        (lab / "lab.gns3").write_text(f'{{"project_id": "{project_id}", "name": "{name}"}}')
        tag = BackupTag(Fingerprint(0, "c" * 40, "full"), server)
        fields = {"project_id": project_id, "project_name": name, "version_tag": tag.text}
        return cluster.store(packed(lab), f"{name}.gns3.tar", token=token, **fields)

    return stored


def test_backup_of_another_user_is_not_unpacked(
    cluster: Cluster, environment: dict[str, Any], projects: Path, store: Store, tmp_path: Path
) -> None:
    name = f"lab-{tmp_path.name}"
    token = cluster.user_token("local-owner")
    file_uuid = store(name, token=token)
    restore = ("gns3", "restore", file_uuid, "--local", str(projects))
    code, line = refusal(cluster, *restore, **environment)  # by an admin, who may read it
    assert (code, "your own backups only" in line) == (3, True), line
    assert list(projects.iterdir()) == []
    output(cluster, *restore, **environment, FILESTORE_TOKEN_FILE=kept(tmp_path, token))
    assert [each.name for each in projects.iterdir()] == [name]


def test_all_projects_are_those_of_one_server(
    cluster: Cluster, environment: dict[str, Any], projects: Path, store: Store, tmp_path: Path
) -> None:
    names = [f"{number}-{tmp_path.name}" for number in range(2)]
    token = cluster.user_token("local-two-servers")
    for name, server in zip(names, (OURS, THEIRS), strict=True):
        store(name, server=server, token=token)
    restore = ("gns3", "restore", "--all", "--local", str(projects))
    environment["FILESTORE_TOKEN_FILE"] = kept(tmp_path, token)
    code, line = refusal(cluster, *restore, **environment)
    assert (code, "Name one with --from" in line) == (5, True), line
    assert list(projects.iterdir()) == []
    output(cluster, *restore, "--from", "theirs", **environment)
    assert [each.name for each in projects.iterdir()] == names[1:]


def test_folder_of_the_server_goes_to_its_own_name_only(
    cluster: Cluster, environment: dict[str, Any], projects: Path, store: Store, tmp_path: Path
) -> None:
    token = cluster.user_token("local-server")
    file_uuid = store("2.2", token=token, project_id=CONFIGURATION)
    environment["FILESTORE_TOKEN_FILE"] = kept(tmp_path, token)
    configuration = tmp_path / "GNS3" / "3.0" / "gns3_server.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("[Server]\n")
    code, line = refusal(cluster, "gns3", "restore", "--config", str(configuration), **environment)
    assert (code, "was named 2.2 on its server, and is 3.0 here" in line) == (5, True), line
    assert [each.name for each in configuration.parent.parent.iterdir()] == ["3.0"]
    restore = ("gns3", "restore", file_uuid, "--local", str(projects))  # as if it were a project
    code, line = refusal(cluster, *restore, **environment)
    assert (code, "give --config" in line) == (5, True), line
    assert list(projects.iterdir()) == []


async def test_server_that_runs_is_not_replaced(cluster: Cluster, tmp_path: Path) -> None:
    configuration = tmp_path / "gns3_server.conf"
    configuration.write_text("[Server]\n")
    running = Gns3Server(ServerAddress(name="ours", url=STOPPED))
    async with async_client_of(cluster) as client:
        with pytest.raises(Conflict, match="Stop it first"):
            await LocalRestore(None, configuration, "", "").restore_server(running, client)

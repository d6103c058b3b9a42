"""The folders of a server are those that its configuration names."""

from pathlib import Path

import pytest

from ca.errors import Conflict, InvalidRequest
from deploy.gns3.local.server_files import (
    CONFIGURATION,
    is_kept,
    is_server_folder,
    require_stopped_cleanly,
    server_folders,
    tree_of,
)


def test_folders_are_those_that_there_are(tmp_path: Path) -> None:
    configuration = tmp_path / "gns3" / "gns3_server.conf"
    configuration.parent.mkdir()
    (tmp_path / "symbols").mkdir()
    configuration.write_text(
        f"[Server]\nsymbols_path = {tmp_path}/symbols\nappliances_path = {tmp_path}/none\npassword = 50%\n"
        f"configs_path = {tmp_path}/none\n"
    )
    found = {each.project_id: each.path for each in server_folders(configuration)}
    assert found == {CONFIGURATION: str(tmp_path / "gns3"), "gns3-server-symbols": str(tmp_path / "symbols")}
    assert all(map(is_server_folder, found))
    assert not is_server_folder("4d5e0d4c-a6c0-4c3e-8c64-2b1a3bd7a3f1")
    configuration.write_text("")
    assert tree_of(configuration, "configs") == Path.home() / "GNS3" / "configs"
    configuration.write_text("no section")
    with pytest.raises(InvalidRequest, match="--config"):
        tree_of(configuration, "configs")


def test_files_of_the_server_are_kept_and_no_others() -> None:
    for name in ("gns3_server.conf", "gns3_controller.db", "gns3_controller.vars", "iou_license"):
        assert is_kept(name)
    for name in ("projects", "password.secret", "log"):
        assert not is_kept(name)


def test_database_of_a_killed_server_is_not_replaced(tmp_path: Path) -> None:
    configuration = tmp_path / "gns3_server.conf"
    require_stopped_cleanly(configuration)
    (tmp_path / "gns3_controller.db-wal").touch()
    with pytest.raises(Conflict, match="was killed"):
        require_stopped_cleanly(configuration)

"""What root makes in a directory of another user is that user's when the command has ended."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from deploy.base.options import data_option, new_data_option
from deploy.base.ownership import hand_over
from node.membership.move import move
from tests.unit.node.membership.test_move import BLOB, node_at

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

USER = 4711


def owner(path: Path) -> int:
    return path.lstat().st_uid


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of another user."""
    path = tmp_path / "data"
    path.mkdir()
    os.chown(path, USER, USER)
    return path


@click.command()
@data_option("A directory.")
@click.option("--fails", is_flag=True)
def made(data: Path, fails: bool) -> None:
    """Write there."""
    (data / "credential.pem").touch(0o600)
    (data / "damaged-c1").mkdir()
    (data / "damaged-c1" / "log").mkdir()
    (data / "damaged-c1" / "log" / "segment").touch()
    if fails:
        raise click.ClickException("no")


@click.command()
@new_data_option("A directory.")
def begun(data: Path) -> None:
    """Make it, and write there."""
    data.mkdir(exist_ok=True)
    (data / "coordinator.json").touch()


@pytest.mark.parametrize("fails", [(), ("--fails",)])
def test_all_that_a_command_makes_there_is_the_owners(data: Path, fails: tuple[str, ...]) -> None:
    assert CliRunner().invoke(made, ["--data", str(data), *fails]).exit_code == len(fails)
    for path in ("credential.pem", "damaged-c1", "damaged-c1/log", "damaged-c1/log/segment"):
        assert (owner(data / path), (data / path).lstat().st_gid) == (USER, USER), path


def test_directory_that_was_there_keeps_its_owner_and_a_new_one_is_roots(data: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(begun, ["--data", str(data)]).exit_code == 0
    assert owner(data / "coordinator.json") == USER
    new = tmp_path / "new"
    assert CliRunner().invoke(begun, ["--data", str(new)]).exit_code == 0
    assert owner(new) == owner(new / "coordinator.json") == 0


def test_nothing_else_is_given(data: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "secret").touch()
    (data / "folder").symlink_to(beside)
    (data / "link").symlink_to(beside / "secret")
    (data / "second-name").hardlink_to(beside / "secret")
    (data / "lost+found").mkdir()
    (data / "third").touch()
    os.chown(data / "third", USER + 1, USER + 1)
    hand_over(data)
    assert owner(beside) == owner(beside / "secret") == owner(data / "lost+found") == 0
    assert owner(data / "third") == USER + 1
    hand_over(tmp_path / "missing")


def test_node_that_root_moves_to_another_disk_is_its_users_there(data: Path, tmp_path: Path) -> None:
    node_at(data)
    for path in data.rglob("*"):
        os.chown(path, USER, USER)
    target = tmp_path / "target"
    move(data, target)
    hand_over(target)
    assert {owner(path) for path in (target, target / "node.json", *target.rglob("*"))} == {USER}
    assert (target / BLOB).exists()

"""A directory is given to the user of the units: all in it, while it changes, and nothing beside it."""

import os
import pwd
import threading
from pathlib import Path

import pytest

from deploy.setup.running import give_directory

USER = "nobody"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def owner(path: Path) -> str:
    return pwd.getpwuid(path.lstat().st_uid).pw_name


def test_everything_in_it_is_given_and_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    given, beside = tmp_path / "given", tmp_path / "beside"
    (given / "log").mkdir(parents=True)
    (given / "log" / "segment").touch()
    (given / "file").touch()
    beside.mkdir()
    (beside / "secret").touch()
    (given / "folder").symlink_to(beside)
    (given / "link").symlink_to(beside / "secret")
    give_directory(given, USER)
    for name in ("", "log", "log/segment", "file", "folder", "link"):
        assert owner(given / name) == USER, name
    assert owner(beside) == owner(beside / "secret") == "root"


def test_directory_that_is_itself_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "given").symlink_to(tmp_path / "beside")
    give_directory(tmp_path / "given", USER)
    assert owner(tmp_path / "beside") == "root"


def test_files_may_come_and_go_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "stays").touch()
    has_ended = threading.Event()

    def change() -> None:
        while not has_ended.is_set():
            for number in range(50):
                (tmp_path / f".{number}.tmp").touch()
            for number in range(50):
                (tmp_path / f".{number}.tmp").unlink()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            give_directory(tmp_path, USER)
    finally:
        has_ended.set()
        thread.join()
    assert owner(tmp_path / "stays") == USER


def test_without_that_user_nothing_is_given(tmp_path: Path) -> None:
    give_directory(tmp_path, "no-such-user")
    assert owner(tmp_path) == "root"

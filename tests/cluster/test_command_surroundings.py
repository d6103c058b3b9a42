"""The command in unusual surroundings: no home, folders of others, links, pipes, narrow terminals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.command_output import Terminal, output
from tests.cluster.harness import FILESTORE, Cluster
from tests.cluster.test_command_account import Home, fingerprint

# The command of a user without a line in /etc/passwd.
OF_NO_PASSWD = """
import pwd
pwd.getpwuid = {}.__getitem__
from deploy.entry import main
main()
"""
HELD = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir()
    return Home(tmp_path / "home")


def stored(cluster: Cluster, name: str, content: bytes = b"content") -> str:
    return output(cluster, "put", "-", "--filename", name, stdin=content).strip()


def test_upload_whose_memory_cannot_be_removed_is_told(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    (tmp_path / "lab.bin").write_bytes(b"content")
    shown = output(cluster, "put", str(tmp_path / "lab.bin"), XDG_STATE_HOME=str(tmp_path / "state"))
    assert cluster.get(f"/files/{shown.strip()}").body == b"content"


def test_user_without_a_home_uploads_and_is_told_what_to_set(cluster: Cluster, tmp_path: Path) -> None:
    environment = {name: value for name, value in cluster.command_environment().items() if name not in HELD}

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", OF_NO_PASSWD, *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, timeout=60, check=False
        )

    (tmp_path / "lab.bin").write_bytes(b"content")
    done = run("put", "lab.bin")
    assert done.returncode == 0, done.stderr
    assert cluster.get(f"/files/{done.stdout.decode().strip()}").body == b"content"
    done = run("context", "ls")
    line = b"This user has no home directory: set HOME or XDG_CONFIG_HOME."
    assert done.stderr == b"filestore: invalid_request: " + line + b"\n"


def test_files_of_the_configuration_that_are_links_stay_links(cluster: Cluster, home: Home) -> None:
    elsewhere = home.directory / "dotfiles"
    elsewhere.mkdir()
    home.config.mkdir(parents=True)
    for name in ("config.toml", "lab.token"):
        (home.config / name).symlink_to(elsewhere / name)
    home.login(cluster, "--name", "lab")
    assert home.user() == "admin"
    assert home.run("token", "renew").returncode == 0
    for name in ("config.toml", "lab.token"):
        assert (home.config / name).is_symlink()
        assert (elsewhere / name).stat().st_mode & 0o777 == 0o600


def test_logins_at_the_same_time_are_all_kept(cluster: Cluster, home: Home) -> None:
    names = [f"lab{number}" for number in range(8)]
    arguments = ("--fingerprint", fingerprint(cluster), "--token-file", str(cluster.token_file))
    command = [FILESTORE, "login", cluster.nodes[0].url, *arguments, "--name"]
    begun = [subprocess.Popen([*command, name], env=home.environment, cwd=home.directory) for name in names]
    assert [each.wait(120) for each in begun] == [0] * len(names)
    listed = home.run("context", "ls", "--json").stdout.splitlines()
    assert sorted(json.loads(line)["name"] for line in listed) == names


@pytest.mark.parametrize("colours", [{"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}])
def test_nothing_steers_what_is_no_terminal(
    cluster: Cluster, tmp_path: Path, colours: dict[str, Any]
) -> None:
    (tmp_path / "lab.bin").write_bytes(b"content")
    for arguments in (("put", str(tmp_path / "lab.bin")), ("ls",), ("status",), ("get", "-o", os.devnull)):
        named = [stored(cluster, "steered")] if arguments[0] == "get" else []
        done = cluster.filestore(*arguments, *named, TERM="xterm-256color", **colours)
        assert b"\x1b" not in done.stdout + done.stderr


def test_no_id_is_cut_in_a_narrow_terminal(cluster: Cluster, tmp_path: Path) -> None:
    named = "a name with spaces, longer than the terminal is wide, for whoever likes such names.bin"
    file_uuid = stored(cluster, named)
    environment = cluster.command_environment(COLUMNS="50", TERM="dumb")
    with Terminal(["ls"], environment, tmp_path) as terminal:
        assert terminal.end() == 0
    assert file_uuid in terminal.shown
    with Terminal(["show", file_uuid], environment, tmp_path) as terminal:
        assert terminal.end() == 0
    assert cluster.get(f"/backups/{file_uuid}").json["blob_sha256"] in terminal.shown


@pytest.mark.parametrize("space", ["\u202f", "\u00a0", "\u3000", "\u200d"])
def test_name_with_an_unusual_space_is_shown_and_downloaded(
    cluster: Cluster, tmp_path: Path, space: str
) -> None:
    name = f"Screenshot at 9.41{space}AM.png"
    stored(cluster, name, space.encode())
    assert name in output(cluster, "ls", "--name", name)
    done = subprocess.run(
        [FILESTORE, "get", name],
        env=cluster.command_environment(),
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == f"{name}\n"
    assert (tmp_path / name).read_bytes() == space.encode()


def test_token_is_not_minted_where_it_cannot_be_written(cluster: Cluster, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere" / "token", tmp_path):
        done = cluster.filestore("token", "user", "unminted", "-o", str(place))
        assert done.returncode == 2
        assert str(tmp_path).encode() in done.stderr
    assert cluster.get("/users/unminted").status == 404


def test_who_is_not_signed_in_reads_one_line(home: Home) -> None:
    done = home.run("ls")
    assert done.returncode == 2
    assert (
        done.stderr
        == b"filestore: not signed in: run `filestore login URL`, or `filestore dev` to try it out.\n"
    )

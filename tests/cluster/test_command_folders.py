"""Folders on the command line: trees go up and come back, and files are found, moved and deleted by path."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.command_output import Terminal, objects, output, refusal
from tests.cluster.harness import Cluster, run_filestore


def fill(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def names(cluster: Cluster, *arguments: str) -> list[str]:
    """Folders with / at their ends, and files, of `ls`."""
    return [
        f"{each['path']}/" if "file_uuid" not in each else f"{each['path']}/{each['filename']}".lstrip("/")
        for each in objects(cluster, "ls", *arguments)
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A directory with files of equal names; its own name is that of no other test."""
    return fill(
        tmp_path / f"lab {tmp_path.name}",
        {
            "r1/startup-config.cfg": b"hostname r1\n",
            "r2/startup-config.cfg": b"hostname r2\n",
            "r2/disks/flash ä.img": os.urandom(200_000),
            "notes.txt": b"",
            ".hidden/x": b"hidden\n",
        },
    )


def test_tree_goes_up_and_comes_back(cluster: Cluster, lab: Path, tmp_path: Path) -> None:
    (lab / "empty").mkdir()
    (lab / "link").symlink_to("notes.txt")
    done = cluster.filestore("put", "-r", str(lab), "--folder", "/course/7/")
    assert done.returncode == 0
    told = done.stderr.decode()
    assert f"{lab}/empty: left out: an empty directory" in told
    assert f"{lab}/link: left out: a link" in told
    top = f"course/7/{lab.name}"
    assert names(cluster, top) == [f"{top}/{each}" for each in (".hidden/", "r1/", "r2/", "notes.txt")]
    assert sorted(names(cluster, "-r", top)) == sorted(f"{top}/{each}" for each in tree(lab))
    back = tmp_path / "back"
    shown = output(cluster, "get", "-r", f"/{top}/", "-o", str(back))
    assert shown.startswith(f"{back}: 5 files, ")
    assert tree(back) == tree(lab)
    # Again: nothing is fetched that is there, and what has changed here is not replaced without a word.
    (back / "notes.txt").write_bytes(b"mine\n")
    again = cluster.filestore("get", "-r", top, "-o", str(back))
    assert again.returncode == 5
    assert f"{back}/notes.txt: conflict: " in again.stderr.decode()
    assert (back / "notes.txt").read_bytes() == b"mine\n"
    assert cluster.filestore("get", "-r", top, "-o", str(back), "--force").returncode == 0
    assert tree(back) == tree(lab)
    assert output(cluster, "cat", f"{top}/r2/startup-config.cfg") == "hostname r2\n"
    assert refusal(cluster, "cat", f"{top}/r3/startup-config.cfg")[0] == 4


def test_folder_download_says_that_it_skips_older_files(cluster: Cluster, lab: Path, tmp_path: Path) -> None:
    for content in ("old\n", "new\n"):
        (lab / "notes.txt").write_text(content)
        output(cluster, "put", str(lab / "notes.txt"), "--folder", lab.name)
    done = cluster.filestore("get", "-r", lab.name, "-o", str(tmp_path / "back"))
    told = done.stderr.decode()
    assert "older files that were skipped, because a newer file has the same name: 1\n" in told
    assert (tmp_path / "back" / "notes.txt").read_text() == "new\n"


def test_hidden_files_do_not_come_into_a_directory_that_was_there(
    cluster: Cluster, lab: Path, tmp_path: Path
) -> None:
    output(cluster, "put", "-r", str(lab))
    home = tmp_path / "home"
    home.mkdir()
    done = cluster.filestore("get", "-r", lab.name, "-o", str(home))
    assert done.returncode == 2
    assert f"{home}/.hidden/x: " in done.stderr.decode()
    assert tree(home) == {name: content for name, content in tree(lab).items() if name != ".hidden/x"}


def test_file_and_folder_are_moved(cluster: Cluster, lab: Path) -> None:
    output(cluster, "put", "-r", str(lab))
    top = lab.name
    (file,) = objects(cluster, "mv", f"{top}/r1/startup-config.cfg", f"{top}/r3/")
    assert (file["path"], file["filename"]) == (f"{top}/r3", "startup-config.cfg")
    (file,) = objects(cluster, "mv", f"{top}/r3/startup-config.cfg", f"/{top}.cfg")
    assert (file["path"], file["filename"]) == ("", f"{top}.cfg")
    (file,) = objects(cluster, "mv", f"{top}.cfg", "other.cfg")
    assert (file["path"], file["filename"]) == ("", "other.cfg")
    moved = output(cluster, "mv", "-r", f"{top}/r2", f"{top}-new/deep")
    assert moved == f"{top}-new/deep: 2 files were moved here.\n"
    assert sorted(names(cluster, "-r", f"{top}-new")) == [
        f"{top}-new/deep/disks/flash ä.img",
        f"{top}-new/deep/startup-config.cfg",
    ]
    assert names(cluster, top) == [f"{top}/.hidden/", f"{top}/notes.txt"]
    assert refusal(cluster, "mv", "-r", f"{top}/r2", "x")[0] == 4
    assert refusal(cluster, "mv", f"{top}/notes.txt", "a/../b")[0] == 2


def test_folder_is_deleted_with_what_is_below_it(cluster: Cluster, lab: Path, tmp_path: Path) -> None:
    output(cluster, "put", "-r", str(lab))
    top = lab.name
    with Terminal(["rm", "-r", f"{top}/r2"], cluster.command_environment(), tmp_path) as terminal:
        terminal.wait_for("Delete 2 files (")
        terminal.type("n")
        terminal.wait_for("Nothing was deleted.")
    assert output(cluster, "rm", "-r", f"{top}/r2") == f"{top}/r2: 2 files are deleted.\n"
    assert names(cluster, top) == [f"{top}/.hidden/", f"{top}/r1/", f"{top}/notes.txt"]
    assert refusal(cluster, "rm", "-r", f"{top}/r2")[0] == 4
    assert cluster.filestore("rm", "-r", "/").returncode == 2


def test_chain_of_backups_in_a_folder_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    parent, folder = "", f"chain-{tmp_path.name}"
    for number in range(12):
        body = {"filename": f"{number}.tar", "backup_type": "full", "size_bytes": 0, "path": folder}
        if parent:
            body |= {"backup_type": "incremental", "parent_backup_uuid": parent}
        answer = cluster.post("/backups", body)
        assert answer.status == 201, answer.body
        parent = answer.json["file_uuid"]
    assert output(cluster, "rm", "-r", folder) == f"{folder}: 12 files are deleted.\n"


def test_name_that_is_there_is_said_before_the_upload(cluster: Cluster, lab: Path, tmp_path: Path) -> None:
    first = output(cluster, "put", "-r", str(lab), "--if-exists", "keep").split()
    (lab / "notes.txt").write_bytes(b"second\n")
    top = lab.name
    path = f"{top}/notes.txt"
    both = cluster.filestore("put", str(lab / "notes.txt"), "--folder", top)
    assert both.stderr.decode() == f"filestore: the default bucket has {path} already: both are kept.\n"
    assert len(objects(cluster, "ls", top, "--name", "notes.txt")) == 2
    skipped = cluster.filestore("put", "-r", str(lab), "--if-exists", "skip")
    assert (skipped.returncode, skipped.stdout) == (0, b"")
    (lab / "notes.txt").write_bytes(b"third\n")
    with Terminal(
        ["put", str(lab / "notes.txt"), "--folder", top], cluster.command_environment(), tmp_path
    ) as terminal:
        terminal.wait_for(f"{path} already.")
        terminal.wait_for("replace the old files")
        terminal.type("replace")
        assert terminal.end() == 0
    (left,) = objects(cluster, "ls", top, "--name", "notes.txt")
    assert output(cluster, "cat", left["file_uuid"]) == "third\n"
    assert left["file_uuid"] not in first


def test_same_command_again_is_no_name_that_is_there(cluster: Cluster, lab: Path) -> None:
    """The names are those of the first run, which the second goes on with."""
    arguments = ("put", "-r", str(lab), "/nowhere/lab.bin")
    for _ in range(2):
        done = cluster.filestore(*arguments)
        assert done.returncode == 1
        assert "already" not in done.stderr.decode()
    assert len(names(cluster, "-r", lab.name)) == 5


def test_standard_input_goes_into_a_folder(cluster: Cluster, lab: Path) -> None:
    for content, more in ((b"one", ()), (b"two", ("--if-exists", "replace"))):
        output(cluster, "put", "-", "--filename", "in.txt", "--folder", lab.name, *more, stdin=content)
    assert output(cluster, "cat", f"{lab.name}/in.txt") == "two"


def test_file_of_another_user_is_not_replaced(cluster: Cluster, lab: Path, tmp_path: Path) -> None:
    """Anybody may choose the name, and an admin sees the files of all in the default bucket."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(cluster.user_token("otto"))
    theirs = ("put", str(lab / "notes.txt"), "--folder", lab.name)
    other = output(cluster, *theirs, FILESTORE_TOKEN_FILE=str(token)).strip()
    done = cluster.filestore(*theirs, "--if-exists", "replace")
    assert (done.returncode, f"{other} belongs to otto, and is kept" in done.stderr.decode()) == (0, True)
    assert cluster.get(f"/files/{other}").status == 200


def test_name_that_is_there_is_said_before_a_move(cluster: Cluster, lab: Path, tmp_path: Path) -> None:
    output(cluster, "put", "-r", str(lab))
    top = lab.name
    name = "startup-config.cfg"
    both = cluster.filestore("mv", f"{top}/r1/{name}", f"{top}/r2/")
    told = f"filestore: the default bucket has {top}/r2/{name} already"
    assert (both.returncode, both.stderr.decode()) == (0, f"{told}: both are kept.\n")
    assert names(cluster, f"{top}/r2", "--name", name) == [f"{top}/r2/{name}"] * 2
    output(cluster, "put", str(lab / "r1" / name), "--folder", f"{top}/r3")
    skipped = cluster.filestore("mv", "-r", f"{top}/r3", f"{top}/r2", "--if-exists", "skip")
    assert skipped.stderr.decode() == f"{told}: not moved.\n"
    assert skipped.stdout.decode() == f"{top}/r2: 0 files were moved here.\n"
    with Terminal(
        ["mv", "-r", f"{top}/r3", f"{top}/r2"], cluster.command_environment(), tmp_path
    ) as terminal:
        terminal.wait_for("replace the old files")
        terminal.type("replace")
        assert terminal.end() == 0
    assert names(cluster, f"{top}/r2", "--name", name) == [f"{top}/r2/{name}"]
    assert output(cluster, "cat", f"{top}/r2/{name}") == "hostname r1\n"
    renamed = cluster.filestore("mv", f"{top}/r2/{name}", "again.cfg")
    assert (renamed.returncode, renamed.stderr) == (0, b"")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_tree_of_5000_files_in_800_folders_is_equal(cluster: Cluster, tmp_path: Path) -> None:
    top = tmp_path / f"tree-{tmp_path.name}"
    for number in range(5000):
        folder = top / f"{number % 20:02}" / f"{number % 800:03}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file {number}.cfg").write_bytes(b"x" * (number % 3000))
    back = str(tmp_path / "back")
    for arguments in (("put", "-r", str(top), "--kind", "backup"), ("get", "-r", top.name, "-o", back)):
        done = run_filestore(arguments, cluster.command_environment(), timeout_s=400.0)
        assert done.returncode == 0, done.stderr
    subprocess.run(["diff", "-r", str(top), back], check=True)
    assert len(names(cluster, "-r", f"{top.name}/07")) == 250

"""An admin sees the files of all users in the default bucket, and changes them only if told to."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filestore_client.filesystem import FilestoreFileSystem
from tests.clients.restic_server import ask, gateway, password_file
from tests.cluster.command_output import Terminal, objects, output, refusal
from tests.cluster.connections import options_of
from tests.cluster.harness import Cluster, run_filestore

pytestmark = pytest.mark.usefixtures("own_memory")

OTTO = "otto"


@pytest.fixture
def otto(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of a command of otto."""
    token = tmp_path / "token of otto"
    token.touch(mode=0o600)
    token.write_text(cluster.user_token(OTTO))
    return {"FILESTORE_TOKEN_FILE": str(token)}


@pytest.fixture
def folder(cluster: Cluster, otto: dict[str, str], tmp_path: Path) -> str:
    """A folder of the default bucket with `mine` of the admin, and `theirs` and `deep/theirs` of otto."""
    name = f"shared-{secrets.token_hex(4)}"
    for path in ("mine", "theirs", "deep/theirs"):
        below, _, file = path.rpartition("/")
        (tmp_path / file).write_text(path)
        arguments = ("put", str(tmp_path / file), "--folder", f"{name}/{below}".rstrip("/"))
        token_file = {} if file == "mine" else otto
        done = run_filestore(arguments, cluster.command_environment(**token_file))
        assert done.returncode == 0, done.stderr.decode()
    return name


def owned(cluster: Cluster, folder: str) -> list[tuple[str, str]]:
    """Path and owner of each file in a folder and below it."""
    files = objects(cluster, "ls", "-r", folder)
    return sorted((f"{file['path']}/{file['filename']}", file["owner_id"]) for file in files)


@pytest.mark.parametrize("arguments", [["rm"], ["rm", "--yes"], ["mv"]])
def test_folder_with_files_of_others_is_refused_without_a_terminal(
    cluster: Cluster, folder: str, arguments: list[str]
) -> None:
    before = owned(cluster, folder)
    target = ["elsewhere"] if arguments == ["mv"] else []
    code, line = refusal(cluster, *arguments, "-r", folder, *target)
    assert code == 5
    assert line.startswith(f"conflict: 2 of the 3 files in {folder} belong to other users: otto (2). Nothing")
    assert "--owner admin takes your files only" in line
    assert owned(cluster, folder) == before


def test_owner_says_whose_files_are_moved_and_deleted(cluster: Cluster, folder: str) -> None:
    moved = output(cluster, "mv", "-r", folder, f"{folder}-new", "--owner", "admin")
    assert moved == f"{folder}-new: 1 files were moved here.\n"
    assert owned(cluster, f"{folder}-new") == [(f"{folder}-new/mine", "admin")]
    assert [owner for _, owner in owned(cluster, folder)] == [OTTO, OTTO]
    assert refusal(cluster, "rm", "-r", folder, "--owner", "admin")[0] == 4
    gone = output(cluster, "rm", "-r", folder, "--owner", "admin", "--owner", OTTO)
    assert gone == f"{folder}: 2 files are deleted.\n"
    assert cluster.filestore("rm", "x", "--owner", OTTO).returncode == 2


def test_terminal_is_asked_before_files_of_others_are_deleted(
    cluster: Cluster, folder: str, tmp_path: Path
) -> None:
    for answers, code, left in ((["n"], 5, 3), (["y", "n"], 5, 3), (["y", "y"], 0, 0)):
        environment = cluster.command_environment(COLUMNS="300")
        with Terminal(["rm", "-r", folder], environment, tmp_path) as terminal:
            for question, answer in zip(
                ("Change these files too?", "Delete 3 files ("), answers, strict=False
            ):
                terminal.wait_for(question)
                terminal.type(answer)
            assert terminal.end() == code
        assert "2 of the 3 files in" in terminal.shown
        assert len(objects(cluster, "ls", "-r", folder)) == left


@pytest.fixture
def fs(cluster: Cluster) -> FilestoreFileSystem:
    """The file system of the admin."""
    options = options_of(cluster)
    del options["deadline_s"]
    return FilestoreFileSystem(**options)


def test_file_system_changes_files_of_others_only_if_told(
    cluster: Cluster, fs: FilestoreFileSystem, folder: str
) -> None:
    before = owned(cluster, folder)
    place = f"default/{folder}"
    acts: list[Callable[[], None]] = [
        lambda: fs.rm(place, recursive=True),
        lambda: fs.rm(f"{place}/*heirs"),
        lambda: fs.rm_file(f"{place}/theirs"),
        lambda: fs.mv(f"{place}/theirs", f"{place}/mine"),
        lambda: fs.mv(place, f"{place}-new", recursive=True),
    ]
    for act in acts:
        with pytest.raises(PermissionError, match="it has files of otto; of_others=True"):
            act()
    assert owned(cluster, folder) == before
    fs.pipe(f"{place}/theirs", b"a newer file of this name, and no other one is gone")
    fs.rm(f"{place}/mine")
    assert owned(cluster, folder) == [
        (f"{folder}/deep/theirs", OTTO),
        (f"{folder}/theirs", "admin"),
        before[-1],
    ]
    told = FilestoreFileSystem(**fs.storage_options, of_others=True)
    told.rm(place, recursive=True)
    assert owned(cluster, folder) == []


@pytest.fixture
def bucket(cluster: Cluster) -> Iterator[str]:
    """A bucket of otto with a file of his."""
    name = f"of-otto-{secrets.token_hex(4)}"
    token = cluster.user_token(OTTO)
    options = options_of(cluster, token=token)
    del options["deadline_s"]
    his = FilestoreFileSystem(**options)
    his.mkdir(name)
    his.pipe(f"{name}/a", b"his")
    yield name
    his.rm(name, recursive=True)


def test_bucket_of_another_user_is_not_deleted_by_an_admin(fs: FilestoreFileSystem, bucket: str) -> None:
    with pytest.raises(PermissionError, match="it has files of otto"):
        fs.rm(bucket, recursive=True)
    assert fs.cat(f"{bucket}/a") == b"his"


def test_name_of_an_empty_bucket_of_another_user_is_not_enough_to_delete_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    name = f"empty-{secrets.token_hex(4)}"
    made = cluster.post("/buckets", {"name": name}, token=cluster.user_token(OTTO)).json
    told = f"Bucket {name} belongs to {OTTO} (bucket_id {made['bucket_id']})."
    code, line = refusal(cluster, "bucket", "rm", name)
    assert (code, line) == (5, f"conflict: {told} To use this bucket, give its bucket_id.")
    for answer, expected in (("n", 5), ("y", 0)):
        environment = cluster.command_environment(COLUMNS="300")
        with Terminal(["bucket", "rm", name], environment, tmp_path) as terminal:
            terminal.wait_for(f"{told} Use this bucket?")
            terminal.type(answer)
            assert terminal.end() == expected
    assert cluster.get(f"/buckets/{made['bucket_id']}").status == 404
    another = cluster.post("/buckets", {"name": name}, token=cluster.user_token(OTTO)).json["bucket_id"]
    assert output(cluster, "bucket", "rm", another) == f"{another} is deleted.\n"


def test_file_system_of_a_bucket_owner_deletes_what_others_put_there(cluster: Cluster, bucket: str) -> None:
    """The owner of a bucket has let them in."""
    options = options_of(cluster, token=cluster.user_token(OTTO))
    del options["deadline_s"]
    his = FilestoreFileSystem(**options)
    admin = {**options, "token": cluster.admin_token}
    FilestoreFileSystem(**admin).pipe(f"{bucket}/b", b"of the admin")
    his.rm(f"{bucket}/b")
    assert his.ls(bucket, detail=False) == [f"{bucket}/a"]


def test_restic_repository_in_the_default_bucket_has_own_files_only(
    cluster: Cluster, otto: dict[str, str], tmp_path: Path
) -> None:
    repository = f"r{secrets.token_hex(4)}"
    content = b"a key of otto"
    key = hashlib.sha256(content).hexdigest()
    his = {"filename": f"restic:{repository}:keys:{key}", "backup_type": "full", "size_bytes": len(content)}
    token = cluster.user_token(OTTO)
    made = cluster.post("/backups", his, token=token)
    assert cluster.request("PUT", made.json["upload_url"], content=content, token=token).status == 200
    options = ("--password-file", str(password_file(tmp_path)))
    with gateway(cluster, "default", *options) as served:
        assert ask(served.port, "GET", f"/{repository}/keys/").json == []
        assert ask(served.port, "DELETE", f"/{repository}/keys/{key}").status == 404
        assert ask(served.port, "POST", f"/{repository}/keys/{key}", body=content).status == 200
        assert ask(served.port, "DELETE", f"/{repository}/keys/{key}").status == 200
    assert cluster.get(f"/files/{made.json['file_uuid']}", token=token).status == 200

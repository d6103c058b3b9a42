"""Commands on files: what kind `put` makes of them, and how they are found again by name and content."""

import hashlib
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.api.expectations import DEFAULT_BUCKET
from tests.cluster.command_output import Terminal, objects, objects_in, output, refusal
from tests.cluster.harness import FILESTORE, Cluster

QCOW2 = b"QFI\xfb" + bytes(508)
EMOJI = "lab \N{ROCKET} Übung"


def exported_project() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("project.gns3", '{"name": "lab"}')
        archive.writestr("project-files/notes", os.urandom(100))
    return held.getvalue()


def put(cluster: Cluster, path: Path, content: bytes, *options: str) -> str:
    """Its file_uuid."""
    path.write_bytes(content)
    return output(cluster, "put", str(path), *options).strip()


@pytest.fixture
def name(tmp_path: Path) -> str:
    """One that no other test has."""
    return f"{tmp_path.name}.bin"


@pytest.mark.parametrize(
    ("file_name", "content", "kind", "path"),
    [
        ("disk.bin", QCOW2, "image", "vms"),
        ("lab.zip", exported_project(), "project", "project-files"),
        ("notes.txt", b"plain text", "backup", "backups"),
    ],
)
def test_put_makes_of_a_file_what_its_content_is(
    cluster: Cluster, tmp_path: Path, file_name: str, content: bytes, kind: str, path: str
) -> None:
    file_uuid = put(cluster, tmp_path / file_name, content)
    assert cluster.get(f"/{path}/{file_uuid}").json["filename"] == file_name
    (shown,) = objects(cluster, "show", file_uuid)
    assert shown["file_uuid"] == file_uuid
    listed = objects(cluster, "ls", "--kind", kind, "--name", file_name)
    assert file_uuid in [each["file_uuid"] for each in listed]


@pytest.mark.long
def test_image_is_found_by_the_md5_of_its_content(cluster: Cluster, tmp_path: Path) -> None:
    content = QCOW2 + os.urandom(1000)
    file_uuid = put(cluster, tmp_path / "router.qcow2", content, "--vcpus", "2", "--ram", "512")
    digest = hashlib.md5(content).hexdigest()
    for wanted in (digest, digest.upper()):
        assert [each["file_uuid"] for each in objects(cluster, "find", "--md5", wanted)] == [file_uuid]
    record = cluster.get(f"/vms/{file_uuid}").json
    assert (record["format"], record["vcpus"], record["ram_mb"]) == ("qcow2", 2, 512)


def test_file_of_any_kind_is_found_by_its_sha256_and_what_nobody_has_is_4(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    content = os.urandom(100)
    file_uuid = put(cluster, tmp_path / name, content)
    found = output(cluster, "find", "--sha256", hashlib.sha256(content).hexdigest())
    assert file_uuid in found
    assert name in found
    done = cluster.filestore("find", "--sha256", "0" * 64)
    assert (done.returncode, done.stdout) == (4, b"")
    assert done.stderr == b"No available file has this content.\n"
    for wrong in ((), ("--md5", "0" * 32, "--sha256", "0" * 64), ("--md5", "0" * 64), ("--sha256", "lab")):
        assert cluster.filestore("find", *wrong).returncode == 2


@pytest.mark.long
def test_kind_that_is_given_wins_over_the_content(cluster: Cluster, tmp_path: Path, name: str) -> None:
    (stored,) = objects_in(output(cluster, "put", str(file_of(tmp_path / name)), "--kind", "image", "--json"))
    assert (stored["virt_type"], stored["format"], stored["filename"]) == ("qemu", "raw", name)
    assert cluster.get(f"/vms/{stored['file_uuid']}").status == 200


def file_of(path: Path, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.long
def test_options_of_a_kind_choose_it_and_go_with_no_other(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    path = str(file_of(tmp_path / name))
    (stored,) = objects_in(output(cluster, "put", path, "--project-id", "kinds", "--json"))
    assert stored["project_id"] == "kinds"
    for arguments, words in (
        (("--kind", "backup", "--project-id", "kinds"), b"--project-id is for projects"),
        (("--kind", "project", "--ram", "1"), b"--ram is for images"),
        (("--read-only", "--vcpus", "1"), b"--vcpus is for images, and cannot be combined with --read-only"),
    ):
        done = cluster.filestore("put", path, *arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert words in done.stderr


@pytest.mark.long
def test_terminal_is_told_which_kind_was_chosen(cluster: Cluster, tmp_path: Path) -> None:
    path = file_of(tmp_path / "disk.bin", QCOW2)
    with Terminal(["put", str(path)], cluster.command_environment(), tmp_path) as terminal:
        assert terminal.end() == 0
    assert f"{path}: stored as an image (qcow2), 512 bytes" in " ".join(terminal.shown.split())


def test_put_of_a_directory_stores_every_file_below_it(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep" / "deeper").mkdir(parents=True)
    paths = [tmp_path / "tree" / "a", tmp_path / "tree" / "deep" / "b", tmp_path / "tree/deep/deeper/c"]
    for number, path in enumerate(paths):
        path.write_bytes(b"%d" % number)
    (tmp_path / "tree" / "link").symlink_to(paths[0])
    (tmp_path / "tree" / "deep" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "tree" / "pipe")
    done = cluster.filestore("put", "-r", str(tmp_path / "tree"))
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [
        f"filestore: {tmp_path}/tree/{name}: left out: {what}"
        for name, what in (("deep/up", "a link"), ("link", "a link"), ("pipe", "no regular file"))
    ]
    lines = done.stdout.decode().splitlines()
    stored = {path: uuid for uuid, path in (line.split("  ", 1) for line in lines)}
    assert list(stored) == [str(path) for path in paths]
    for number, uuid in enumerate(stored.values()):
        assert cluster.get(f"/files/{uuid}").body == b"%d" % number
    (tmp_path / "empty").mkdir()
    code, line = refusal(cluster, "put", "-r", str(tmp_path / "empty"))
    assert (code, line.partition(" /")[0]) == (2, "invalid_request: There is no file below")


def test_name_that_one_file_has_is_enough_everywhere(cluster: Cluster, tmp_path: Path, name: str) -> None:
    content = os.urandom(5000)
    file_uuid = put(cluster, tmp_path / name, content)
    put(cluster, tmp_path / f"{name}.other", b"another, whose name begins so")
    target = tmp_path / "copy"
    done = cluster.filestore("get", name, "-o", str(target), "--verify")
    assert (done.returncode, target.read_bytes()) == (0, content)
    assert hashlib.sha256(content).hexdigest().encode() in done.stderr
    done = cluster.filestore("cat", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, content, b"")
    shown = output(cluster, "show", name)
    assert file_uuid in shown
    assert "5000 (5.0 kB)" in shown
    assert output(cluster, "rm", name) == f"{name} is deleted.\n"
    assert cluster.get(f"/files/{file_uuid}").status == 404
    assert refusal(cluster, "rm", name) == (
        4,
        f"{name}: not_found: There is no available file named {name!r} that you can access.",
    )


def test_name_of_several_files_lists_them_and_nothing_is_done(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    uuids = [put(cluster, tmp_path / name, content) for content in (b"first", QCOW2)]
    for arguments in (("get", name), ("cat", name), ("show", name), ("share", "create", name)):
        code, line = refusal(cluster, *arguments)
        assert code == 5
        told, _, candidates = line.partition(". Give the file_uuid of one: ")
        assert told == "conflict: 2 files have this name, newest first"
        newest, oldest = candidates.split("; ")
        assert newest.startswith(f"{uuids[1]} (image of admin, 512 bytes, 2")
        assert oldest.startswith(f"{uuids[0]} (backup of admin, 5 bytes, 2")
    assert refusal(cluster, "rm", name)[0] == 5
    assert output(cluster, "cat", uuids[0]) == "first"


def test_file_of_somebody_else_is_told_when_it_is_read_and_not_changed_by_its_name(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    """Anybody can choose the name of an admin's file."""
    stranger = cluster.user_token("mallory")
    file_uuid = cluster.store(b"planted", name, token=stranger)
    told = f"{name} belongs to mallory (file_uuid {file_uuid})."
    done = cluster.filestore("cat", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"planted", f"{told}\n".encode())
    refused = f"conflict: {told} To use this file, give its file_uuid."
    for arguments in (
        ("mv", name, "taken"),
        ("share", "create", name),
        ("grant", "add", "admin", "read", "--file", name),
    ):
        assert refusal(cluster, *arguments) == (5, refused), arguments
    assert refusal(cluster, "rm", name) == (5, f"{name}: {refused}")


def test_bucket_of_somebody_else_is_told_before_it_gets_a_file(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    """Anybody can choose the name of a bucket, and reads what comes into it."""
    bucket = f"bucket-{tmp_path.name}"
    made = cluster.post("/buckets", {"name": bucket}, token=cluster.user_token("mallory"))
    (tmp_path / name).write_bytes(b"secret")
    told = f"Bucket {bucket} belongs to mallory.\n".encode()
    for arguments in (("put", str(tmp_path / name), "--bucket", bucket), ("bucket", "show", bucket)):
        done = cluster.filestore(*arguments)
        assert (done.returncode, done.stderr) == (0, told), arguments
    assert cluster.filestore("bucket", "show", made.json["bucket_id"]).stderr == b""
    assert cluster.filestore("bucket", "show", "default").stderr == b""


@pytest.mark.long
def test_terminal_is_asked_before_the_file_of_somebody_else_is_deleted_by_its_name(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    stranger = cluster.user_token("mallory")
    file_uuid = cluster.store(b"planted", name, token=stranger)
    for answer, code in (("n", 5), ("y", 0)):
        with Terminal(["rm", name], cluster.command_environment(), tmp_path) as terminal:
            terminal.wait_for(f"{name} belongs to mallory (file_uuid {file_uuid}). Use this file?")
            terminal.type(answer)
            assert terminal.end() == code
    assert cluster.get(f"/files/{file_uuid}/status", token=stranger).status == 404


@pytest.mark.long
def test_ls_long_and_of_a_bucket(cluster: Cluster, tmp_path: Path, name: str) -> None:
    bucket = f"bucket-{tmp_path.name}"
    bucket_id = output(cluster, "bucket", "create", bucket).strip()
    file_uuid = put(cluster, tmp_path / name, QCOW2, "--bucket", bucket)
    elsewhere = put(cluster, tmp_path / f"{name}.2", b"elsewhere")
    for named in (bucket, bucket_id):
        assert [each["file_uuid"] for each in objects(cluster, "ls", "--bucket", named)] == [file_uuid]
    assert elsewhere not in output(cluster, "ls", "--bucket", bucket)
    heading, row = output(cluster, "ls", "--long", "--name", name, "--kind", "image").splitlines()
    assert heading.split()[-5:] == ["status", "owner", "until", "type", "sha256"]
    assert [file_uuid, "image", "available", "admin"] == [
        word for word in row.split() if word in (file_uuid, "image", "available", "admin")
    ]
    assert cluster.filestore("ls", "--bucket", bucket, "--kind", "image").returncode == 2
    assert cluster.filestore("ls", "--project-id", "x", "--kind", "image").returncode == 2
    assert refusal(cluster, "ls", "--bucket", "no-such-bucket")[0] == 4


def test_du_adds_up_by_bucket_and_kind(cluster: Cluster, tmp_path: Path, name: str) -> None:
    bucket = f"bucket-{tmp_path.name}"
    bucket_id = output(cluster, "bucket", "create", bucket).strip()
    put(cluster, tmp_path / name, bytes(1000), "--bucket", bucket)
    put(cluster, tmp_path / f"{name}.2", bytes(500), "--bucket", bucket)
    put(cluster, tmp_path / f"{name}.3", QCOW2, "--bucket", bucket)
    rows = [row for row in objects(cluster, "du") if row["bucket_id"] == bucket_id]
    assert [(row["bucket"], row["kind"], row["files"], row["size_bytes"]) for row in rows] == [
        (bucket, "backup", 2, 1500),
        (bucket, "image", 1, 512),
    ]
    assert f"{bucket}" in output(cluster, "du")
    default = [row for row in objects(cluster, "du") if row["bucket_id"] == DEFAULT_BUCKET]
    assert all(row["bucket"] for row in default)


@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(each, marks=pytest.mark.long) for each in ("latin-1", "utf-8"))]
)
def test_terminal_of_any_encoding_shows_the_whole_list(
    cluster: Cluster, tmp_path: Path, encoding: str
) -> None:
    """A name that it cannot show costs the letter, and not the list."""
    project = f"enc-{tmp_path.name}"
    names = [f"{EMOJI}.gns3p", "plain.gns3p"]
    uuids = [put(cluster, tmp_path / each, b"x", "--project-id", project) for each in names]
    done = cluster.filestore("ls", "--project-id", project, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert names[0].encode(encoding, "replace").decode(encoding) in shown
    assert all(each in shown for each in [*uuids, names[1]])
    done = cluster.filestore("ls", "--project-id", project, "--json", PYTHONIOENCODING=encoding)
    assert [json.loads(line)["filename"] for line in done.stdout.decode(encoding).splitlines()] == names
    done = cluster.filestore("show", uuids[0], PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    done = cluster.filestore("rm", names[0], PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_reader_that_goes_away_ends_the_command_quietly(cluster: Cluster, tmp_path: Path, name: str) -> None:
    put(cluster, tmp_path / name, bytes(4 << 20))
    with subprocess.Popen(
        [FILESTORE, "cat", name],
        env=cluster.command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1


@pytest.mark.long
def test_type_of_a_packed_file_is_that_of_the_packing(cluster: Cluster, tmp_path: Path) -> None:
    for name, wanted in (("a.tar.gz", "application/gzip"), ("a.svgz", "application/gzip")):
        file_uuid = put(cluster, tmp_path / name, b"\x1f\x8b\x08")
        assert cluster.get(f"/backups/{file_uuid}").json["content_type"] == wanted

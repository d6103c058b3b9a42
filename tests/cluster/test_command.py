"""The installed `filestore` command against a real cluster: put, get, ls, rm, status, and its errors."""

import datetime
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from ca.certificates import new_root
from deploy.processes import wait_until
from tests.cluster.harness import FILESTORE, Cluster, random_file, run_filestore
from tests.cluster.throttle import ThrottlingProxy

FILE_BYTES = 24 << 20


def test_put_prints_the_file_uuid_and_get_brings_the_same_bytes(cluster: Cluster, tmp_path: Path) -> None:
    name = f"{tmp_path.name}.gns3p"
    sha256 = random_file(tmp_path / name, 3_000_000)
    done = cluster.filestore("put", str(tmp_path / name), "--project-id", "command")
    assert (done.returncode, done.stderr) == (0, b"")
    file_uuid = done.stdout.decode().strip()
    target = tmp_path / "copy"
    done = cluster.filestore("get", file_uuid, "-o", str(target))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert hashlib.sha256(target.read_bytes()).hexdigest() == sha256
    assert not target.with_name("copy.part").exists()
    record = cluster.get(f"/project-files/{file_uuid}").json
    assert (record["filename"], record["project_id"]) == (name, "command")


def test_get_writes_to_standard_output(cluster: Cluster) -> None:
    content = os.urandom(100_000)
    done = cluster.filestore("get", cluster.store(content), "-o", "-")
    assert (done.returncode, done.stdout) == (0, content)


@pytest.mark.parametrize("size_bytes", [0, 1000, 8 << 20, (16 << 20) + 1])
def test_put_reads_a_pipe_of_unknown_size(cluster: Cluster, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    done = cluster.filestore("put", "-", "--filename", "pipe.bin", stdin=content)
    assert done.returncode == 0, done.stderr
    record = cluster.get(f"/backups/{done.stdout.decode().strip()}").json
    assert (record["size_bytes"], record["status"]) == (size_bytes, "available")
    assert record["blob_sha256"] == hashlib.sha256(content).hexdigest()


def test_put_to_a_full_standard_output_does_not_lose_what_is_stored(cluster: Cluster, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        random_file(Path(path), 10_000)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [FILESTORE, "put", *paths],
            env=cluster.command_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    for path, line in zip(paths, done.stderr.decode().splitlines(), strict=True):
        told = re.fullmatch(
            rf"filestore: stored as (\S+)  {path}, which cannot be printed: No space left on device", line
        )
        assert told, line
        assert cluster.get(f"/files/{told[1]}").body == Path(path).read_bytes()


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 0), (0o644, 1)])
def test_token_that_everybody_may_read_is_warned_of(
    cluster: Cluster, tmp_path: Path, mode: int, warnings: int
) -> None:
    path = tmp_path / "token"
    path.write_text(cluster.token_file.read_text())
    path.chmod(mode)
    done = cluster.filestore("ls", "--json", FILESTORE_TOKEN_FILE=str(path))
    assert done.returncode == 0, done.stderr
    line = f"filestore: warning: all users of this machine can read the token in {path}\n"
    assert done.stderr.decode() == line * warnings


def test_empty_token_file_is_told_as_such(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    done = cluster.filestore("ls", FILESTORE_TOKEN_FILE=str(path))
    assert (done.returncode, done.stderr.decode()) == (
        2,
        f"filestore: invalid_request: FILESTORE_TOKEN_FILE: {path} is empty, but must contain a token.\n",
    )


@pytest.mark.parametrize("option", ["--ca", "--token-file"])
def test_file_that_cannot_be_read_is_told_with_its_option(cluster: Cluster, option: str) -> None:
    done = cluster.filestore("ls", option, "/nowhere")
    assert done.returncode == 2
    assert re.fullmatch(
        rf"filestore: invalid_request: {option}: Cannot read the [A-Za-z ]+ from /nowhere: No such file.*\n",
        done.stderr.decode(),
    )


def test_directory_of_another_kind_of_member_is_the_callers_mistake(cluster: Cluster) -> None:
    done = cluster.filestore(
        "coordinator", "bundle", "--data", str(cluster.data(cluster.nodes[0])), "-o", "b"
    )
    assert done.returncode == 5
    assert done.stderr.startswith(b"filestore: conflict: ")


def test_put_goes_on_after_the_client_was_killed(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "lab.gns3p"
    sha256 = random_file(path, FILE_BYTES)
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=8 << 20) as proxy:
        environment = cluster.command_environment(FILESTORE_URL=proxy.url)
        arguments = ["put", str(path), "--only-url", "--project-id", "resumed"]
        process = subprocess.Popen([FILESTORE, *arguments], env=environment, stdout=subprocess.PIPE)
        try:
            wait_until(lambda: proxy.passed_bytes > FILE_BYTES // 2, what="half uploaded", timeout_s=60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        proxy.bytes_per_s = 1 << 30
        record = cluster.get("/project-files?project_id=resumed").json["project_files"][0]
        offsets: list[int] = []

        def synced() -> bool:  # once the node has noticed that nobody sends any more
            offsets.append(cluster.get(f"/files/{record['file_uuid']}/status").json["offset"])
            return offsets[-1] > 0

        wait_until(synced, what="the bytes of the dead client durable", timeout_s=30)
        before = proxy.passed_bytes
        done = run_filestore(arguments, environment)
        sent_again = proxy.passed_bytes - before
    assert done.returncode == 0, done.stderr
    records = cluster.get("/project-files?project_id=resumed").json["project_files"]
    assert [record["file_uuid"] for record in records] == [done.stdout.decode().strip()]
    assert records[0]["blob_sha256"] == sha256
    # What lay in socket buffers when the client died is lost with its connection; nothing else is sent again.
    assert offsets[-1] < FILE_BYTES
    assert sent_again < (FILE_BYTES - offsets[-1]) * 1.02 + (64 << 10)


def test_put_survives_a_cut_connection(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "lab.gns3p"
    random_file(path, FILE_BYTES)
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=16 << 20) as proxy:
        proxy.cut_marks = [FILE_BYTES // 3]
        environment = cluster.command_environment(FILESTORE_URL=proxy.url)
        process = subprocess.Popen(
            [FILESTORE, "put", str(path), "--only-url"], env=environment, stdout=subprocess.PIPE
        )
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert not proxy.cut_marks
    assert cluster.get(f"/files/{output.decode().strip()}").body == path.read_bytes()


def test_ls_lists_what_was_stored(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"listed", "listed [x].gns3p", project_id="ls")
    table = cluster.filestore("ls", "--project-id", "ls").stdout.decode()
    assert file_uuid in table
    assert "listed [x].gns3p" in table
    lines = cluster.filestore("ls", "--project-id", "ls", "--json").stdout.splitlines()
    assert [json.loads(line)["file_uuid"] for line in lines] == [file_uuid]


def test_rm_deletes_files_of_any_kind_and_goes_on_behind_one_that_is_refused(cluster: Cluster) -> None:
    stored = cluster.store(b"to be deleted")
    pending = cluster.post("/vms", {"filename": "half.qcow2", "virt_type": "qemu", "format": "qcow2"})
    assert pending.status == 201
    file_uuids = [stored, "no-such-file", pending.json["file_uuid"]]
    done = cluster.filestore("rm", *file_uuids)
    assert done.returncode == 4
    assert done.stdout.decode().splitlines() == [f"{each} is deleted." for each in file_uuids[::2]]
    assert [line[:34] for line in done.stderr.decode().splitlines()] == ["filestore: no-such-file: not_found"]
    for file_uuid in file_uuids[::2]:
        assert cluster.get(f"/files/{file_uuid}").status == 404
    assert cluster.filestore("rm", stored).returncode == 4


def test_put_begins_anew_when_its_upload_was_deleted(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "lab.gns3p"
    sha256 = random_file(path, FILE_BYTES)
    arguments = ["put", str(path), "--project-id", "anew", "--only-url"]
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=4 << 20) as proxy:
        environment = cluster.command_environment(FILESTORE_URL=proxy.url)
        process = subprocess.Popen([FILESTORE, *arguments], env=environment, stdout=subprocess.PIPE)
        wait_until(lambda: proxy.passed_bytes > FILE_BYTES // 8, what="bytes of the file", timeout_s=30)
        process.kill()
        process.communicate(timeout=30)
    (record,) = cluster.get("/project-files?project_id=anew").json["project_files"]
    done = cluster.filestore("rm", record["file_uuid"])
    assert (done.returncode, done.stderr) == (0, b"")
    done = run_filestore(arguments, cluster.command_environment())
    assert done.returncode == 0, done.stderr
    (again,) = cluster.get("/project-files?project_id=anew").json["project_files"]
    assert again["file_uuid"] == done.stdout.decode().strip() != record["file_uuid"]
    assert again["blob_sha256"] == sha256


def test_status_of_a_healthy_cluster_is_0(cluster: Cluster) -> None:
    done = cluster.filestore("status")
    assert done.returncode == 0, done.stderr
    for member in cluster.members:
        assert member.id in done.stdout.decode()
    assert json.loads(cluster.filestore("status", "--json").stdout)["healthy"] is True


def test_user_token_is_written_for_its_owner_only(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    done = cluster.filestore("token", "user", "carol", "--role", "reader", "--ttl", "600", "-o", str(path))
    assert (done.returncode, done.stdout) == (0, b"")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    answer = cluster.get("/auth/whoami", token=cluster.remember(path.read_text().strip()))
    assert (answer.json["user_id"], answer.json["roles"]) == ("carol", ["reader"])


def test_join_token_is_printed(cluster: Cluster) -> None:
    token = cluster.filestore("token", "join", "--node-id", "later", "--ttl", "60").stdout.decode().strip()
    assert cluster.remember(token).startswith("FST1.")


def test_admin_token_is_minted_offline(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    data = cluster.data(cluster.coordinators[1])
    assert cluster.filestore("token", "admin", "--data", str(data), "-o", str(path)).returncode == 0
    assert cluster.get("/cluster/status", token=cluster.remember(path.read_text().strip())).status == 200


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (("get", "0192f0c1-2345-7abc-8def-0123456789ab", "-o", "-"), 4, b"not_found"),
        (("get", "no-id", "-o", "-"), 4, b"not_found"),
        (("put", "/dev/null"), 2, b"invalid_request"),
        (("put", "-", "--filename", "a/b"), 2, b"invalid_request"),
    ],
)
def test_refusal_is_one_line_with_its_code(
    cluster: Cluster, arguments: tuple[str, ...], exit_code: int, code: bytes
) -> None:
    done = cluster.filestore(*arguments)
    assert (done.returncode, done.stdout) == (exit_code, b"")
    assert done.stderr.startswith(b"filestore: " + code + b": ")
    assert done.stderr.count(b"\n") == 1


def test_absent_file_is_one_line(cluster: Cluster) -> None:
    done = cluster.filestore("put", "/nowhere/lab.gns3p")
    assert (done.returncode, done.stderr) == (
        1,
        b"filestore: /nowhere/lab.gns3p: No such file or directory\n",
    )


def test_server_of_another_cluster_is_not_trusted(cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(new_root("other", now=datetime.datetime.now(datetime.UTC))[0])
    done = cluster.filestore("status", FILESTORE_CA=str(other))
    assert (done.returncode, done.stdout) == (6, b"")
    assert done.stderr.startswith(b"filestore: untrusted_server: ")


def test_device_is_no_certificate(cluster: Cluster) -> None:
    done = cluster.filestore("status", FILESTORE_CA="/dev/zero")
    assert done.returncode == 2
    assert done.stderr == (
        b"filestore: invalid_request: FILESTORE_CA: Cannot read the CA certificate from /dev/zero:"
        b" it is longer than 1048576 characters\n"
    )


def test_environment_of_other_programs_does_not_matter(cluster: Cluster) -> None:
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
    environment = cluster.command_environment(
        HTTPS_PROXY="http://127.0.0.1:9", **dict.fromkeys(names, "/nowhere")
    )
    done = run_filestore(["status"], environment)
    assert done.returncode == 0, done.stderr


def test_wrong_usage_is_2(tmp_path: Path) -> None:
    names = ("FILESTORE_URL", "FILESTORE_CA", "FILESTORE_TOKEN_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    for arguments in (["ls"], ["put"], ["nonsense"], ["coordinator", "init"]):
        done = subprocess.run(
            [FILESTORE, *arguments], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert done.returncode == 2, done.stderr


def test_nobody_there_is_unavailable_within_the_deadline(cluster: Cluster) -> None:
    done = cluster.filestore("status", "--deadline", "1", "--url", "https://127.0.0.1:1")
    assert done.returncode == 6
    assert done.stderr.startswith(b"filestore: unavailable: ")
    done = cluster.filestore("ls", "--deadline", "1", "--url", "https://127.0.0.1:1")
    assert done.returncode == 6

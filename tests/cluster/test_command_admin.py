"""Commands for who runs a cluster: users, tokens, members, jobs, the status, any operation of the API."""

import json
import signal
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cluster.command_output import objects, objects_in, output, refusal
from tests.cluster.harness import FILESTORE, Cluster, run_filestore


def test_user_is_set_shown_disabled_enabled_and_revoked(cluster: Cluster, tmp_path: Path) -> None:
    names = ("--role", "reader", "--group", "lab", "--group", "b")
    (made,) = objects(cluster, "user", "set", "frank", "--create", *names)
    assert (made["user_id"], made["roles"], made["groups"]) == ("frank", ["reader"], ["b", "lab"])
    (emptied,) = objects(cluster, "user", "set", "frank", "--group", "")
    assert (emptied["roles"], emptied["groups"]) == (["reader"], [])
    assert "frank" in output(cluster, "user", "show", "frank")
    assert "frank" in [each["user_id"] for each in objects(cluster, "user", "ls")]
    assert any(line.startswith("frank ") for line in output(cluster, "user", "ls").splitlines())
    token = cluster.user_token("frank")
    assert output(cluster, "user", "disable", "frank") == "Tokens of frank are rejected from now on.\n"
    assert cluster.get("/auth/whoami", token=token).status == 401
    (enabled,) = objects(cluster, "user", "enable", "frank")
    assert enabled["disabled"] is False
    assert cluster.get("/auth/whoami", token=token).status == 200
    assert "All tokens, permissions and public links of frank are revoked" in output(
        cluster, "user", "revoke", "frank"
    )
    assert cluster.get("/auth/whoami", token=token).status == 401


NONE_ID = "0192f0c1-2345-7abc-8def-000000000060"


def test_user_who_does_not_exist_is_neither_disabled_nor_given_anything(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A mistyped name in an emergency must not answer that the thief is locked out."""
    file_uuid = cluster.store(b"content", tmp_path.name)
    for arguments in (
        ("user", "disable", "nobody-x"),
        ("grant", "add", "nobody-x", "read", "--file", file_uuid),
    ):
        code, line = refusal(cluster, *arguments)
        assert (code, line) == (4, "not_found: There is no user named nobody-x.")
    assert cluster.get("/auth/users/nobody-x").status == 404
    assert cluster.get(f"/files/{file_uuid}/permissions").json["count"] == 0


@pytest.mark.long
def test_command_for_what_does_not_exist_says_so_and_creates_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.store(b"content", tmp_path.name)
    for arguments in (
        ("user", "show", "nobody-x"),
        ("user", "set", "nobody-x", "--group", "lab"),
        ("user", "enable", "nobody-x"),
        ("user", "revoke", "nobody-x"),
        ("grant", "add", "nobody-x", "read", "--file", tmp_path.name, "--type", "group"),
        ("grant", "add", "nobody-x", "read", "--file", tmp_path.name, "--type", "role"),
        ("grant", "rm", NONE_ID, "--file", tmp_path.name),
        ("share", "rm", tmp_path.name, NONE_ID),
        ("bucket", "set", "nobody-x", "--quota", "5"),
        ("bucket", "rm", "nobody-x"),
        ("token", "rm", "nobody-x"),
        ("node", "drain", "nobody-x"),
        ("node", "undrain", "nobody-x"),
        ("node", "remove", "nobody-x", "--force"),
        ("node", "revoke", "nobody-x"),
        ("coordinator", "remove", "nobody-x"),
        ("job", "run", "nobody-x"),
        ("job", "cancel", NONE_ID),
    ):
        code, line = refusal(cluster, *arguments)
        assert (code, line.partition(": ")[0]) == (4, "not_found"), arguments
    listed = output(cluster, "user", "ls") + output(cluster, "grant", "ls", "--file", tmp_path.name)
    assert "nobody-x" not in listed


@pytest.mark.long
def test_user_who_does_not_exist_is_created_if_that_is_said(cluster: Cluster, tmp_path: Path) -> None:
    cluster.store(b"content", tmp_path.name)
    on_file = ("read", "--file", tmp_path.name, "--create")
    output(cluster, "grant", "add", "nina-later", *on_file)
    output(cluster, "user", "disable", "nina", "--create")
    assert refusal(cluster, "token", "user", "nina")[0] == 5
    output(cluster, "user", "enable", "nina")
    for told in (b"nina-later is a new user.\n", b""):
        done = cluster.filestore("token", "user", "nina-later")
        cluster.remember(done.stdout.decode().strip())
        assert (done.returncode, done.stderr) == (0, told)
    output(cluster, "user", "set", "nina", "--group", "lab-7", "--role", "reader")
    for kind, name in (("user", "nina"), ("group", "lab-7"), ("role", "reader"), ("role", "service")):
        output(cluster, "grant", "add", name, "read", "--file", tmp_path.name, "--type", kind)


@pytest.mark.long
def test_token_of_a_user_lives_as_long_as_is_said(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    (minted,) = objects(cluster, "token", "user", "grace", "--ttl", "7d", "-o", str(path))
    assert (minted["user_id"], minted["token"], minted["token_file"]) == ("grace", "", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    cluster.remember(path.read_text().strip())
    left = datetime.fromisoformat(minted["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=6) < left <= timedelta(days=7)
    done = cluster.filestore("token", "user", "grace", "--ttl", "0")
    assert done.returncode == 2
    assert b"'--ttl': '0' is too short" in done.stderr


def test_join_token_is_listed_without_its_secret_and_ended(cluster: Cluster) -> None:
    (minted,) = objects(cluster, "token", "join", "--node-id", "later-2", "--ttl", "10m")
    cluster.remember(minted["token"])
    listed = {each["token_id"]: each for each in objects(cluster, "token", "ls")}
    assert (listed[minted["token_id"]]["node_id"], listed[minted["token_id"]]["uses"]) == ("later-2", 0)
    shown = output(cluster, "token", "ls")
    assert minted["token_id"] in shown
    assert minted["token"] not in shown
    assert output(cluster, "token", "rm", minted["token_id"]) == f"{minted['token_id']} is revoked.\n"
    assert minted["token_id"] not in output(cluster, "token", "ls")
    assert refusal(cluster, "token", "rm", minted["token_id"])[0] == 4
    assert cluster.filestore("token", "join", "--ttl", "59").returncode == 2


def test_members_are_listed_and_shown(cluster: Cluster) -> None:
    nodes = {each["id"]: each for each in objects(cluster, "node", "ls")}
    assert {node.id: node.url for node in cluster.nodes} == {
        node_id: each["url"] for node_id, each in nodes.items()
    }
    node = cluster.nodes[0]
    assert objects(cluster, "node", "show", node.id) == [nodes[node.id]]
    assert node.url in output(cluster, "node", "show", node.id)
    rows = output(cluster, "node", "ls").splitlines()
    assert [row.split()[0] for row in rows] == ["node", *sorted(nodes)]
    assert refusal(cluster, "node", "show", "nobody")[0] == 4
    listed = objects(cluster, "coordinator", "ls")
    assert {each["coordinator_id"] for each in listed} == {each.id for each in cluster.coordinators}
    shown = output(cluster, "coordinator", "ls")
    assert all(str(each.api_port) in shown for each in cluster.coordinators)


@pytest.mark.long
def test_members_are_listed_for_admins_only(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(cluster.user_token("henry"))
    for arguments in (("node", "ls"), ("user", "ls"), ("token", "ls"), ("job", "ls"), ("damaged",)):
        code, line = refusal(cluster, *arguments, FILESTORE_TOKEN_FILE=str(token))
        assert (code, line.partition(": ")[0]) == (3, "forbidden")


def test_run_of_a_job_is_followed_to_its_end(cluster: Cluster) -> None:
    run_id = output(cluster, "job", "run", "expire").strip()
    lines = output(cluster, "job", "watch", run_id).splitlines()
    assert lines[-1].startswith("expire completed")
    newest = objects(cluster, "job", "watch", "expire")[-1]
    assert (newest["job_name"], newest["status"]) == ("expire", "completed")
    (shown,) = objects(cluster, "job", "show", run_id)
    assert (shown["run_id"], shown["status"]) == (run_id, "completed")
    (run,) = objects(cluster, "job", "run", "expire", "--wait")
    assert run["status"] == "completed"
    assert refusal(cluster, "job", "watch", "no-such-job") == (
        4,
        "not_found: There is no run of a job named 'no-such-job'.",
    )
    assert refusal(cluster, "job", "cancel", run_id)[0] in (4, 5)


@pytest.mark.long
def test_status_is_shown_again_and_again_until_it_is_interrupted(cluster: Cluster) -> None:
    with subprocess.Popen(
        [FILESTORE, "status", "--watch", "--every", "0.2", "--json"],
        env=cluster.command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell makes what it starts in the background ignore SIGINT, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            rounds = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=30)
        finally:
            process.kill()
    assert all(len(each["nodes"]) == len(cluster.nodes) for each in rounds)
    assert (process.returncode, told.strip()) == (130, b"interrupted")


def test_any_operation_can_be_called(cluster: Cluster, tmp_path: Path) -> None:
    name = f"api-{tmp_path.name}"
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"name": name, "quota_bytes": 5}))
    (made,) = objects_in(output(cluster, "api", "POST", "/api/v1/buckets", "-d", f"@{body}"))
    assert (made["name"], made["quota_bytes"]) == (name, 5)
    path = f"buckets/{made['bucket_id']}"
    assert objects_in(output(cluster, "api", "get", path)) == [made]
    headers, _, answer = output(cluster, "api", "GET", path, "--include").partition("\n\n")
    assert json.loads(answer) == made
    etag = next(line.split(": ")[1] for line in headers.splitlines() if line.lower().startswith("etag: "))
    changed = output(
        cluster, "api", "PATCH", path, "-d", "@-", "-H", f"If-Match: {etag}", stdin=b'{"quota_bytes": 6}'
    )
    assert json.loads(changed)["quota_bytes"] == 6
    code, line = refusal(cluster, "api", "PATCH", path, "-d", '{"quota_bytes": 7}', "-H", f"If-Match:{etag}")
    assert (code, line.partition(": ")[0]) == (5, "precondition_failed")
    output(cluster, "api", "DELETE", path)
    assert refusal(cluster, "api", "GET", path)[0] == 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("POST", "buckets", "-d", "{"), "this is not valid JSON"),
        (("POST", "buckets", "-d", "[1]"), "expected a JSON object"),
        (("POST", "buckets", "-d", "[" * 100_000), "this is not valid JSON"),
        (("GET", "buckets", "-H", "nothing"), "is not NAME:VALUE"),
        (("GET", "buckets", "-H", "A: b\nC: d"), "is not NAME:VALUE"),
        (("GET", "buckets", "-H", "A b: c"), "is not NAME:VALUE"),
        (("BREW", "coffee"), "'BREW' is not one of"),
    ],
)
def test_call_that_cannot_be_made_is_wrong_usage(
    cluster: Cluster, arguments: tuple[str, ...], words: str
) -> None:
    done = cluster.filestore("api", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.long
def test_body_that_is_no_text_is_wrong_usage(cluster: Cluster, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b'{"name": "\xff"}')
    assert cluster.filestore("api", "POST", "buckets", "-d", f"@{body}").returncode == 2
    assert cluster.filestore("api", "POST", "buckets", "-d", "@-", stdin=body.read_bytes()).returncode == 2
    done = cluster.filestore("api", "POST", "buckets", "-d", "@/nowhere/body")
    assert (done.returncode, done.stderr) == (1, b"filestore: /nowhere/body: No such file or directory\n")


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_the_shell_takes(tmp_path: Path, shell: str) -> None:
    done = run_filestore(["completion", shell], {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert b"_FILESTORE_COMPLETE" in done.stdout
    script = tmp_path / "script"
    script.write_bytes(done.stdout)
    try:
        checked = subprocess.run([shell, "-n", str(script)], capture_output=True, timeout=30, check=False)
    except FileNotFoundError:
        pytest.skip(f"no {shell} here")
    assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.long
def test_shell_completes_commands_and_options(tmp_path: Path) -> None:
    """As the script of bash asks for it."""

    def completed(*words: str) -> list[str]:
        environment = {
            "_FILESTORE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("filestore", *words)),
            "COMP_CWORD": str(len(words)),
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
        }
        lines = run_filestore([], environment).stdout.decode().splitlines()
        return [line.partition(",")[2] for line in lines]

    assert completed("bu") == ["bucket"]
    assert completed("bucket", "s") == ["set", "show"]
    assert completed("ls", "--ki") == ["--kind"]
    assert completed("ls", "--kind", "") == ["project", "image", "backup"]


JSON_COMMANDS = (
    ("ls",),
    ("du",),
    ("whoami",),
    ("context", "ls"),
    ("bucket", "ls"),
    ("user", "ls"),
    ("user", "show", "admin"),
    ("token", "ls"),
    ("node", "ls"),
    ("coordinator", "ls"),
    ("coordinator", "status"),
    ("status",),
    ("damaged",),
    ("job", "ls"),
)


@pytest.mark.long
@pytest.mark.parametrize("arguments", JSON_COMMANDS, ids=" ".join)
def test_json_is_one_object_a_line(cluster: Cluster, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cluster.filestore(*arguments, "--json", XDG_CONFIG_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, b"")
    found = objects_in(done.stdout.decode())
    assert found or arguments in (("ls",), ("du",), ("context", "ls"), ("token", "ls"))


@pytest.mark.long
def test_nothing_to_list_is_said_to_people_and_not_to_programs(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(cluster.user_token("nobody-with-files"))
    done = cluster.filestore("ls", FILESTORE_TOKEN_FILE=str(token))
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"No files. `filestore put FILE` uploads one.\n"
    done = cluster.filestore("ls", "--json", FILESTORE_TOKEN_FILE=str(token))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

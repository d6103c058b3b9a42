"""`filestore serve restic`: who is let in, what it says, and what is sent again."""

import gzip
import hashlib
import re
import secrets
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.restic_server import BASIC, LOGIN, Served, ask, gateway, password_file
from tests.cluster.command_output import output
from tests.cluster.harness import Cluster, peak_memory_bytes
from tests.cluster.renewed import Renewed

MIB = 1 << 20


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def bucket(cluster: Cluster) -> str:
    name = f"restic-{secrets.token_hex(3)}"
    assert cluster.post("/buckets", {"name": name}).status == 201
    return name


@pytest.fixture(scope="module")
def served(cluster: Cluster, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = password_file(tmp_path_factory.mktemp("login"))
    file.write_text(f"# who may\n{LOGIN}\nother:too:with:colons\n")
    with gateway(cluster, bucket, "--password-file", str(file)) as found:
        yield found


@pytest.mark.long
def test_silent_and_malformed_connections_hold_nothing_up(served: Served) -> None:
    """Half a head is answered after ten seconds, and holds no descriptor from then on."""
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=30))
            for _ in range(50)
        ]
        for each in silent:
            each.sendall(b"GET / HTTP/1.1\r\n")
        for head in (b"Content-Length: -4", b"Transfer-Encoding: gzip\r\nContent-Length: 1"):
            with socket.create_connection(("127.0.0.1", served.port), timeout=30) as malformed:
                malformed.sendall(b"POST /r/config HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
                assert malformed.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert ask(served.port, "GET", "/r/data/").json == []
        for each in silent:
            assert each.recv(1000).startswith(b"HTTP/1.1 408 ")
            while each.recv(1000):
                pass


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_nobody_is_let_in_without_a_password_of_the_file(served: Served, method: str) -> None:
    strangers = ("", "Basic", "Basic !", "Bearer x", "Basic cmVzdGljOg==", f"Basic {'A' * 400}")
    for login in (*strangers, BASIC["Authorization"].replace("Basic", "Bearer"), BASIC["Authorization"][:-1]):
        for path in ("/r/config", "/r/data/", f"/r/snapshots/{name_of(b'')}", "/r/?create=true", "/nowhere"):
            headers = {"Authorization": login} if login else {}
            answer = ask(served.port, method, path, login=headers)
            assert (answer.status, "www-authenticate" in answer.headers) == (401, True)


def test_each_line_of_the_file_lets_in(served: Served) -> None:
    assert ask(served.port, "GET", "/r/data/").json == []
    other = {"Authorization": "Basic b3RoZXI6dG9vOndpdGg6Y29sb25z"}
    assert ask(served.port, "GET", "/r/data/", login=other).json == []
    comment = {"Authorization": "Basic IyB3aG8gbWF5"}
    assert ask(served.port, "GET", "/r/data/", login=comment).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "attacker.example:8000"}, 421),
        ({"Host": "127.0.0.1.attacker.example"}, 421),
        ({"Host": "localhost@attacker.example"}, 400),
        ({"Host": ""}, 421),
        ({"Host": "[::1"}, 400),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Encoding": "br"}, 415),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
    ],
)
def test_no_web_page_and_no_encoding_is_served(served: Served, headers: dict[str, str], status: int) -> None:
    content = secrets.token_bytes(100)
    answer = ask(served.port, "POST", f"/w/data/{name_of(content)}", body=content, headers=headers)
    assert answer.status == status
    found = ask(served.port, "GET", f"/w/data/{name_of(content)}")
    assert found.status == (200 if status == 200 else 404)


def test_compressed_body_is_not_unpacked(served: Served) -> None:
    before = peak_memory_bytes(served.process.pid)
    bomb = gzip.compress(bytes(256 * MIB), 1)
    assert (
        ask(served.port, "POST", "/w/config", body=bomb, headers={"Content-Encoding": "gzip"}).status == 415
    )
    assert peak_memory_bytes(served.process.pid) - before < 32 * MIB


@pytest.mark.parametrize("size", [0, 1000, 300_000])
def test_what_is_sent_again_is_stored_already(served: Served, size: int) -> None:
    content = secrets.token_bytes(size)
    for kind in ("data", "keys", "locks", "snapshots", "index"):
        path = f"/again/{kind}/{name_of(content)}"
        assert [ask(served.port, "POST", path, body=content).status for _ in range(2)] == [200, 200]
        assert ask(served.port, "POST", path, body=content + b"x").status == 400
        assert ask(served.port, "GET", path).body == content
    path = f"/again-{size}/config"
    assert [ask(served.port, "POST", path, body=content).status for _ in range(2)] == [200, 200]
    assert ask(served.port, "POST", path, body=content + b"x").status == 403
    assert ask(served.port, "GET", path).body == content


def test_repositories_within_others_are_told_apart(served: Served) -> None:
    content = secrets.token_bytes(10)
    path = f"/data/{name_of(content)}"
    assert ask(served.port, "POST", f"/ann/lab{path}", body=content).status == 200
    assert ask(served.port, "POST", "/ann/lab/config", body=b"of ann").status == 200
    assert ask(served.port, "GET", "/ann/lab/config").body == b"of ann"
    assert ask(served.port, "GET", "/ann/lab/data/").json == [name_of(content)]
    for other in ("ann", "lab", "bob/lab", "ann/lab/more"):
        assert ask(served.port, "GET", f"/{other}{path}").status == 404
        assert ask(served.port, "GET", f"/{other}/data/").json == []
    for name in ("ann/data", "locks/ann", "config/x", "ann//lab", "ann/..", "ann/.x"):
        assert ask(served.port, "GET", f"/{name}/config").status == 404


def test_files_of_repositories_are_listed_only_when_they_are_asked_for(
    cluster: Cluster, served: Served, bucket: str
) -> None:
    content = secrets.token_bytes(10)
    assert ask(served.port, "POST", f"/hidden/data/{name_of(content)}", body=content).status == 200
    other = output(cluster, "put", "-", "--filename", "other", stdin=content).strip()
    name = f"restic:hidden:data:{name_of(content)}"
    shown = output(cluster, "ls")
    assert other in shown
    assert "restic:" not in shown
    for asked in (("--all",), ("--name", name), ("--bucket", bucket)):
        assert name in output(cluster, "ls", *asked)


def test_first_start_makes_a_password_that_is_printed_nowhere(
    cluster: Cluster, bucket: str, tmp_path: Path
) -> None:
    with gateway(cluster, bucket, XDG_CONFIG_HOME=str(tmp_path / "config")) as served:
        file = tmp_path / "config" / "filestore" / "restic.password"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        user, password = file.read_text().strip().split(":")
        assert user == "restic"
        assert len(password) >= 32
        assert password not in served.introduction
        command = served.introduction.splitlines()[-1]
        printed = subprocess.run(
            ["sh", "-c", f'{command}\nprintf %s "$RESTIC_REPOSITORY"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert printed.stdout == f"rest:http://{user}:{password}@127.0.0.1:{served.port}/NAME/"


def test_file_that_others_can_read_or_that_says_nothing_is_refused(
    cluster: Cluster, bucket: str, tmp_path: Path
) -> None:
    for text, mode, code, told in (
        (LOGIN, 0o640, 1, b"chmod 600"),
        ("", 0o600, 2, b"USER:PASSWORD"),
        (":x", 0o600, 2, b"USER:"),
    ):
        file = password_file(tmp_path)
        file.write_text(text)
        file.chmod(mode)
        done = cluster.filestore(
            *("serve", "restic", "--bucket", bucket, "--listen", "127.0.0.1:0", "--password-file", str(file))
        )
        assert done.returncode == code
        assert told in done.stderr


def test_socket_is_its_owners_and_only_appends(cluster: Cluster, bucket: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):  # the second replaces what a server that was killed has left behind
        with gateway(cluster, bucket, "--listen", f"unix:{path}", "--append-only") as served:
            assert f"restic -r rest:http+unix://{path}:/NAME/" in served.introduction
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            second = cluster.filestore("serve", "restic", "--bucket", bucket, "--listen", f"unix:{path}")
            assert second.returncode == 5
            content = secrets.token_bytes(10)
            for kind in ("data", "keys", "snapshots", "index", "locks"):
                name = f"/s/{kind}/{name_of(content)}"
                assert ask(path, "POST", name, body=content, login={}).status == 200
                assert ask(path, "DELETE", name, login={}).status == (200 if kind == "locks" else 403)
                assert ask(path, "GET", name, login={}).status == (404 if kind == "locks" else 200)
            assert ask(path, "POST", "/s/config", body=b"x", login={}).status == 200
            assert ask(path, "DELETE", "/s/config", login={}).status == 403
            assert ask(path, "GET", "/s/data/", headers={"Origin": "null"}, login={}).status == 403
        assert not path.exists()
        left = subprocess.run(
            ["python3", "-c", "import socket,sys;socket.socket(socket.AF_UNIX).bind(sys.argv[1])", str(path)],
            check=True,
        )
        assert left.returncode == 0


def test_token_is_read_again_and_its_end_is_told(cluster: Cluster, tmp_path: Path) -> None:
    renewed = Renewed(cluster, tmp_path)
    bucket = f"own-{secrets.token_hex(3)}"
    made = cluster.filestore("bucket", "create", bucket, FILESTORE_TOKEN_FILE=str(renewed.file))
    assert made.returncode == 0, made.stderr
    options = ("--no-auth", "--token-file", str(renewed.file))
    with gateway(cluster, bucket, *options, is_quiet=False) as served:
        assert ask(served.port, "POST", "/r/config", body=b"x", login={}).status == 200
        renewed.end()
        for _ in range(2):
            assert ask(served.port, "GET", "/r/keys/", login={}).status == 503  # restic tries that again
        told = served.said.readline()
        assert re.search(r"unauthorized: The token in .*user\.token", told)
        renewed.file.unlink()
        assert ask(served.port, "GET", "/r/keys/", login={}).status == 503
        assert "Cannot read the token" in served.said.readline()
        renewed.renew()
        assert ask(served.port, "GET", "/r/keys/", login={}).json == []
        assert "again" in served.said.readline()

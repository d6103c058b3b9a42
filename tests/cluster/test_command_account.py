"""`filestore login`, `logout`, `context`, `whoami`: whom the command trusts, and what it keeps."""

import hashlib
import json
import os
import re
import ssl
import stat
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import wait_until
from tests.cluster import clocks
from tests.cluster.command_output import Terminal, objects_in, refusal
from tests.cluster.harness import FILESTORE, Cluster


def fingerprint(cluster: Cluster) -> str:
    der = ssl.PEM_cert_to_DER_cert(cluster.ca.read_text())
    return hashlib.sha256(der).hexdigest()


class Home:
    """Somebody who has told the command nothing yet, in a directory where no cluster is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FILESTORE_")}
        self.environment = kept | {
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "XDG_STATE_HOME": str(directory / "state"),
        }
        self.config = directory / "config" / "filestore"

    def run(
        self, *arguments: str, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [FILESTORE, *arguments],
            env=self.environment | environment,
            cwd=self.directory,
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def login(self, cluster: Cluster, *arguments: str) -> None:
        done = self.run(
            *("login", cluster.nodes[0].url, "--fingerprint", fingerprint(cluster)),
            *("--token-file", str(cluster.token_file), *arguments),
        )
        assert done.returncode == 0, done.stderr

    def user(self, *arguments: str, **environment: Any) -> str:
        done = self.run("whoami", "--json", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["user_id"])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir()
    return Home(tmp_path / "home")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def token_in(directory: Path, cluster: Cluster, user_id: str) -> str:
    """A file with a token of a user."""
    path = directory / f"{user_id}.token"
    path.write_text(cluster.user_token(user_id))
    path.chmod(0o600)
    return str(path)


def test_login_by_fingerprint_keeps_what_later_commands_need_for_this_user_alone(
    cluster: Cluster, home: Home
) -> None:
    home.login(cluster)
    assert home.user() == "admin"
    config, token = home.config / "config.toml", home.config / "127.0.0.1.token"
    assert (mode(home.config), mode(config), mode(token)) == (0o700, 0o600, 0o600)
    kept = tomllib.loads(config.read_text())
    assert kept["current"] == "127.0.0.1"
    assert kept["contexts"]["127.0.0.1"]["urls"] == [cluster.nodes[0].url]
    assert cluster.admin_token not in config.read_text()
    assert token.read_text().strip() == cluster.admin_token
    assert home.run("ls").returncode == 0


@pytest.mark.long
def test_fingerprint_may_be_written_as_openssl_does(cluster: Cluster, home: Home) -> None:
    plain = fingerprint(cluster).upper()
    with_colons = ":".join(plain[at : at + 2] for at in range(0, len(plain), 2))
    done = home.run(
        *("login", cluster.nodes[1].url, "--fingerprint", with_colons, "--name", "lab", "--token-file", "-"),
        stdin=cluster.admin_token.encode() + b"\n",
    )
    assert done.returncode == 0, done.stderr
    assert b"Signed in as admin. The context is lab, and the token expires 2" in done.stdout


@pytest.mark.long
def test_wrong_fingerprint_is_refused_before_the_token_is_read(cluster: Cluster, home: Home) -> None:
    done = home.run(
        *("login", cluster.nodes[0].url, "--fingerprint", "0" * 64, "--token-file", "/nowhere/token")
    )
    assert (done.returncode, done.stdout) == (6, b"")
    assert done.stderr.startswith(b"filestore: untrusted_server: ")
    assert fingerprint(cluster).encode() in done.stderr
    assert not home.config.exists()


@pytest.mark.long
def test_fingerprint_that_is_none_is_wrong_usage(cluster: Cluster, home: Home) -> None:
    done = home.run("login", cluster.nodes[0].url, "--fingerprint", "12:34")
    assert done.returncode == 2
    assert b"--fingerprint: 64 hexadecimal digits" in done.stderr


@pytest.mark.long
def test_nothing_is_trusted_where_nobody_can_be_asked(cluster: Cluster, home: Home) -> None:
    done = home.run("login", cluster.nodes[0].url, "--token-file", str(cluster.token_file))
    assert (done.returncode, done.stdout) == (2, b"")
    assert fingerprint(cluster).encode() in done.stderr
    assert b"--fingerprint" in done.stderr
    assert not home.config.exists()


@pytest.mark.parametrize("answer", ["n", "", "y"])
def test_who_sits_at_a_terminal_is_asked_and_the_token_is_not_shown(
    cluster: Cluster, home: Home, answer: str
) -> None:
    with Terminal(["login", cluster.nodes[0].url], home.environment, home.directory) as terminal:
        terminal.wait_for("Is this the fingerprint from the operator? [y/N]")
        assert fingerprint(cluster) in terminal.shown
        terminal.type(answer)
        if answer == "y":
            terminal.wait_for("Token:")
            terminal.type(cluster.admin_token)
        code = terminal.end()
    assert cluster.admin_token not in terminal.shown
    if answer == "y":
        assert (code, home.user()) == (0, "admin")
    else:
        assert code == 6
        assert "was not confirmed. Nothing was stored." in terminal.shown
        assert not home.config.exists()


@pytest.mark.long
def test_join_token_names_the_fingerprint(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    join = tmp_path / "join"
    join.write_text(cluster.join_token())
    arguments = ("--join-token-file", str(join), "--token-file", str(cluster.token_file))
    done = home.run("login", cluster.nodes[0].url, *arguments)
    assert done.returncode == 0, done.stderr
    assert home.user() == "admin"


@pytest.mark.long
def test_root_certificate_that_is_at_hand_is_enough(cluster: Cluster, home: Home) -> None:
    arguments = ("--ca", str(cluster.ca), "--token-file", str(cluster.token_file))
    assert home.run("login", cluster.nodes[0].url, *arguments).returncode == 0
    assert home.user() == "admin"
    both = home.run("login", cluster.nodes[0].url, *arguments, "--fingerprint", fingerprint(cluster))
    assert both.returncode == 2


@pytest.mark.long
def test_second_node_is_asked_for_the_root_when_the_first_is_away(cluster: Cluster, home: Home) -> None:
    urls = ("https://127.0.0.1:1", cluster.nodes[0].url)
    arguments = ("--fingerprint", fingerprint(cluster), "--token-file", str(cluster.token_file))
    done = home.run("login", *urls, *arguments)
    assert done.returncode == 0, done.stderr
    nobody = home.run("login", urls[0], *arguments)
    assert (nobody.returncode, nobody.stderr) == (
        6,
        b"filestore: unavailable: https://127.0.0.1:1: Connection refused.\n",
    )


def test_token_that_is_not_taken_is_not_kept(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    arguments = ("--fingerprint", fingerprint(cluster), "--token-file", str(token))
    done = home.run("login", cluster.nodes[0].url, *arguments)
    assert (done.returncode, done.stdout) == (3, b"")
    assert f"unauthorized: The token in {token} was rejected" in done.stderr.decode()
    assert not home.config.exists()


def test_one_of_several_contexts_is_used_until_another_is(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    home.login(cluster, "--name", "lab")
    carol = token_in(tmp_path, cluster, "carol")
    arguments = ("--fingerprint", fingerprint(cluster), "--name", "carols", "--token-file", carol)
    assert home.run("login", cluster.nodes[1].url, *arguments).returncode == 0
    assert home.user() == "carol"  # the newest
    listed = objects_in(home.run("context", "ls", "--json").stdout.decode())
    assert [(each["name"], each["current"], each["user"]) for each in listed] == [
        ("carols", True, "carol"),
        ("lab", False, "admin"),
    ]
    assert home.run("context", "use", "lab").returncode == 0
    assert home.user() == "admin"
    assert home.user("--context", "carols") == "carol"
    assert home.user(FILESTORE_CONTEXT="carols") == "carol"
    rows = home.run("context", "ls").stdout.decode().splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["carols", "carol"], ["*", "lab"]]
    done = home.run("context", "use", "elsewhere")
    assert (done.returncode, done.stderr.decode()) == (
        4,
        "filestore: not_found: You are not signed in to 'elsewhere'. The known clusters are: carols, lab.\n",
    )


@pytest.mark.long
def test_options_win_over_the_environment_and_that_over_what_is_kept(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    home.login(cluster, "--name", "lab")
    dave, erin = (token_in(tmp_path, cluster, name) for name in ("dave", "erin"))
    assert home.user(FILESTORE_TOKEN_FILE=dave) == "dave"
    assert home.user("--token-file", erin, FILESTORE_TOKEN_FILE=dave) == "erin"
    elsewhere = {"FILESTORE_TOKEN_FILE": dave, "FILESTORE_URL": "https://127.0.0.1:1"}
    assert home.user("--context", "lab", **elsewhere) == "admin"  # it is an option: it brings all three
    assert home.user("--context", "lab", "--token-file", erin, **elsewhere) == "erin"


@pytest.mark.long
def test_development_cluster_in_this_directory_comes_before_what_is_kept(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    carol = token_in(tmp_path, cluster, "carol")
    arguments = ("--fingerprint", fingerprint(cluster), "--token-file", carol, "--name", "lab")
    assert home.run("login", cluster.nodes[0].url, *arguments).returncode == 0
    (home.directory / ".filestore").mkdir()
    (home.directory / ".filestore" / "cluster.json").symlink_to(cluster.cluster_file)
    assert home.user() == "admin"
    assert home.user("--context", "lab") == "carol"


def test_logout_of_all_ends_every_token_before_it_forgets_the_cluster(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    token = Path(token_in(tmp_path, cluster, "lena"))
    arguments = ("--fingerprint", fingerprint(cluster), "--name", "lab", "--token-file", str(token))
    assert home.run("login", cluster.nodes[0].url, *arguments).returncode == 0
    other = cluster.user_token("lena")
    done = home.run("logout", "--all")
    assert done.stdout.endswith(b"all your tokens there are rejected from now on.\n"), done.stderr
    for each in (token.read_text(), other):
        assert cluster.get("/auth/whoami", token=each, stranger=True).status == 401
    assert not [path for path in home.config.iterdir() if path.suffix == ".token"]
    nowhere = home.run("logout", "elsewhere", "--all")
    assert (nowhere.returncode, b"not signed in to 'elsewhere'" in nowhere.stderr) == (4, True)


@pytest.mark.long
def test_logout_leaves_nothing_and_the_next_command_says_what_to_do(cluster: Cluster, home: Home) -> None:
    home.login(cluster, "--name", "lab")
    done = home.run("logout")
    assert (done.returncode, done.stdout[:4]) == (0, b"lab ")
    assert [path.name for path in home.config.iterdir()] == ["config.toml"]
    assert cluster.admin_token not in (home.config / "config.toml").read_text()
    done = home.run("ls")
    assert done.returncode == 2
    assert b"`filestore login URL`" in done.stderr
    assert home.run("logout").returncode == 4
    assert objects_in(home.run("context", "ls", "--json").stdout.decode()) == []


@pytest.mark.parametrize("text", ["[[[", "current = 5", "\udcff"])
def test_configuration_that_cannot_be_read_is_named(home: Home, text: str) -> None:
    home.config.mkdir(parents=True)
    (home.config / "config.toml").write_text(text, "utf-8", "surrogateescape")
    done = home.run("ls")
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"filestore: invalid_request: Cannot use {home.config / 'config.toml'}: " in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.long
def test_commands_that_need_no_cluster_look_for_none(home: Home) -> None:
    home.config.mkdir(parents=True)
    (home.config / "config.toml").write_text("[[[")
    for arguments in (("completion", "bash"), ("--help",), ("ls", "--help"), ("--version",)):
        assert home.run(*arguments).returncode == 0, arguments


def test_whoami_says_who_and_until_when(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    home.login(cluster)
    shown = home.run("whoami").stdout.decode()
    assert shown.split()[:2] == ["user_id", "admin"]
    assert "token_expires_at" in shown
    assert re.search(
        r"\nYour token expires 2\d{3}-\d\d-\d\d \d\d:\d\d \S+\.\n$", home.run("status").stdout.decode()
    )


@pytest.mark.long
def test_expired_token_is_told_with_since_when_and_what_to_do(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = cluster.user_token("late", ttl_seconds=1)
    path.write_text(token)
    path.chmod(0o600)
    wait_until(lambda: cluster.get("/auth/whoami", token=token).status == 401, what="its end", timeout_s=120)
    code, line = refusal(cluster, "ls", FILESTORE_TOKEN_FILE=str(path))
    assert code == 3
    assert line.startswith(f"unauthorized: The token of late in {path} expired at 2")
    assert " ago. " in line
    assert line.endswith("An admin can create a new one: filestore token user late")


@pytest.mark.long
def test_revoked_token_is_told_as_such(cluster: Cluster, tmp_path: Path) -> None:
    token = token_in(tmp_path, cluster, "gone")
    assert cluster.filestore("user", "revoke", "gone").returncode == 0
    code, line = refusal(cluster, "ls", FILESTORE_TOKEN_FILE=token)
    assert code == 3
    assert line.startswith(f"unauthorized: The token in {token} was rejected: it was revoked, ")
    ahead = {"LD_PRELOAD": str(clocks.library(tmp_path)), "CLOCK_SHIFT": str(5 * 86_400)}
    assert refusal(cluster, "ls", FILESTORE_TOKEN_FILE=token, **ahead) == (3, line)


def test_token_is_renewed_in_its_place_while_it_lives(cluster: Cluster, tmp_path: Path) -> None:
    path = Path(token_in(tmp_path, cluster, "leo"))
    before = path.read_text().strip()
    done = cluster.filestore("token", "renew", "--ttl", "2d", FILESTORE_TOKEN_FILE=str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"The token in {path} is valid until 2".encode())
    after = cluster.remember(path.read_text().strip())
    assert after != before
    assert mode(path) == 0o600
    for token in (before, after):
        assert cluster.get("/auth/whoami", token=token).json["user_id"] == "leo"
    left = ends_at(cluster, after) - datetime.now(UTC)
    assert timedelta(days=1) < left <= timedelta(days=2)


@pytest.mark.long
def test_renewed_token_may_be_written_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    path, other = Path(token_in(tmp_path, cluster, "mia")), tmp_path / "other"
    before = path.read_text()
    done = cluster.filestore(
        "token", "renew", "--ttl", "1h", "-o", str(other), "--json", FILESTORE_TOKEN_FILE=str(path)
    )
    (minted,) = objects_in(done.stdout.decode())
    assert (minted["user_id"], minted["token"], minted["token_file"]) == ("mia", "", str(other))
    assert path.read_text() == before
    assert minted["expires_at"] == ends_at(cluster, cluster.remember(other.read_text().strip())).strftime(
        "%Y-%m-%dT%H:%M:%S.000Z"
    )


@pytest.mark.long
def test_renewal_of_a_context_goes_into_its_file(cluster: Cluster, home: Home) -> None:
    home.login(cluster, "--name", "lab")
    done = home.run("token", "renew", "--ttl", "1h")
    assert done.returncode == 0, done.stderr
    cluster.remember((home.config / "lab.token").read_text().strip())
    assert home.user() == "admin"


def ends_at(cluster: Cluster, token: str) -> datetime:
    return datetime.fromisoformat(cluster.get("/auth/whoami", token=token).json["token_expires_at"])

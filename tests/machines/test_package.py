"""The Debian package and the command in one file: what is in them, and that they are made the same again."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.debian_packages import require
from tests.documents import PAGES
from tests.machines.products import made
from tests.sources import ROOT
from tests.test_release import DEVELOPMENT_ONLY

INSTALL_TIMEOUT_S = 600.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

START_TIMEOUT_S = 60.0
COMPLETIONS = (
    "usr/share/bash-completion/completions/filestore",
    "usr/share/zsh/vendor-completions/_filestore",
    "usr/share/fish/vendor_completions.d/filestore.fish",
)


@pytest.fixture(scope="session")
def archive() -> Path:
    """The .pyz, made now."""
    found = made("pyz")
    print(f"{found.name}: {found.stat().st_size / 1e6:.1f} MB")
    return found


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_lintian_finds_no_error(package: Path) -> None:
    require({"lintian": "lintian"}, timeout_s=INSTALL_TIMEOUT_S)
    done = subprocess.run(["lintian", "--fail-on", "error", str(package)], capture_output=True, text=True)
    print(done.stdout, f"{package.name}: {package.stat().st_size / 1e6:.1f} MB")
    assert done.returncode == 0, done.stdout


def test_package_has_what_users_need_and_nothing_for_development(package: Path) -> None:
    files = output("dpkg-deb", "--contents", str(package))
    assert "site-packages/aiohttp/" in files
    for name in DEVELOPMENT_ONLY:
        assert f"site-packages/{name.replace('-', '_')}" not in files, name
    for place in COMPLETIONS:
        assert f" ./{place}\n" in files, place
    for unit in (ROOT / "deploy/gns3/units").iterdir():
        assert f" ./lib/systemd/system/{unit.name}\n" in files, unit.name
    for page in PAGES:
        assert f" ./usr/share/doc/filestore/docs/{page.name}\n" in files, page.name
    assert " ./usr/share/doc/filestore/docs/reference/commands.md\n" in files
    edited = output("dpkg-deb", "-I", str(package), "conffiles").split()
    assert edited == ["/etc/filestore/coordinator.toml", "/etc/filestore/node.toml"]


def test_package_is_the_same_when_it_is_made_again(package: Path) -> None:
    before = hashlib.sha256(package.read_bytes()).hexdigest()
    assert made("deb") == package
    assert hashlib.sha256(package.read_bytes()).hexdigest() == before


@contextmanager
def running(*command: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def test_one_file_is_a_whole_cluster(archive: Path, tmp_path: Path) -> None:
    """The child processes of `dev`, and the workers of a node, find in it what they need."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    command, data = (python, str(archive)), tmp_path / "data"
    with running(*command, "dev", "--data", str(data), home=tmp_path):
        wait_until((data / "cluster.json").exists, what="a cluster", timeout_s=START_TIMEOUT_S)
        cluster = json.loads((data / "cluster.json").read_text())
        content, back = tmp_path / "content", tmp_path / "back"
        content.write_bytes(os.urandom(1000))
        access = ("--url", cluster["nodes"][0]["url"], "--ca", cluster["ca"])
        token = ("--token-file", cluster["admin_token_file"])
        for words in (("put", str(content), "--filename", "one"), ("get", "one", "-o", str(back))):
            environment = os.environ | {"HOME": str(tmp_path)}
            subprocess.run([*command, *words, *access, *token], env=environment, check=True)
        assert back.read_bytes() == content.read_bytes()

"""The long suite of signing in: not part of `make test`, run by `make sso`."""

import stat
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.browser.chromium import Browser, Page
from tests.browser.conftest import PACKAGES
from tests.cluster.harness import Cluster, run_filestore
from tests.debian_packages import require
from tests.sso.real_provider import SECRET, RealProvider

BUCKET = "shared"
ROOT = Path(__file__).resolve().parents[2]


def redirects(cluster: Cluster, name: str = "uni") -> list[str]:
    """The redirect URIs of the console."""
    return [f"{member.url}/console/sign-in/{name}" for member in cluster.members]


def setting(provider: RealProvider, name: str = "uni") -> Sequence[str]:
    """The arguments of the command with which an operator lets people of the group netlab sign in."""
    client = ["--client-id", "filestore", "--command-client-id", "filestore-command", "--secret-file", "-"]
    groups = ["--allow-group", "netlab", "--admin-group", "staff"]
    return [
        "sso",
        "set",
        name,
        "--issuer",
        provider.issuer,
        *client,
        *groups,
        "--label",
        f"{name} University",
    ]


def wait_for(cluster: Cluster, *names: str) -> None:
    """Wait until each member offers these providers to people, and no others."""

    def offers(member: Member) -> bool:
        listed = cluster.get("/auth/providers", node=member, token=None).json["providers"]
        return {each["name"] for each in listed} == {*names}

    wait_until(lambda: all(map(offers, cluster.members)), what=f"{names} at every member", timeout_s=30)


@pytest.fixture(scope="session")
def provider(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProvider]:
    """A real provider that the cluster knows as uni; members of its group netlab read a bucket."""
    directory = tmp_path_factory.mktemp("provider")
    with RealProvider(directory, redirects=redirects(cluster)) as started:
        for arguments in (
            setting(started),
            ["bucket", "create", BUCKET],
            ["grant", "add", "netlab", "read", "--type", "group", "--bucket", BUCKET, "--create"],
        ):
            done = cluster.filestore(*arguments, stdin=SECRET.encode() + b"\n")
            assert done.returncode == 0, done.stderr
        wait_for(cluster, "uni")
        yield started
        for secret in started.secrets():
            cluster.remember(secret)
        states = [cluster.data(member) for member in cluster.coordinators]
        held = b"".join(path.read_bytes() for state in states for path in state.rglob("*") if path.is_file())
        held += b"".join(cluster.get("/metrics", node=member).body for member in cluster.members)
        assert not [secret for secret in started.secrets() if secret.encode() in held]


@pytest.fixture(autouse=True)
def known(provider: RealProvider) -> None:
    """Whom the provider knows at the beginning of each test."""
    provider.know(alice=["netlab"], bob=["netlab", "staff"], carol=["other"])


class Desk:
    """The terminal of a person who signs in with the command, in a home of its own."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._cluster = cluster
        self.home = home
        self.files = home / "config" / "filestore"
        self.browser = home / "browser"
        self.browser.write_text(
            f"#!/bin/sh\nexec > {home}/browser.log 2>&1\ncd {ROOT}\n"
            f'exec {sys.executable} -m tests.sso.person "$PERSON" "$1"\n'
        )
        self.browser.chmod(self.browser.stat().st_mode | stat.S_IXUSR)

    def environment(self, person: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self._cluster.command_environment().items()
            if not name.startswith("FILESTORE_")
        }
        return kept | {
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "BROWSER": str(self.browser),
            "PERSON": person,
        }

    def run(self, *arguments: str, person: str = "alice") -> CompletedProcess[bytes]:
        return run_filestore(arguments, self.environment(person))

    def output_of(self, *arguments: str, person: str = "alice") -> str:
        done = self.run(*arguments, person=person)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def login(self, person: str = "alice", *options: str) -> CompletedProcess[bytes]:
        url = self._cluster.nodes[0].url
        return self.run("login", url, "--ca", str(self._cluster.ca), "--name", "lab", *options, person=person)


@pytest.fixture
def desk(cluster: Cluster, provider: RealProvider, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path)


@pytest.fixture(scope="session")
def browser(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser of somebody who has installed the cluster's root certificate."""
    require(PACKAGES)
    with Browser(tmp_path_factory.mktemp("browser"), root=cluster.ca) as started:
        yield started


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """An empty tab of a profile of its own."""
    async with Page(browser) as opened:
        yield opened

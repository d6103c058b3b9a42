"""Signing in with the command and a real provider: by a browser, by a code; renewed, and ended."""

import asyncio
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from deploy.base.signed_in import KeptSignIn
from tests.cluster.harness import FILESTORE, Cluster
from tests.sso.conftest import BUCKET, Desk
from tests.sso.person import Person
from tests.sso.real_provider import RealProvider

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def kept(desk: Desk) -> KeptSignIn:
    return msgspec.json.decode((desk.files / "lab.sign-in").read_bytes(), type=KeptSignIn)


def make_due(desk: Desk) -> str:
    """Let the token be renewed by the next command; return it."""
    due = msgspec.structs.replace(kept(desk), renew_at_s=0.0)
    (desk.files / "lab.sign-in").write_bytes(msgspec.json.encode(due))
    return (desk.files / "lab.token").read_text()


def test_student_of_the_group_signs_in_and_sees_the_shared_bucket(desk: Desk, cluster: Cluster) -> None:
    content = cluster.directory / "lab.txt"
    content.write_text("a lab")
    put = cluster.filestore("put", str(content), "--bucket", BUCKET, "--if-exists", "replace")
    assert put.returncode == 0, put.stderr
    done = desk.login()
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().startswith(
        "Signed in as uni:alice. The context is lab, and the token is renewed"
    )
    assert "lab.txt" in desk.output_of("ls", "--bucket", BUCKET)
    assert desk.run("sso", "show", "uni").returncode == 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in desk.files.glob("lab.[st]*"))
    assert "command, uni University" in desk.output_of("whoami", "--sessions")


def test_group_of_admins_makes_an_admin_and_another_group_does_not_sign_in(desk: Desk) -> None:
    assert desk.login("bob").returncode == 0
    assert "uni:bob" in desk.output_of("user", "ls")
    done = desk.login("carol")
    assert done.returncode == 3
    assert b"You are in no group that may sign in here." in done.stderr


async def enter_code(address: str) -> None:
    async with Person("alice") as person:
        await person.visit(address)


def test_code_on_another_device_signs_in(desk: Desk) -> None:
    first = desk.login("alice", "--provider", "nobody")
    assert (first.returncode, b"There is no provider nobody" in first.stderr) == (4, True)
    url = desk._cluster.nodes[0].url
    command = [FILESTORE, "login", url, "--ca", str(desk._cluster.ca), "--name", "lab", "--device"]
    with subprocess.Popen(
        command, env=desk.environment("alice"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        address = next(found[1] for line in process.stderr if (found := re.search(r"Or open (\S+)", line)))
        asyncio.run(enter_code(address))
        output, _ = process.communicate(timeout=60)
    assert output.startswith("Signed in as uni:alice.")


def test_token_is_renewed_and_groups_follow(desk: Desk, provider: RealProvider) -> None:
    desk.login()
    before, renewal = make_due(desk), kept(desk).renewal
    provider.know(alice=["netlab", "chess"])
    assert "chess, netlab" in desk.output_of("whoami")
    assert (desk.files / "lab.token").read_text() != before
    assert kept(desk).renewal != renewal
    assert desk.output_of("whoami", "--sessions").count("command, uni University") >= 1


def test_lost_group_ends_the_session_with_the_next_renewal(desk: Desk, provider: RealProvider) -> None:
    desk.login()
    provider.know(alice=["other"])
    assert "netlab" in desk.output_of("whoami")
    make_due(desk)
    done = desk.run("whoami")
    assert done.returncode == 3
    assert b"your sign-in with uni has ended: You are in no group" in done.stderr
    assert b"Sign in again: filestore login" in done.stderr
    assert not (desk.files / "lab.sign-in").exists()


def test_account_that_is_gone_renews_nothing_and_its_token_lasts(desk: Desk, provider: RealProvider) -> None:
    desk.login()
    provider.know()
    make_due(desk)
    done = desk.run("whoami")
    assert (done.returncode, b"has ended" in done.stderr) == (0, True)


def test_provider_that_is_down_ends_no_session(desk: Desk, provider: RealProvider) -> None:
    desk.login()
    before = make_due(desk)
    provider.stop()
    try:
        assert "uni:alice" in desk.output_of("whoami")
        assert (desk.files / "lab.token").read_text() == before
        assert kept(desk).renew_at_s > 0
        failed = desk.login("alice", "--device")
        assert (failed.returncode, b"cannot be reached" in failed.stderr) == (6, True)
        tested = desk._cluster.filestore("sso", "test", "uni")
        assert (tested.returncode, tested.stdout.split()[-1] != b"") == (10, True)
    finally:
        provider.start()


def test_disabled_user_is_rejected_at_once(desk: Desk, cluster: Cluster) -> None:
    desk.login()
    assert cluster.filestore("user", "disable", "uni:alice").returncode == 0
    try:
        assert desk.run("whoami").returncode == 3
        done = desk.login()
        assert (done.returncode, b"This user is disabled." in done.stderr) == (3, True)
    finally:
        assert cluster.filestore("user", "enable", "uni:alice").returncode == 0


def test_logout_ends_the_session_at_the_provider(desk: Desk, cluster: Cluster) -> None:
    desk.login()
    renewal = kept(desk).renewal
    assert "The provider renews its token no more" in desk.output_of("logout")
    assert not list(desk.files.glob("lab.*"))
    answer = cluster.post("/auth/providers/uni/renewal", {"renewal": renewal}, token=None)
    assert answer.status == 403


def test_every_step_of_the_test_works(cluster: Cluster, provider: RealProvider) -> None:
    done = cluster.filestore("sso", "test", "uni")
    assert (done.returncode, b"failed" in done.stdout) == (0, False), done.stdout


def test_secret_is_no_argument_and_is_never_shown(
    cluster: Cluster, provider: RealProvider, tmp_path: Path
) -> None:
    shown = cluster.filestore("sso", "show", "uni", "--json")
    assert b'"has_secret": true' in shown.stdout or b'"has_secret":true' in shown.stdout
    for secret in provider.secrets():
        assert secret.encode() not in shown.stdout

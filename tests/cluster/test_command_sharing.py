"""`filestore bucket`, `grant` and `share`: where files lie, who may do what, and links for anybody."""

import stat
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.cluster import clocks
from tests.cluster.command_output import objects, objects_in, output, refusal
from tests.cluster.harness import Cluster


@pytest.fixture
def name(tmp_path: Path) -> str:
    """One that no other test has."""
    return f"lab-{tmp_path.name}"


def read_by_link(cluster: Cluster, url: str) -> bytes:
    """Without a token. Raises HTTPError."""
    with urllib.request.urlopen(url, context=cluster.context, timeout=30) as answer:
        return bytes(answer.read())


def test_link_is_made_works_without_a_token_and_leads_nowhere_once_removed(
    cluster: Cluster, name: str
) -> None:
    file_uuid = cluster.store(b"hello, lab", name)
    done = cluster.filestore("share", "create", name)
    assert done.returncode == 0, done.stderr
    url = done.stdout.decode().strip()
    cluster.remember(url.rpartition("/")[2])
    assert done.stderr.startswith(b"Anyone with the link can read the file until 2")
    assert read_by_link(cluster, url) == b"hello, lab"
    (listed,) = objects(cluster, "share", "ls", name)
    assert (listed["file_uuid"], listed["status"], listed["created_by"]) == (file_uuid, "active", "admin")
    (own,) = [each for each in objects(cluster, "share", "ls") if each["id"] == listed["id"]]
    assert own == listed | {"filename": name, "kind": own["kind"]}
    assert name in output(cluster, "share", "ls")
    shown = output(cluster, "share", "ls", file_uuid)
    assert listed["id"] in shown
    assert output(cluster, "share", "rm", name, listed["id"]) == f"{listed['id']} is revoked.\n"
    with pytest.raises(urllib.error.HTTPError) as ended:
        read_by_link(cluster, url)
    with ended.value:
        assert ended.value.code == 410
    assert refusal(cluster, "share", "rm", name, "0192f0c1-2345-7abc-8def-0123456789ab")[0] == 4


@pytest.mark.long
def test_ticket_is_an_operation_like_any_other(cluster: Cluster, name: str) -> None:
    """The console has a use for it; no command of its own."""
    file_uuid = cluster.store(b"for a browser", name)
    (made,) = objects_in(
        output(cluster, "api", "POST", f"files/{file_uuid}/ticket", "-d", '{"ttl_seconds": 60}')
    )
    cluster.remember(made["url"].rpartition("/")[2])
    assert read_by_link(cluster, made["url"]) == b"for a browser"


@pytest.mark.long
def test_end_of_a_link_is_a_duration_or_a_time(cluster: Cluster, name: str) -> None:
    cluster.store(b"hello", name)
    now = datetime.now(UTC)
    moment = (now + timedelta(days=3)).replace(microsecond=0)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for given, ends_at in (("2h", now + timedelta(hours=2)), (elsewhere.isoformat(), moment)):
        (made,) = objects(cluster, "share", "create", name, "--expires", given)
        cluster.remember(made["token"])
        assert abs(datetime.fromisoformat(made["expires_at"]) - ends_at) < timedelta(minutes=2)


def test_end_after_a_duration_is_counted_by_the_clock_of_the_cluster(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """Five days ahead made a link of a day one of six days."""
    cluster.store(b"hello", name)
    ahead = {"LD_PRELOAD": str(clocks.library(tmp_path)), "CLOCK_SHIFT": str(5 * 86_400)}
    (link,) = objects(cluster, "share", "create", name, "--expires", "1d", **ahead)
    cluster.remember(link["token"])
    permission = ("grant", "add", "admin", "read", "--file", name, "--expires", "1d")
    (grant,) = objects(cluster, *permission, **ahead)
    for made in (link, grant):
        left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
        assert timedelta(hours=23) < left < timedelta(hours=25)
    found = objects(cluster, "audit", "--since", "1h", **ahead)
    assert "create_public_token" in [each["action"] for each in found]


@pytest.mark.long
@pytest.mark.parametrize("given", ["soon", "2h30", "-1d", ""])
def test_end_that_is_neither_is_wrong_usage(cluster: Cluster, given: str) -> None:
    done = cluster.filestore("share", "create", "any", "--expires", given)
    assert done.returncode == 2
    assert b"'--expires'" in done.stderr


@pytest.mark.long
def test_bucket_is_made_shown_changed_and_removed(cluster: Cluster, name: str) -> None:
    bucket_id = output(cluster, "bucket", "create", name, "--quota", "1M").strip()
    (shown,) = objects(cluster, "bucket", "show", name)
    assert (shown["bucket_id"], shown["quota_bytes"], shown["owner_id"]) == (bucket_id, 1_000_000, "admin")
    assert "1000000 (1.0 MB)" in output(cluster, "bucket", "show", bucket_id)
    row = next(line for line in output(cluster, "bucket", "ls").splitlines() if line.startswith(bucket_id))
    assert row.split()[1] == name
    assert refusal(cluster, "bucket", "create", name)[0] == 5
    assert cluster.filestore("bucket", "set", name).returncode == 2
    (changed,) = objects(cluster, "bucket", "set", name, "--name", f"{name}-2", "--quota", "0")
    assert (changed["name"], changed["quota_bytes"]) == (f"{name}-2", 0)
    assert bucket_id in [each["bucket_id"] for each in objects(cluster, "bucket", "ls")]
    begun = cluster.create(bucket_id=bucket_id, size_bytes=7)["file_uuid"]
    (unfinished,) = objects(cluster, "bucket", "uploads", f"{name}-2")
    assert (unfinished["file_uuid"], unfinished["kind"], unfinished["reserved_bytes"]) == (
        begun,
        "project",
        7,
    )
    assert output(cluster, "bucket", "uploads", bucket_id).splitlines()[1].startswith(begun)
    assert output(cluster, "rm", begun) == f"{begun} is deleted.\n"
    assert output(cluster, "bucket", "uploads", bucket_id) == ""
    file_uuid = cluster.store(b"in the way", bucket_id=bucket_id)
    assert refusal(cluster, "bucket", "rm", f"{name}-2")[0] == 5
    cluster.request("DELETE", f"/files/{file_uuid}")
    assert output(cluster, "bucket", "rm", f"{name}-2") == f"{name}-2 is deleted.\n"
    assert refusal(cluster, "bucket", "show", name) == (
        4,
        f"not_found: There is no bucket named {name!r} that you can access.",
    )


@pytest.mark.long
def test_quota_that_is_full_is_told(cluster: Cluster, name: str, tmp_path: Path) -> None:
    output(cluster, "bucket", "create", name, "--quota", "10")
    path = tmp_path / "large"
    path.write_bytes(bytes(11))
    code, line = refusal(cluster, "put", str(path), "--bucket", name)
    assert (code, line.partition(": ")[0]) == (1, "payload_too_large")


def token_of(cluster: Cluster, user_id: str, path: Path) -> str:
    path.touch(mode=stat.S_IRUSR | stat.S_IWUSR)
    path.write_text(cluster.user_token(user_id))
    return str(path)


def test_permission_opens_a_file_until_it_is_taken_back(cluster: Cluster, name: str, tmp_path: Path) -> None:
    file_uuid = cluster.store(b"for others too", name)
    token = token_of(cluster, f"user-{name}".lower(), tmp_path / "token")
    user_id = f"user-{name}".lower()
    assert refusal(cluster, "cat", file_uuid, FILESTORE_TOKEN_FILE=token)[0] == 3
    grant_id = output(cluster, "grant", "add", user_id, "read", "--file", name).strip()
    assert output(cluster, "cat", file_uuid, FILESTORE_TOKEN_FILE=token) == "for others too"
    (listed,) = objects(cluster, "grant", "ls", "--file", file_uuid)
    assert (listed["id"], listed["permission"], listed["principal_id"]) == (grant_id, "read", user_id)
    assert f"user {user_id}" in output(cluster, "grant", "ls", "--file", name)
    (received,) = objects_in(output(cluster, "grant", "ls", "--json", FILESTORE_TOKEN_FILE=token))
    assert (received["id"], received["target"], received["name"]) == (grant_id, "file", name)
    assert f"file {name}" in output(cluster, "grant", "ls", FILESTORE_TOKEN_FILE=token)
    assert output(cluster, "grant", "rm", grant_id, "--file", name) == f"{grant_id} is revoked.\n"
    assert refusal(cluster, "cat", file_uuid, FILESTORE_TOKEN_FILE=token)[0] == 3
    said = cluster.filestore("grant", "ls", "--file", name).stderr
    assert said == b"Only the owner and admins have access.\n"


@pytest.mark.long
@pytest.mark.parametrize("principal_type", ["user", "group", "role"])
def test_permission_on_a_bucket_is_of_a_user_a_group_or_a_role(
    cluster: Cluster, name: str, principal_type: str
) -> None:
    output(cluster, "bucket", "create", name)
    (made,) = objects_in(
        output(
            cluster,
            *("grant", "add", "lab", "write", "--bucket", name, "--type", principal_type, "--create"),
            *("--expires", "7d", "--json"),
        )
    )
    assert made["principal_type"] == principal_type
    assert made["expires_at"]
    assert [each["id"] for each in objects(cluster, "grant", "ls", "--bucket", name)] == [made["id"]]


@pytest.mark.long
def test_permission_is_on_one_thing(cluster: Cluster) -> None:
    both = ("--bucket", "a", "--file", "b")
    for arguments in (("ls", *both), ("add", "alice", "read"), ("add", "alice", "read", *both)):
        done = cluster.filestore("grant", *arguments)
        assert done.returncode == 2
        assert b"Give either --bucket or --file." in done.stderr

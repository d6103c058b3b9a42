"""`filestore audit`: who did what, from the logs of all members."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cluster.command_output import objects, objects_in, output, refusal
from tests.cluster.harness import Cluster


def test_acts_are_listed_newest_first_whichever_member_was_asked(cluster: Cluster) -> None:
    user_id = "judy"
    for node in cluster.nodes:
        cluster.remember(cluster.post(f"/auth/users/{user_id}/token", {}, node=node).json["token"])
    cluster.post(
        f"https://127.0.0.1:{cluster.coordinators[0].api_port}/api/v1/auth/revoke", {"user_id": user_id}
    )
    found = [each for each in objects(cluster, "audit", "--since", "1h") if user_id in each["target"]]
    assert [each["action"] for each in found] == ["revoke_user", *["mint_user_token"] * 3]
    assert {each["member"] for each in found[1:]} == {node.id for node in cluster.nodes}
    assert found[0]["member"] == cluster.coordinators[0].id
    assert {(each["principal"], each["outcome"]) for each in found} == {("admin", "ok")}
    assert [each["time"] for each in found] == sorted((each["time"] for each in found), reverse=True)
    heading, *rows = output(cluster, "audit", "--action", "mint_user_token", "--limit", "3").splitlines()
    assert heading.split() == ["at", "who", "did", "to", "outcome", "from", "member"]
    assert len(rows) == 3
    assert all("mint_user_token" in row for row in rows)


@pytest.mark.long
def test_acts_on_one_file_are_found_by_its_name(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"x", "audited.bin")
    (made,) = objects(cluster, "share", "create", "audited.bin")
    cluster.remember(made["token"])
    found = objects(cluster, "audit", "--file", "audited.bin")
    assert found
    assert all(file_uuid in each["target"] for each in found)
    assert objects(cluster, "audit", "--file", file_uuid, "--user", "nobody") == []


@pytest.mark.long
def test_nothing_on_record_is_said(cluster: Cluster) -> None:
    done = cluster.filestore("audit", "--user", "nobody-of-that-name")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"No entry matches.\n"


@pytest.mark.long
def test_moment_from_which_on_is_a_duration(cluster: Cluster) -> None:
    cluster.remember(cluster.post("/cluster/join-tokens", {}).json["token"])
    since = datetime.now(UTC) - timedelta(hours=1)
    found = objects_in(output(cluster, "audit", "--since", "1h", "--json"))
    assert found
    assert all(datetime.fromisoformat(each["time"]) > since for each in found)
    assert cluster.filestore("audit", "--since", "yesterday").returncode == 2


@pytest.mark.long
def test_audit_is_for_admins(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(cluster.user_token("kim"))
    code, line = refusal(cluster, "audit", FILESTORE_TOKEN_FILE=str(token))
    assert (code, line.partition(": ")[0]) == (3, "forbidden")

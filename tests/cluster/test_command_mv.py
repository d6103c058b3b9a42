"""`filestore mv`: another name, and nothing else."""

from pathlib import Path

import pytest

from tests.cluster.command_output import objects, output, refusal
from tests.cluster.harness import Cluster


@pytest.mark.parametrize(
    "path", ["vms", *(pytest.param(each, marks=pytest.mark.long) for each in ("project-files", "backups"))]
)
def test_file_of_any_kind_gets_another_name_and_keeps_the_rest(
    cluster: Cluster, tmp_path: Path, path: str
) -> None:
    kind = {"project-files": "project", "vms": "image", "backups": "backup"}[path]
    old, new = f"old-{tmp_path.name}", f"new-{tmp_path.name}"
    (tmp_path / old).write_bytes(b"content")
    file_uuid = output(cluster, "put", str(tmp_path / old), "--kind", kind).strip()
    assert output(cluster, "mv", old, new) == f"{file_uuid} is now named {new}.\n"
    assert cluster.get(f"/{path}/{file_uuid}").json["filename"] == new
    assert output(cluster, "cat", new) == "content"
    assert refusal(cluster, "show", old)[0] == 4
    (renamed,) = objects(cluster, "mv", file_uuid, old)
    assert (renamed["file_uuid"], renamed["filename"]) == (file_uuid, old)


@pytest.mark.long
def test_name_that_cannot_be_one_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    name = f"lab-{tmp_path.name}"
    cluster.store(b"content", name)
    code, line = refusal(cluster, "mv", name, "a/b")
    assert code == 2
    assert line.startswith("invalid_request: NEW_NAME: ")


@pytest.mark.long
def test_only_who_may_write_may_rename(cluster: Cluster, tmp_path: Path) -> None:
    file_uuid = cluster.store(b"content", f"lab-{tmp_path.name}")
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(cluster.user_token("ivan"))
    assert refusal(cluster, "mv", file_uuid, "mine", FILESTORE_TOKEN_FILE=str(token))[0] == 3

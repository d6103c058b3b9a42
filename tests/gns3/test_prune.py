"""Backups that cannot be checked stay, and those of other projects are pruned."""

import fcntl
import os
import secrets

import pytest

from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PIPE_BYTES = 4096
ROWS = 40  # more than the pipe holds


def store_copies(operator: Operator, file_uuid: str, count: int) -> list[str]:
    """Further backups of this content, as those of a project of the same server; their file_uuids."""
    record = operator.store.get(f"/project-files/{file_uuid}").json
    content = operator.store.request("GET", f"/files/{file_uuid}").body
    fields = {"project_id": secrets.token_hex(4), "version_tag": record["version_tag"]}
    return [
        operator.store.store(content, record["filename"], project_name=record["project_name"], **fields)
        for _ in range(count)
    ]


def left_of(operator: Operator, file_uuids: list[str]) -> list[str]:
    """Those that are still there."""
    there = {file["file_uuid"] for file in operator.project_files()}
    return [each for each in file_uuids if each in there]


def test_what_has_no_backup_is_not_found_and_nothing_is_deleted(operator: Operator, old: LabServer) -> None:
    name = f"kept {secrets.token_hex(3)}"
    old.make_project(name)
    [row] = operator.json("backup", name, "--server", "old")
    copies = store_copies(operator, row["file_uuid"], 2)
    keep = ("--keep-last", "1")
    code, out, err = operator.run("prune", name, "nope", *keep)
    assert (code, out, "not_found: There is no backup of a project named 'nope'" in err) == (4, "", True), err
    code, out, err = operator.run("prune", *keep, "--from", "nowhere")
    assert (code, out, "no backup of a GNS3 server 'nowhere'" in err) == (4, "", True), err
    assert left_of(operator, copies) == copies
    token = operator.directory / "beginner.token"
    token.touch(mode=0o600)
    token.write_text(operator.store.user_token("beginner"))
    assert operator.do("prune", *keep, "--token-file", str(token)) == ""


def test_look_up_that_fails_keeps_the_backups_of_one_project_alone(
    operator: Operator, old: LabServer
) -> None:
    name = f"pruned {secrets.token_hex(3)}"
    old.make_project(name)
    [row] = operator.json("backup", name, "--server", "old")
    many, unlucky, others = (store_copies(operator, row["file_uuid"], count) for count in (ROWS, 2, 2))
    with operator.start("prune", name, "--keep-last", "1", "--json") as process:
        assert process.stdout is not None
        # When it prints the first backup it has listed all; then it waits in the middle of the first project.
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        assert os.read(process.stdout.fileno(), 1) == b"{"
        assert operator.store.request("DELETE", f"/files/{unlucky[-1]}").status == 200
        _, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert f"{name} of server old" in err.decode()
    assert "all its backups are kept" in err.decode()
    assert left_of(operator, many) == many[-1:]
    assert left_of(operator, unlucky) == unlucky[:1]
    assert left_of(operator, others) == others[-1:]

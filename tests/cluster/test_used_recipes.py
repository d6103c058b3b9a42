"""What the recipes of CONTRIBUTING.md make is used: in a cluster of this version that is rolled to a copy.

The copy is the next release then, and this version the one before it, which can be put back until all of its
members are upgraded.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.rules import RULES
from tests.cluster.harness import FILESTORE, Answer
from tests.cluster.mixed_versions import COMMAND_S, MixedCluster
from tests.cluster.previous_release import PreviousRelease
from tests.debian_packages import installed
from tests.recipes import (
    PAGE,
    ROOT,
    carry_out,
    copied_tree,
    program_of,
    python_of,
    raise_rules,
    recipes,
    write_client,
)

NAME: Final = "Debian 12"
RAISED_S: Final = 60.0
IMAGE: Final = {"filename": "a.qcow2", "virt_type": "qemu", "format": "qcow2", "size_bytes": 4}
BY_CLIENT: Final = """
import os, pathlib, filestore_client
token, root = pathlib.Path(os.environ["FILESTORE_TOKEN_FILE"]), pathlib.Path(os.environ["FILESTORE_CA"])
urls = os.environ["FILESTORE_URL"].split()
with filestore_client.Client(urls, root_pem=root.read_text(), token=token) as client:
    print([image.os_name for image in client.files.list("image", os_name="Debian 12")])
"""
CHECKED_BY: Final = (
    "tests/test_alerts.py",
    "tests/test_architecture.py",
    "tests/test_settings.py",
    "tests/test_small_parts.py",
    "tests/unit/coordinator/machine/execution/test_digests.py",
    "tests/unit/coordinator/storage/test_released_columns.py",
    "tests/unit/deploy/test_help.py",
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class NewcomersCluster(MixedCluster):
    """Made by this version; what it is rolled to is the copy with the recipes in it."""

    def __init__(self, directory: Path, tree: Path) -> None:
        super().__init__(directory, PreviousRelease("this version", Path(FILESTORE)))
        self.program = program_of(tree)

    def start_as(self, member: Member, *, to_previous: bool = False) -> None:
        self._development.programs[member.id] = (FILESTORE,) if to_previous else self.program
        self.restart(member)

    def by_copy(self, *arguments: str) -> str:
        """What the command of the copy prints."""
        return self.run([*self.program, *arguments])

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.command_environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def new_image(self, node: Member, **fields: object) -> Answer:
        return self.request("POST", "/vms", body=IMAGE | fields, node=node)

    def images(self, node: Member, query: str = "") -> set[str]:
        answer = self.get(f"/vms{query}", node=node)
        assert answer.status == 200, answer.body
        return {record["file_uuid"] for record in answer.json["vms"]}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copied_tree(tmp_path_factory.mktemp("tree"))
    raise_rules(copy)
    for steps in recipes((ROOT / PAGE).read_text("utf-8")).values():
        carry_out(steps, copy)
    write_client(copy)
    return copy


@pytest.fixture(scope="module")
def cluster(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewcomersCluster]:
    with NewcomersCluster(tmp_path_factory.mktemp("cluster") / "data", tree) as started:
        yield started


@pytest.fixture(scope="module")
def upgraded(cluster: NewcomersCluster) -> NewcomersCluster:
    """All members run the copy, two of the three machines after they were put back once."""
    upgraded_first = [*cluster.coordinators[:2], *cluster.nodes[:2]]
    before = cluster.new_image(cluster.nodes[0]).json["file_uuid"]
    for member in upgraded_first:
        cluster.roll(member)
    for node in cluster.nodes[:2]:
        refused = cluster.new_image(node, os_name=NAME)
        assert (refused.status, "Upgrade members" in refused.json["details"]) == (503, True), refused.body
    between = {cluster.new_image(node).json["file_uuid"] for node in cluster.nodes}
    assert all(cluster.images(node) == {before, *between} for node in cluster.nodes)
    assert cluster.rules() == {RULES}
    for member in upgraded_first:
        cluster.roll(member, to_previous=True)
    assert all(cluster.images(node) == {before, *between} for node in cluster.nodes)
    for member in cluster.members:
        cluster.roll(member)
    wait_until(lambda: cluster.rules() == {RULES + 1}, what="the rules are raised", timeout_s=RAISED_S)
    return cluster


def test_field_is_stored_listed_changed_and_shown(upgraded: NewcomersCluster, tmp_path: Path) -> None:
    first, second, third = upgraded.nodes
    wait_until(
        lambda: upgraded.new_image(first, os_name=NAME).status == 201, what="a node knows", timeout_s=RAISED_S
    )
    (named,) = upgraded.images(second, "?os_name=Debian%2012")

    def is_changed() -> bool:
        body = {"os_name": "Alpine"}
        return upgraded.request("PATCH", f"/vms/{named}", body=body, node=third).status == 200

    wait_until(is_changed, what="another node knows", timeout_s=RAISED_S)
    assert upgraded.get(f"/vms/{named}", node=third).json["os_name"] == "Alpine"
    assert upgraded.images(second, "?os_name=Debian%2012") == set()
    assert upgraded.get(f"/vms/{named}", node=first).json["os_name"] == "Alpine"
    source = tmp_path / "b.qcow2"
    source.write_bytes(b"QFI\xfb" + bytes(100))
    stored = upgraded.by_copy("put", str(source), "--os-name", NAME).strip()
    assert NAME in upgraded.by_copy("show", stored)
    python = [*upgraded.program[: upgraded.program.index("-m")], "-c", BY_CLIENT]
    assert upgraded.run(python).strip() == f"['{NAME}']"
    page = upgraded.get(f"{first.url}/console/", token=None).body.decode()
    (version,) = re.findall(r'href="([0-9a-f]+)/icon.svg"', page)
    console = upgraded.get(f"{first.url}/console/{version}/ui/record.js", token=None)
    assert b"file.os_name" in console.body
    assert upgraded.request("DELETE", f"/files/{named}", node=first).status == 200
    assert [tuple(row) for row in upgraded.logged("SELECT os_name FROM vms_os_name")] == [(NAME,)]


def test_job_runs_and_tells_how_far_it_is(upgraded: NewcomersCluster) -> None:
    upgraded.store(b"looked at")
    run = json.loads(upgraded.by_copy("job", "run", "count", "--wait", "--json"))
    assert (run["status"], run["result"]["looked"] > 0) == ("completed", True), run
    assert "Counts the files" in upgraded.by_copy("job", "ls")
    assert metric(upgraded, r'filestore_job_looked\{job_name="count"\}') == run["result"]["looked"]


def test_command_answers(upgraded: NewcomersCluster) -> None:
    found = sum(upgraded.get(path).json["count"] for path in ("/vms", "/project-files", "/backups"))
    assert upgraded.by_copy("count") == f"{found} files\n"
    assert json.loads(upgraded.by_copy("count", "--json")) == {"files": found}


def test_metric_is_scraped_and_its_rule_understood(upgraded: NewcomersCluster, tree: Path) -> None:
    upgraded.store(b"counted")
    assert metric(upgraded, "filestore_counted_blobs") >= 1
    promtool = Path(installed("prometheus", "prometheus")).with_name("promtool")
    told = upgraded.run([str(promtool), "check", "rules", str(tree / "deploy/prometheus/alerts.yml")])
    assert "SUCCESS" in told


def test_members_agree_about_all_of_it(upgraded: NewcomersCluster) -> None:
    assert upgraded.differing() == []


def test_checks_and_tests_of_the_tree_are_content(tree: Path) -> None:
    """As a newcomer runs them: what a recipe leaves out is found by them."""
    pytest_run = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=")
    for command in (
        ("-m", "ruff", "check", "--fix-only", "--quiet", "."),
        ("-m", "ruff", "format", "--quiet", "."),
        ("-m", "ruff", "check", "--quiet", "."),
        ("-m", "tests.rooms"),
        (*pytest_run, *CHECKED_BY),
    ):
        done = subprocess.run(
            [*python_of(tree), *command], cwd=tree, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr


def metric(cluster: NewcomersCluster, name: str) -> float:
    """As the leader tells it."""
    text = cluster.get("/metrics", node=cluster.leader(), token=None).body.decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])

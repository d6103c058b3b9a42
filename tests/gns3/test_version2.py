"""A server of GNS3 2.2: the same commands, and its labs on one of 3.0."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.gns3.restore import remove
from deploy.gns3.server import Gns3Server, ServerAddress
from tests.gns3.installed import VERSION_2, gns3server
from tests.gns3.lab_server import PASSWORD, LabServer, LabServer2
from tests.gns3.operator import Operator
from tests.gns3.test_images import MIB, an_image, qcow2
from tests.gns3.test_restore import with_image

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def two(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer2]:
    """A server of GNS3 2.2, called `two`."""
    with LabServer2(gns3server(VERSION_2), tmp_path_factory.mktemp("two")) as started:
        said = operator.do(
            "login", started.url, "--name", "two", "--password-file", str(started.password_file)
        )
        assert f"GNS3 {VERSION_2}" in said
        [row] = [each for each in operator.do("servers").splitlines() if each.startswith("two ")]
        assert row.rstrip().endswith("can be read")
        yield started


def test_lab_of_2_2_is_backed_up_and_comes_back_on_both(
    operator: Operator, two: LabServer2, new: LabServer
) -> None:
    name, image = f"two {secrets.token_hex(3)}", an_image()
    md5 = two.upload_image(image, qcow2(3 * MIB))
    project_id = with_image(two, name, image)
    two.write(project_id, "project-files/x", os.urandom(MIB))
    assert operator.backup(name, "--server", "two", "--with-images") == {name: "stored"}
    assert operator.backup(name, "--server", "two") == {name: "unchanged"}
    assert operator.store.get(f"/vms?md5={md5}").json["count"] == 1
    for place, server in (("two", two), ("new", new)):
        restored = operator.json("restore", project_id, "--to", place)[0]
        files = server.files_of(restored["project_id"])
        assert files["project-files/x"] == two.files_of(project_id)["project-files/x"]
        assert server.images()[image] == md5


class OpenServer2(LabServer2):
    """One that asks nobody for a password."""

    def _settings_of_version(self) -> list[str]:
        return ["auth = False"]


def test_server_without_a_password_is_backed_up(operator: Operator, tmp_path: Path) -> None:
    name, image = f"open {secrets.token_hex(3)}", an_image()
    with OpenServer2(gns3server(VERSION_2), tmp_path / "open") as server:
        operator.do("login", server.url, "--name", "open", "--password-file", "/dev/null")
        server.upload_image(image, qcow2(MIB))
        with_image(server, name, image)
        assert operator.backup(name, "--server", "open", "--with-images") == {name: "stored"}
        assert operator.json("restore", name, "--to", "open")[0]["nodes"] == 3
        operator.do("logout", "open")


async def test_what_a_restore_leaves_is_removed_by_a_server_that_has_just_started(
    two: LabServer2,
) -> None:
    ids = [two.make_project(f"left {secrets.token_hex(3)}") for _ in range(2)]
    two.kill()
    two.start()
    address = ServerAddress(name="two", url=two.url, user="admin", password=PASSWORD)
    async with Gns3Server(address) as server:
        await remove(server, *ids, is_cut=True)
    assert not {project["project_id"] for project in two.projects().values()} & {*ids}


def test_images_go_to_a_server_of_2_2(operator: Operator, two: LabServer2, old: LabServer) -> None:
    name = an_image()
    md5 = old.upload_image(name, qcow2(MIB))
    operator.do("images", "push", name, "--server", "old")
    operator.do("images", "pull", name, "--server", "two")
    assert two.images()[name] == md5


def test_running_lab_of_2_2_is_told(operator: Operator, two: LabServer2, tmp_path: Path) -> None:
    name = f"runs {secrets.token_hex(3)}"
    project_id = two.make_project(name)
    two.start_nodes(project_id)
    assert operator.backup(name, "--server", "two", codes=[5]) == {name: "running"}
    two.close(project_id)


def test_lab_of_3_0_is_converted_for_2_2(operator: Operator, two: LabServer2, old: LabServer) -> None:
    name = f"three {secrets.token_hex(3)}"
    project_id = old.make_project(name, {"project-files/x": b"of 3.0"}, nodes=0)
    old.add_qemu(project_id, "vm1", adapters=2, cpus=2, maxcpus=4)
    nodes = [
        old.call(
            "POST", f"/projects/{project_id}/nodes", {"name": each, "node_type": kind, "compute_id": "local"}
        )
        for each, kind in (("PC1", "vpcs"), ("PC2", "vpcs"), ("cloud1", "cloud"))
    ]
    ends = [{"node_id": node["node_id"], "adapter_number": 0, "port_number": 0} for node in nodes[:2]]
    old.call("POST", f"/projects/{project_id}/links", {"nodes": ends})
    old.close(project_id)
    operator.do("backup", name, "--server", "old")
    [restored] = operator.json("restore", name, "--to", "two", codes=[10])
    assert (restored["nodes"], restored["lost_settings"]) == (4, ["vm1: maxcpus"])
    there = restored["project_id"]
    assert two.files_of(there)["project-files/x"]
    two.open(there)
    properties = {each["name"]: each["properties"] for each in two.call("GET", f"/projects/{there}/nodes")}
    assert set(properties) == {"vm1", "PC1", "PC2", "cloud1"}
    assert (properties["vm1"]["adapters"], properties["vm1"]["cpus"]) == (2, 2)
    assert len(two.call("GET", f"/projects/{there}/links")) == 1
    two.close(there)

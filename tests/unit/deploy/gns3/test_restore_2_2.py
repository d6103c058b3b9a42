"""Topologies of GNS3 3.0 for GNS3 2.2: what is dropped, and what is said to be lost."""

from typing import Any

import pytest

from deploy.gns3.restore import converted_topology


def converted(node_type: str, **properties: Any) -> tuple[dict[str, Any], list[str]]:
    node = {"name": "R1", "node_type": node_type, "aux": 5001, "aux_type": "telnet", "properties": properties}
    found, lost = converted_topology({"revision": 10, "name": "lab", "topology": {"nodes": [node]}}, "2.2.61")
    assert (found["revision"], found["version"], found["name"]) == (9, "2.2.61", "lab")
    [made] = found["topology"]["nodes"]
    assert {"aux", "aux_type"}.isdisjoint(made)
    return made["properties"], lost


def test_default_of_a_new_setting_is_not_lost() -> None:
    assert converted("docker", image="alpine", cpus=0, memory=0, aux_type="telnet") == (
        {"image": "alpine"},
        [],
    )
    assert converted("vpcs", ram=1, compute_id="local", usage="") == ({"ram": 1}, [])
    disk = {"hda_disk_image": "a.qcow2"}
    assert converted("qemu", **disk, hda_disk_image_backed="/x/a.qcow2", aux=5000, maxcpus=1, cpus=1) == (
        {**disk, "cpus": 1},
        [],
    )
    assert converted("qemu", cpus=4, maxcpus=4) == ({"cpus": 4}, [])


def test_setting_that_says_something_is_told() -> None:
    assert converted("docker", cpus=0.5, memory=256) == ({}, ["R1: cpus", "R1: memory"])
    assert converted("qemu", cpus=1, maxcpus=8) == ({"cpus": 1}, ["R1: maxcpus"])
    assert converted("ethernet_switch", usage="the core") == ({}, ["R1: usage"])


def test_setting_of_another_type_stays() -> None:
    assert converted("qemu", usage="x", ram=256) == ({"usage": "x", "ram": 256}, [])
    assert converted("traceng", usage="x") == ({"usage": "x"}, [])


@pytest.mark.parametrize("inner", [None, [], {"nodes": 3}, {"nodes": [1, {"properties": 2}]}])
def test_odd_topology_is_left_to_the_server(inner: Any) -> None:
    found, lost = converted_topology({"topology": inner}, "2.2.61")
    assert (found["topology"], lost) == (inner, [])

"""Changes of a topology are told by names; what GNS3 changes by itself is none."""

import json
from typing import Any

import pytest

from ca.errors import Conflict
from deploy.gns3.diffs.topology import VALUE_CHARS_MAX, TopologyChange, node_names, topology_changes


def node(number: int, name: str, **settings: Any) -> dict[str, Any]:
    return {"node_id": f"id{number}", "name": name, "node_type": "qemu", "console": 5000 + number, **settings}


def link(*ends: tuple[int, int], **settings: Any) -> dict[str, Any]:
    nodes = [{"node_id": f"id{of}", "adapter_number": 0, "port_number": port} for of, port in ends]
    return {"link_id": str(ends), "nodes": nodes, **settings}


def topology(nodes: list[dict[str, Any]], links: list[dict[str, Any]], *texts: str, **settings: Any) -> bytes:
    drawings = [
        {"drawing_id": f"d{n}{text}", "svg": f"<svg><text>{text}</text></svg>"}
        for n, text in enumerate(texts)
    ]
    inner = {"nodes": nodes, "links": links, "drawings": drawings}
    return json.dumps({"project_id": "p", "name": "lab", "topology": inner, **settings}).encode()


def lines(before: bytes, after: bytes) -> list[str]:
    return [line for change in topology_changes(before, after) for line in change.lines]


R1, R2 = node(1, "R1", properties={"ram": 256, "adapters": 1}), node(2, "R2")


def test_changes_are_told_by_names() -> None:
    before = topology([R1, R2], [link((1, 0), (2, 1))], "area 0", auto_open=False)
    bigger = node(1, "R1", properties={"ram": 512, "adapters": 1})
    after = topology([bigger, node(3, "R3")], [link((1, 0), (3, 0), suspend=True)], "area 1", auto_open=True)
    assert lines(before, after) == [
        "-project: auto_open = false",
        "+project: auto_open = true",
        "-node R1 (qemu): properties.ram = 256",
        "+node R1 (qemu): properties.ram = 512",
        "-node R2 (qemu)",
        "+node R3 (qemu)",
        "-link R1 0/0 -- R2 0/1",
        "+link R1 0/0 -- R3 0/0",
        '-drawing "area 0"',
        '+drawing "area 1"',
    ]


def test_new_ids_and_consoles_are_no_change() -> None:
    before = topology([R1, R2], [link((1, 0), (2, 1))], "area 0")
    again = [{**each, "node_id": f"id{at}", "console": at} for at, each in ((7, R1), (8, R2))]
    assert lines(before, topology(again, [link((8, 1), (7, 0))], "area 0")) == []


def test_items_of_one_name_are_told_apart() -> None:
    assert lines(topology([R2], []), topology([R2, node(3, "R2")], [])) == ["+node R2 (qemu) #2"]


def test_long_value_is_cut() -> None:
    [change] = topology_changes(topology([R2], []), topology([node(2, "R2", text="x" * 9000)], []))
    assert len(change.after) < VALUE_CHARS_MAX + 40


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b'"x"', b"[" * 100_000, b'{"a":' * 100_000],
    ids=["empty", "list", "bytes", "text", "deep", "deeper"],
)
def test_what_is_no_topology_is_a_conflict(content: bytes) -> None:
    assert node_names(content) == {}
    with pytest.raises(Conflict):
        topology_changes(topology([R1], []), content)


@pytest.mark.parametrize("inner", [None, [], {"nodes": 1, "links": [3]}, {"links": [{"nodes": [[]]}]}])
def test_odd_topology_is_compared_as_far_as_it_goes(inner: Any) -> None:
    content = json.dumps({"topology": inner}).encode()
    changes = topology_changes(content, topology([R1], []))
    assert TopologyChange("node", "R1 (qemu)", "added") in changes

"""Compare two topologies by the names of nodes, links and drawings, which people know. Pure.

GNS3 gives new ids to nodes, links and drawings in each import, and new console ports to nodes each time that
a project is opened. These fields do not count.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from ca.errors import Conflict

Part = Literal["project", "node", "link", "drawing"]
Change = Literal["added", "removed", "changed"]

DEPTH_MAX: Final = 16  # of settings in each other; deeper ones are compared as one text
VALUE_CHARS_MAX: Final = 500
_PASSING: Final[Mapping[Part, frozenset[str]]] = {
    "project": frozenset({"topology", "project_id"}),
    "node": frozenset({"node_id", "compute_id", "name", "console", "aux"}),
    "link": frozenset({"link_id", "nodes"}),
    "drawing": frozenset({"drawing_id", "svg"}),
}
_MARKUP: Final = re.compile(r"<[^>]*>")

Item = dict[str, Any]


class TopologyChange(msgspec.Struct, frozen=True):
    """A change of the topology. `field` is "" for an item that was added or removed."""

    part: Part
    name: str
    change: Change
    field: str = ""
    before: str = ""
    after: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines that show it, as in a unified diff without context."""
        if self.change != "changed":
            return [f"{'+' if self.change == 'added' else '-'}{self.part} {self.name}"]
        title = f"{self.part} {self.name}".rstrip()
        sides = (("-", self.before), ("+", self.after))
        return [f"{sign}{title}: {self.field} = {value}" for sign, value in sides if value]


def topology_changes(before: bytes, after: bytes) -> list[TopologyChange]:
    """Return the changes between two topologies. Raises Conflict if one cannot be read."""
    found: list[TopologyChange] = []
    try:
        sides = [_parts_of(json.loads(each)) for each in (before, after)]
        for part in ("project", "node", "link", "drawing"):
            found += _compared(part, sides[0][part], sides[1][part])
    except (ValueError, RecursionError) as error:
        raise Conflict("A topology cannot be read.") from error
    return found


def node_names(topology: bytes) -> dict[str, str]:
    """Return the names of nodes by their ids; {} for a topology that cannot be read."""
    try:
        nodes = _items(json.loads(topology), "nodes")
    except (ValueError, RecursionError):
        return {}
    return {str(node.get("node_id", "")): str(node.get("name", "")) for node in nodes}


def _parts_of(topology: Any) -> dict[Part, dict[str, Item]]:
    """The items of each part by their names. Raises ValueError."""
    if not isinstance(topology, dict):
        raise ValueError("it is no object")
    names = {str(node.get("node_id", "")): str(node.get("name", "")) for node in _items(topology, "nodes")}
    return {
        "project": {"": topology},
        "node": _by_name(_items(topology, "nodes"), _node_title),
        "link": _by_name(_items(topology, "links"), lambda link: _link_title(link, names)),
        "drawing": _by_name(_items(topology, "drawings"), _drawing_title),
    }


def _items(topology: Any, name: str) -> list[Item]:
    inner = topology.get("topology") if isinstance(topology, dict) else None
    found = inner.get(name) if isinstance(inner, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _by_name(items: Iterable[Item], title: Callable[[Item], str]) -> dict[str, Item]:
    """Several items of one name have a number behind it, from the second on."""
    found: dict[str, Item] = {}
    counts: dict[str, int] = {}
    for item in items:
        name = title(item)
        counts[name] = counts.get(name, 0) + 1
        found[name if counts[name] == 1 else f"{name} #{counts[name]}"] = item
    return found


def _node_title(node: Item) -> str:
    return f"{node.get('name', '')} ({node.get('node_type', '')})"


def _link_title(link: Item, names: Mapping[str, str]) -> str:
    ends = [each for each in link.get("nodes") or [] if isinstance(each, dict)]
    told = [
        f"{names.get(str(end.get('node_id', '')), '?')}"
        f" {end.get('adapter_number', '?')}/{end.get('port_number', '?')}"
        for end in ends
    ]
    return " -- ".join(sorted(told))


def _drawing_title(drawing: Item) -> str:
    text = " ".join(_MARKUP.sub(" ", str(drawing.get("svg", ""))).split())
    return json.dumps(text[:60], ensure_ascii=False) if text else "without text"


def _compared(part: Part, before: dict[str, Item], after: dict[str, Item]) -> list[TopologyChange]:
    found: list[TopologyChange] = []
    for name in sorted({*before, *after}):
        if name not in after:
            found.append(TopologyChange(part, name, "removed"))
        elif name not in before:
            found.append(TopologyChange(part, name, "added"))
        else:
            old, new = (_settings(part, side[name]) for side in (before, after))
            found += [
                TopologyChange(part, name, "changed", field, old.get(field, ""), new.get(field, ""))
                for field in sorted({*old, *new})
                if old.get(field) != new.get(field)
            ]
    return found


def _settings(part: Part, item: Item) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in item.items():
        if name not in _PASSING[part]:
            _flatten(name, value, found, DEPTH_MAX)
    return found


def _flatten(name: str, value: Any, found: dict[str, str], depth: int) -> None:
    if isinstance(value, dict) and value and depth:
        for key, inner in value.items():
            _flatten(f"{name}.{key}", inner, found, depth - 1)
        return
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    more = f"... ({len(text)} characters)" if len(text) > VALUE_CHARS_MAX else ""
    found[name] = text[:VALUE_CHARS_MAX] + more

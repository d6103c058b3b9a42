"""A network of its own for every member: a namespace each, joined by a bridge; cut and slowed one way.

Blocking: each change is a command of a few milliseconds. Needs the namespaces of tests.chaos.isolation.
"""

import subprocess
from collections.abc import Iterable, Sequence

from tests.chaos.isolation import attempt, filter_table, packet_filter, slow_link_rule
from tests.chaos.members import end_with_parent

PREFIX = "10.77.0."
CLIENTS = "clients"  # the name of where the clients are: the bridge itself
_BRIDGE = "members"
_MEMBERS_MAX = 253  # in all, those that were removed included


class Network:
    """The bridge and the namespaces on it. `close` ends what holds them open."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names: list[str] = []
        self._addresses = {CLIENTS: f"{PREFIX}{_MEMBERS_MAX + 1}"}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._cuts: set[tuple[str, str]] = set()
        _must(["ip", "link", "set", "lo", "up"])
        _must(["ip", "link", "add", "name", _BRIDGE, "type", "bridge"])
        _must(["ip", "addr", "add", f"{self._addresses[CLIENTS]}/24", "dev", _BRIDGE])
        _must(["ip", "link", "set", _BRIDGE, "up"])
        for name in names:
            self.add(name)

    def address(self, name: str) -> str:
        """Where a member is."""
        return self._addresses[name]

    def inside(self, name: str) -> list[str]:
        """What to run a command with so that it is in the member's namespace; it keeps its process id."""
        return ["nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net"]

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """What the first of a pair sends no longer reaches the second. On top of earlier cuts."""
        self._cuts |= set(pairs)
        for name in self.names:
            self._filter(name, [self._addresses[source] for source, target in self._cuts if target == name])
        from_members = [source for source, target in self._cuts if target == CLIENTS]
        _drop([], [self._addresses[source] for source in from_members])

    def heal(self) -> None:
        """Everybody reaches everybody again, at full speed."""
        self._cuts.clear()
        self.cut(())
        for name in self.names:
            attempt([*self.inside(name), "tc", "qdisc", "del", "dev", "eth0", "root"])

    def slow(self, name: str) -> None:
        """What a member sends goes slowly."""
        _must([*self.inside(name), "tc", "qdisc", "replace", "dev", "eth0", "root", *slow_link_rule()])

    def close(self) -> None:
        """End the holders; the namespaces go with the last process in them."""
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def add(self, name: str) -> None:
        """One more member; its namespace stays until the end. No name or address is used twice."""
        assert name not in self.names
        assert len(self.names) < _MEMBERS_MAX
        self.names.append(name)
        self._addresses[name] = f"{PREFIX}{len(self.names)}"
        # A namespace lives as long as a process in it: this one does nothing else.
        self._holders[name] = holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=end_with_parent,
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", "no namespace for a member"
        outer = f"to-{name}"
        peer = ["peer", "name", "eth0", "netns", str(holder.pid)]
        _must(["ip", "link", "add", outer, "type", "veth", *peer])
        _must(["ip", "link", "set", outer, "master", _BRIDGE, "up"])
        _must([*self.inside(name), "ip", "addr", "add", f"{self._addresses[name]}/24", "dev", "eth0"])
        for device in ("lo", "eth0"):
            _must([*self.inside(name), "ip", "link", "set", device, "up"])

    def _filter(self, name: str, refused: Sequence[str]) -> None:
        _drop(self.inside(name), refused)


def _drop(inside: list[str], refused: Sequence[str]) -> None:
    """Drop what comes from these addresses, and nothing else."""
    found = packet_filter()
    if not found and not refused:
        return  # where nothing can be cut, nothing was
    if found == "nft":
        rule = f"ip saddr {{ {', '.join(refused)} }} drop;" if refused else ""
        _must([*inside, "nft", "-f", "-"], "flush ruleset\n" + filter_table("chaos", rule))
        return
    _must([*inside, "iptables", "-F", "INPUT"])
    for address in refused:
        _must([*inside, "iptables", "-A", "INPUT", "-s", address, "-j", "DROP"])


def _must(command: list[str], stdin: str = "") -> None:
    failure = attempt(command, stdin)
    if failure:
        raise OSError(f"{' '.join(command)}: {failure}")

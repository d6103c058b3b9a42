"""Libraries that are preloaded into the members: clocks, disks and connections, each by a file of orders.

For machines that have a C compiler. What one member is told to suffer holds until it is told otherwise.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.chaos.members import Member
from tests.cluster.clocks import Clocks
from tests.cluster.cut_shim import Cuts
from tests.cluster.disk_shim import DiskRules


class Shims:
    """All three; `environment` is that of a member."""

    def __init__(self, directory: Path) -> None:
        """Compiles them there."""
        directory.mkdir(parents=True)
        self.clocks, self.disks, self.cuts = Clocks(directory), DiskRules(directory), Cuts(directory)

    def environment(self, source: str) -> dict[str, str]:
        """For a member whose connections come from this address, "" for any."""
        all_three = [shim.environment for shim in (self.clocks, self.disks, self.cuts)]
        libraries = ":".join(environment["LD_PRELOAD"] for environment in all_three)
        named = {"NETWORK_SOURCE": source} if source else {}
        return (
            {name: value for each in all_three for name, value in each.items()}
            | named
            | {"LD_PRELOAD": libraries}
        )

    def cut(self, pairs: Iterable[tuple[Member, str]]) -> None:
        """What the first of a pair sends no longer reaches that address. On top of earlier cuts."""
        for member, address in pairs:
            if member.process is not None:
                self.cuts.from_address(member.process.pid, address)

    def heal(self) -> None:
        """Disks work, and everybody reaches everybody; the clocks stay."""
        self.disks.clear()
        self.cuts.clear()

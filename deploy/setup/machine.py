"""Set up a machine: find what exists, create the rest, and report the result to its operator.

Tested by tests/cluster/test_setup.py.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ca.certificates import root_digest
from ca.errors import Conflict
from ca.setuptoken import SetupToken
from ca.tls import read_roots
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from deploy.setup import unfinished
from deploy.setup.plan import MachinePlan
from deploy.setup.running import members_of
from deploy.setup.steps import NewCluster, another_coordinator, first_coordinator, joining_node, own_node
from deploy.setup.tokens import mint_setup_token, run_as_admin
from filestore_client import AsyncClient
from node.base.config import NodeConfig, NodeFiles


@dataclass(frozen=True, slots=True)
class MachineState:
    """The members on this machine, None for missing ones. `unfinished_setup` is None without one."""

    coordinator: CoordinatorConfig | None
    node: NodeConfig | None
    unfinished_setup: unfinished.UnfinishedSetup | None

    @property
    def name(self) -> str:
        """Return the name of its members; "" without members."""
        return self.coordinator.id if self.coordinator else self.node.id if self.node else ""

    @property
    def address(self) -> str:
        """Return the address of its members; "" without members."""
        return self.coordinator.own.address if self.coordinator else self.node.address if self.node else ""

    @property
    def is_joining(self) -> bool:
        """Whether a setup by a token was broken off."""
        return self.unfinished_setup is not None and bool(self.unfinished_setup.token)

    @property
    def is_node_only(self) -> bool:
        """Whether there is a node and no trace of a coordinator."""
        return self.node is not None and self.coordinator is None and self.unfinished_setup is None

    def adjust_plan(self, plan: MachinePlan) -> MachinePlan:
        """The plan where nothing is there; names and places of what is there do not change by a setup."""
        if (known := self.coordinator) is not None:
            own = known.own
            plan = replace(
                plan, name=known.id, address=own.address, peer_port=own.peer_port, api_port=own.api_port
            )
        if (node := self.node) is not None:
            plan = replace(plan, node_peer_port=node.peer_port, node_api_port=node.api_port)
        return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupResult:
    """The result of a setup. `lines`: setup tokens for other machines; `commands`: those left to run."""

    plan: MachinePlan
    coordinator: CoordinatorConfig | None
    node: NodeConfig
    is_first: bool
    lines: list[str]
    commands: list[str]


def find_members(data: Path) -> MachineState:
    """Find the members in a setup directory. Raises NotInitialised, NotJoined for unreadable files."""
    coordinator, node = CoordinatorFiles(data / "coordinator"), NodeFiles(data / "node")
    return MachineState(
        coordinator.read_config() if coordinator.config.exists() else None,
        node.read_config() if node.config.exists() else None,
        unfinished.read(coordinator),
    )


def require_same_cluster(data: Path, token: SetupToken) -> None:
    """Raises Conflict for a token of another cluster than what is there."""
    for files in (CoordinatorFiles(data / "coordinator"), NodeFiles(data / "node")):
        if files.config.exists() and root_digest(read_roots(files.root)) != token.join.ca_digest:
            raise Conflict(f"{files.data} belongs to another cluster than the text of --join.")


def set_up(
    plan: MachinePlan,
    found: MachineState,
    token: SetupToken | None,
    cluster: NewCluster,
    *,
    node_only: bool,
    start: bool,
    machines: int,
) -> SetupResult:
    """Make of this machine what is planned. Raises what the steps do."""
    plan = found.adjust_plan(plan)
    if token is not None:
        require_same_cluster(plan.data, token)
    files = CoordinatorFiles(plan.coordinator_data)
    is_first, lines = False, []
    with members_of(plan, start=start) as members:
        if node_only or (token is None and found.is_node_only):
            joining_node(plan, token, members)
        elif token is not None or found.is_joining:
            another_coordinator(plan, token, members)
            own_node(plan, members)
        else:
            is_first = True
            first_coordinator(plan, cluster, members)
            own_node(plan, members)
            lines = _lines(files, machines)
    return SetupResult(
        plan=plan,
        coordinator=files.read_config() if files.config.exists() else None,
        node=NodeFiles(plan.node_data).read_config(),
        is_first=is_first,
        lines=lines,
        commands=members.remaining_commands(),
    )


def _lines(files: CoordinatorFiles, machines: int) -> list[str]:
    """A setup token for each machine that the cluster still lacks."""

    async def count(client: AsyncClient) -> int:
        authority = await client.call("GET", "/api/v1/cluster/ca", dict[str, Any])
        return len(authority["coordinators"])

    return [mint_setup_token(files).text for _ in range(machines - run_as_admin(files, count))]

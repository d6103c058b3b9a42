"""Choose nodes for new bytes and for jobs, which the leader adds to commands. Apart from calls: no I/O.

The leader can choose, as it receives the heartbeats of nodes.

Tested by tests/cluster/test_space.py.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from ca.errors import InsufficientStorage, Unavailable
from ca.identity import Identity
from coordinator.rpc.server import Refused
from metadata.model.placement import Candidate, choose, holder_first
from metadata.model.records import ClusterView
from metadata.protocol.calls import DISK_FAILED
from metadata.protocol.commands import AnyCommand, CreateFile, CreatePartial, RestartUpload, TriggerJob
from metadata.rpc.node_health import NodeHealth
from runtime.wording import counted

SHOWN_MAX = 3  # nodes that an error names


class NodeChooser:
    """Sets the fields of a command that only a leader can set, for the nodes of `view`."""

    def __init__(self, identity: Identity, view: Callable[[], ClusterView], health: NodeHealth) -> None:
        self._identity, self._view, self._health = identity, view, health

    def with_leader_fields(self, command: AnyCommand, proposer: Identity) -> AnyCommand:
        """Return the command with the placement of new bytes, or the worker of a job.

        Raises Unavailable, Refused.
        """
        if isinstance(command, TriggerJob):
            return msgspec.structs.replace(command, node_id=self._identity.id)
        if isinstance(command, RestartUpload):
            return msgspec.structs.replace(command, placement=self.placement(command.file_uuid, 0))
        if not isinstance(command, CreateFile | CreatePartial):
            return command
        if isinstance(command, CreateFile) and command.content is not msgspec.UNSET:
            return command
        chosen = self.placement(command.file_uuid, command.size_bytes or 0)
        placed = holder_first(chosen, command.placement, proposer.id)
        return msgspec.structs.replace(command, placement=placed)

    def placement(self, file_uuid: str, size_bytes: int) -> list[str]:
        """Return the nodes for this many bytes. Raises Unavailable, Refused."""
        view = self._view()
        if view.nodes and self._health.is_silent():
            raise Unavailable("No node has sent a heartbeat since this coordinator started.")
        candidates = self._health.candidates(view.nodes, at_s=time.monotonic())
        if len(candidates) < view.write_quorum:
            failed = [n.node_id for n in view.nodes if self._health.disk(n.node_id) == DISK_FAILED]
            why = (
                f"The disks of these nodes cannot be written: {', '.join(failed[:SHOWN_MAX])}."
                if failed
                else ""
            )
            raise Refused(
                Unavailable.code,
                f"{counted(len(candidates), 'node takes', 'nodes take')} new files, {view.write_quorum} must."
                f"{why}",
            )
        roomy = [candidate for candidate in candidates if candidate.has_room(size_bytes)]
        if len(roomy) < view.write_quorum:
            raise Refused(
                InsufficientStorage.code,
                (
                    f"{counted(len(roomy), 'node has', 'nodes have')} room for {size_bytes} more bytes, "
                    f"{view.write_quorum} are required: delete files or add nodes. Short: "
                    f"{_shortage(candidates, roomy)}."
                ),
            )
        return choose(file_uuid, roomy, view.replicas)


def _shortage(candidates: Sequence[Candidate], roomy: Sequence[Candidate]) -> str:
    """Describe which nodes lack room, and how much each has."""
    short = [candidate for candidate in candidates if candidate not in roomy]
    return ", ".join(
        f"{each.node_id} with {each.free_bytes} bytes free, of which {each.reserve_bytes} are reserved"
        for each in short[:SHOWN_MAX]
    )

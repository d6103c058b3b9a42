"""What comes over a command in the middle, at a moment that the dice choose.

A process is killed or hangs, or disks of nodes are full.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.cluster.small_disks import fill
from tests.gns3.search.stage import Stage, Strike

# How often each comes, in any unit.
KINDS: Final[Mapping[str, int]] = {
    "kill-command": 3,
    "interrupt-command": 1,
    "kill-server": 4,
    "hang-server": 1,
    "kill-nodes": 2,
    "kill-coordinator": 1,
    "fill-nodes": 1,
}
QUIET_SHARE: Final = 0.4
LATEST_S: Final = 3.0
NODES_KILLED: Final = (1, 1, 3)
NODE_LEFT_BYTES: Final = (0, 8 << 20, 40 << 20)  # a part of it is a reserve
POLL_S: Final = 0.002


def draw(stage: Stage, server: str, *, imports: bool) -> tuple[str, Strike | None]:
    """A strike and its name; of some commands there is none."""
    kinds: dict[str, Callable[[subprocess.Popen[bytes]], None]] = {
        "kill-command": lambda process: process.send_signal(signal.SIGKILL),
        "interrupt-command": lambda process: process.send_signal(signal.SIGTERM),
        "kill-server": lambda _: _kill_server(stage, server),
        "hang-server": lambda _: _hang_server(stage, server),
        "kill-nodes": lambda _: _kill_nodes(stage, stage.dice.choice(NODES_KILLED)),
        "kill-coordinator": lambda _: _kill_coordinator(stage),
        "fill-nodes": lambda _: _fill_nodes(stage, stage.dice.choice(NODES_KILLED)),
    }
    if stage.dice.random() < QUIET_SHARE or not stage.strikes:
        return "", None
    (kind,) = stage.dice.choices(list(stage.strikes), [KINDS[each] for each in stage.strikes])
    delay_s = stage.dice.uniform(0.0, LATEST_S)
    at_unpacking = imports and stage.dice.random() < 0.6
    projects = stage.servers[server].projects_path
    before = {path.name for path in projects.iterdir()}

    def strike(process: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + (30.0 if at_unpacking else delay_s)
        while time.monotonic() < until_s and process.poll() is None:
            if at_unpacking and _is_unpacked(projects, before):
                break
            time.sleep(POLL_S)
        if process.poll() is None:
            kinds[kind](process)

    when = "while it unpacks" if at_unpacking else f"after {delay_s:.2f} s"
    return f"{kind} {when}", strike


def _is_unpacked(projects: Path, before: set[str]) -> bool:
    """Whether files of a new project lie there."""
    new = [path for path in projects.iterdir() if path.name not in before and not path.name.startswith("tmp")]
    return any((path / "project-files").exists() or any(path.glob("*.gns3")) for path in new)


def _kill_server(stage: Stage, server: str) -> None:
    stage.servers[server].kill()
    stage.dead.append(server)


def _hang_server(stage: Stage, server: str) -> None:
    stage.servers[server].send(signal.SIGSTOP)
    stage.stopped.append(server)


def _kill_nodes(stage: Stage, count: int) -> None:
    stage.down += stage.dice.sample(stage.cluster.nodes, count)
    stage.cluster.kill(*stage.down)


def _kill_coordinator(stage: Stage) -> None:
    stage.down.append(stage.dice.choice(stage.cluster.coordinators))
    stage.cluster.kill(*stage.down)


def _fill_nodes(stage: Stage, count: int) -> None:
    for node in stage.dice.sample(stage.cluster.nodes, count):
        stage.ballasts.append(fill(stage.cluster, node, stage.dice.choice(NODE_LEFT_BYTES)))

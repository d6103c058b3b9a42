"""The coordinators that a process knows. Shared by the RPC client, the view and nodes that join or move.

There is a running task for each while they come and go, and the last list is on disk.

A process that was away while coordinators were replaced finds the present ones through the last that it
knew.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ca.secretfiles import write_durable
from metadata.model.records import CoordinatorRecord
from runtime.json_files import decode_sealed, encode_sealed
from runtime.lifetime import end_tasks

_log = logging.getLogger(__name__)


class Roster:
    """A task for each coordinator; `update` starts and ends them. Nothing runs outside `run`."""

    def __init__(self, coordinators: Iterable[CoordinatorRecord]) -> None:
        self._changed = asyncio.Event()
        self._wanted: dict[str, CoordinatorRecord] = {}
        self.update(coordinators)

    def update(self, coordinators: Iterable[CoordinatorRecord]) -> None:
        """These are the coordinators from now on."""
        known, self._wanted = self._wanted, {}
        for record in coordinators:
            earlier = known.get(record.coordinator_id)
            # The same object while the address is unchanged, so that `run` need not restart.
            wanted = record if earlier is None or _where(earlier) != _where(record) else earlier
            self._wanted[record.coordinator_id] = wanted
        self._changed.set()

    async def run(self, work: Callable[[CoordinatorRecord], Coroutine[Any, Any, None]], name: str) -> None:
        """Keep `work` running for each until cancelled; it is cancelled for those that go or move."""
        running: dict[str, tuple[CoordinatorRecord, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for coordinator_id, (record, task) in list(running.items()):
                    if self._wanted.get(coordinator_id) is not record:
                        await end_tasks([task])
                        del running[coordinator_id]
                for coordinator_id, record in self._wanted.items():
                    if coordinator_id not in running:
                        task = group.create_task(work(record), name=f"{name} {coordinator_id}")
                        running[coordinator_id] = (record, task)
                await self._changed.wait()


def _where(record: CoordinatorRecord) -> tuple[str, int]:
    return record.address, record.peer_port


def read_roster(path: Path) -> list[CoordinatorRecord]:
    """The list that `write_known` left. Raises OSError, msgspec.MsgspecError."""
    return decode_sealed(path.read_bytes(), list[CoordinatorRecord])


def read_known(path: Path, otherwise: Sequence[CoordinatorRecord]) -> list[CoordinatorRecord]:
    """The list that `write_known` left; `otherwise` when there is none or it cannot be read."""
    try:
        known = read_roster(path)
    except FileNotFoundError:
        return list(otherwise)
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("the last known coordinators cannot be read: %s", error)
        return list(otherwise)
    return known or list(otherwise)


def write_known(path: Path, coordinators: Sequence[CoordinatorRecord]) -> None:
    """Keep the list for the next start. Blocks. Raises OSError."""
    write_durable(path, encode_sealed(coordinators))

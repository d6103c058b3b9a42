"""The directory, and its number of starts, that a coordinator runs from: a name alone is not enough.

Raft relies on members that never forget their votes and acknowledgements. A member whose directory was
created again under its old name has forgotten all of them; a member that runs on an old copy has forgotten
some. So each member sends the id of its directory and the number of its start when it connects, and each
remembers the last ones of the others. Another directory is rejected, and so is an earlier start, or the same
start from another process. This is remembered on each member's own disk only, and is not essential: if the
disk is full, nothing is stored, and no member is rejected for it.

What one member reports about another may be caused by its own damage, so a member stops only if most of the
others say the same. Until then, the reporting member ignores the other's messages, and nothing bad follows
from those that accept them.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ca.errors import Conflict, Internal
from ca.secretfiles import write_durable
from metadata.model.instance import HEADER, Instance, parse_instance
from runtime.json_files import decode_sealed, encode_sealed

__all__ = [
    "HEADER",
    "Displaced",
    "Instance",
    "KnownInstances",
    "copy_of",
    "count_start",
    "parse_instance",
]

_log = logging.getLogger(__name__)


class Displaced(Internal):
    """Most other coordinators know this one by another directory, or by a later start of this one."""

    def __init__(self, by: Iterable[str]) -> None:
        super().__init__(
            f"Most other coordinators ({', '.join(sorted(by))}) know this name by another directory, "
            "or by a later start of this one. This directory was created again under its old name, or "
            "is an old copy, and does not have the latest votes. Create it again with `filestore "
            "coordinator rebuild`, under a new name."
        )


def count_start(path: Path, own_id: str = "") -> Instance | None:
    """Count one more start of this directory. Blocks. Returns None, with a warning, if the disk fails.

    It is stored twice, as a member without it looks like a directory that was created again.
    """
    process = secrets.token_hex(8)
    last, is_new = _read_copies(path, own_id)
    if is_new:
        instance = Instance(secrets.token_hex(8), 1, process)
    elif last is None:
        _log.warning("the number of starts of this directory is not known: restore its %s", path.name)
        return None
    else:
        instance = Instance(last.directory, last.start + 1, process)
    try:
        for each in (copy_of(path), path):
            write_durable(each, encode_sealed(instance, of=own_id))
    except OSError as error:
        _log.warning("the number of starts of this directory is not known", extra={"reason": error.strerror})
        return None
    return instance


def copy_of(path: Path) -> Path:
    """Return the path of the second copy of a file."""
    return path.with_name(f"{path.name}.copy")


def _read_copies(path: Path, own_id: str) -> tuple[Instance | None, bool]:
    """The last start that either copy tells, and whether there is none because nothing was ever kept."""
    found: list[Instance] = []
    is_new = True
    for each in (path, copy_of(path)):
        try:
            found.append(decode_sealed(each.read_bytes(), Instance, of=own_id))
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("%s cannot be read", each.name, extra={"reason": str(error)})
        is_new = False
    return max(found, key=lambda instance: instance.start, default=None), is_new


class KnownInstances:
    """The last known instances of other coordinators, stored in one file."""

    def __init__(self, path: Path, own_id: str = "") -> None:
        self._path = path
        self._own_id = own_id
        self._known: dict[str, Instance] = {}
        # for each rejected coordinator, the last instance that was logged
        self._logged: dict[str, Instance] = {}
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """Read what the previous process has stored.

        Blocks. A file that cannot be read is ignored: no other member is rejected because of local damage.
        """
        try:
            self._known = decode_sealed(self._path.read_bytes(), dict[str, Instance], of=self._own_id)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning(
                "%s cannot be read and starts empty: the known instances of other coordinators are lost",
                self._path.name,
                extra={"reason": str(error)},
            )

    async def admit(self, coordinator_id: str, instance: Instance) -> None:
        """Raises Conflict for another directory than the one that is known, or an earlier copy of it."""
        if self._known.get(coordinator_id) == instance:
            return  # without waiting for a disk that may hang with another's
        async with self._writing:
            known = self._known.get(coordinator_id)
            if known is not None and not known.is_followed_by(instance):
                self._log_refusal(coordinator_id, instance)
                raise Conflict(
                    f"{coordinator_id} is known by another directory, or by a later start of this one."
                )
            self._known[coordinator_id] = instance
            try:
                content = encode_sealed(self._known, of=self._own_id)
                await asyncio.to_thread(write_durable, self._path, content)
            except OSError as error:
                _log.warning(
                    "cannot save the instances of other coordinators", extra={"reason": error.strerror}
                )

    def _log_refusal(self, coordinator_id: str, instance: Instance) -> None:
        """Log once for each process that is rejected."""
        if self._logged.get(coordinator_id) != instance:
            self._logged[coordinator_id] = instance
            _log.warning(
                "coordinator %s is known here by another directory, or by a later start of it: its "
                "messages are refused. If it was neither created again nor restored from a copy, stop "
                "this coordinator, remove %s here, and start it again",
                coordinator_id,
                self._path,
            )

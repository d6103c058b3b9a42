"""Which directory, and which start of it, a coordinator speaks from: a name alone does not tell.

Raft relies on a member that never forgets what it voted and acknowledged. One whose directory was made anew
under its old name has forgotten all of it, one that runs on an earlier copy a part. So each member sends the
id of its directory and the number of its start when it connects, and each remembers of the others what it has
seen last: another directory is refused, and so is a start that comes again from another process. That is
remembered on the own disk alone, and none of it is needed: a disk that is full keeps nothing, and nobody is
refused for it.
"""

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ca.errors import Conflict, Internal, InvalidRequest
from ca.secretfiles import write_durable
from coordinator.json_files import decode_foreign

HEADER: Final = "Filestore-Instance"
_Word = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]

_log = logging.getLogger(__name__)


class Displaced(Internal):
    """Another coordinator knows this one by another directory, or by a later start of this one."""

    def __init__(self, by: str) -> None:
        super().__init__(
            f"The coordinator {by} knows this one by another directory, or by a later start of this one: it"
            " was made anew under its old name, or is an earlier copy, and has forgotten what it promised."
            " Set it up again with `filestore coordinator rebuild`, under a new name."
        )


class Instance(Struct, frozen=True, array_like=True):
    """The id of a directory, which start of it this is, and a random word of the process."""

    directory: _Word
    start: Annotated[int, Meta(ge=1, lt=2**53)]
    process: _Word

    def __str__(self) -> str:
        return f"{self.directory}.{self.start}.{self.process}"

    def is_followed_by(self, later: "Instance") -> bool:
        """Whether the later one is this process, or a later start of the same directory."""
        return later.directory == self.directory and (later == self or later.start > self.start)


def parsed(text: str) -> Instance:
    """The instance in a header. Raises InvalidRequest."""
    directory, _, rest = text.partition(".")
    start, _, process = rest.partition(".")
    try:
        return msgspec.convert([directory, start, process], Instance, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest("malformed instance") from error


def count_start(path: Path) -> Instance | None:
    """Count one more start of this directory; None, and a warning, when the disk does not keep it. Blocks."""
    process = secrets.token_hex(8)
    try:
        earlier = decode_foreign(path.read_bytes(), Instance)
        instance = Instance(earlier.directory, earlier.start + 1, process)
    except FileNotFoundError:
        instance = Instance(secrets.token_hex(8), 1, process)
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("the starts of this directory are not counted", extra={"reason": str(error)})
        return None
    try:
        write_durable(path, msgspec.json.encode(instance))
    except OSError as error:
        _log.warning("the starts of this directory are not counted", extra={"reason": error.strerror})
        return None
    return instance


class KnownInstances:
    """What was seen last of each other coordinator, kept in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Instance] = {}
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """What the process before has seen. Blocks; a file that cannot be read is as good as none."""
        try:
            self._known = decode_foreign(self._path.read_bytes(), dict[str, Instance])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("what was seen of the others cannot be read", extra={"reason": str(error)})

    async def admit(self, coordinator_id: str, instance: Instance) -> None:
        """Raises Conflict for another directory than the one that is known, or an earlier copy of it."""
        if self._known.get(coordinator_id) == instance:
            return  # without waiting for a disk that may hang with another's
        async with self._writing:
            known = self._known.get(coordinator_id)
            if known is not None and not known.is_followed_by(instance):
                raise Conflict(f"{coordinator_id} is known by another directory, or by a later start of it.")
            self._known[coordinator_id] = instance
            try:
                await asyncio.to_thread(write_durable, self._path, msgspec.json.encode(self._known))
            except OSError as error:
                _log.warning("what was seen of the others is not kept", extra={"reason": error.strerror})

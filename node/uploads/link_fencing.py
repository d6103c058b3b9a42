"""Which link to an upload is the newest, as a member knows it. Shared by both ends of a link.

An older one must not undo what that brought. A node in the middle of a chain that stood still may lay its
link when the holder has long linked around it, and would have the member go back below what the holder has
counted since. So the holder numbers its links; the number travels on along the chain, and a member refuses
what is lower than the highest it has seen. The numbers are those of one run of the holder's process. Within
an epoch of the log the holder is one node, so a run that another one followed is over. No I/O here;
forgotten with the process.

A member that was restarted knows no number any more, and has bytes of this epoch that the holder may have
counted. It takes no link then but from the holder itself, whose older links ended with their connections.
"""

import itertools
import os
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ca.errors import Conflict, InvalidRequest

UPLOADS_MAX: Final = 4096  # the longest unused goes first; an entry is some 300 bytes
RUNS_MAX: Final = 16  # that one epoch of an upload sees end; the oldest goes first

_TOKEN: Final = re.compile(r"([0-9a-f]{16})-([0-9]{1,15})", re.ASCII)
_RUN: Final = os.urandom(8).hex()
_numbers: Final = itertools.count(1)


def next_fencing_token() -> str:
    """The name of one more link that this process lays as a holder."""
    return f"{_RUN}-{next(_numbers)}"


@dataclass(slots=True)
class _Seen:
    epoch: int
    run: str
    number: int
    ended_runs: list[str] = field(default_factory=list)


class LinkFences:
    """The newest link to each upload."""

    def __init__(self, *, uploads_max: int = UPLOADS_MAX) -> None:
        self._uploads_max = uploads_max
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def require_newest(
        self,
        file_uuid: str,
        epoch: int,
        fencing_token: str,
        *,
        is_relayed: bool = False,
        has_bytes: bool = False,
    ) -> None:
        """Take note of a link; the same one again is no older. Raises Conflict, InvalidRequest.

        `fencing_token` is "" for what no link is laid for: nothing is known of its order. `is_relayed`: it
        comes from a node in the middle of the chain. `has_bytes`: this member has some of this epoch.
        """
        if not fencing_token:
            return
        match = _TOKEN.fullmatch(fencing_token)
        if match is None:
            raise InvalidRequest("laid: must be the name of a link.")
        run, number = match[1], int(match[2])
        seen = self._seen.get(file_uuid)
        if seen is None or seen.epoch < epoch:
            if is_relayed and has_bytes:
                raise Conflict("This node was restarted. The holder must open the link again.")
            self._remember(file_uuid, _Seen(epoch, run, number))
            return
        if epoch < seen.epoch or run in seen.ended_runs or (run == seen.run and number < seen.number):
            raise Conflict("There is a newer link to this upload.")
        ended_runs = seen.ended_runs if run == seen.run else [*seen.ended_runs, seen.run][-RUNS_MAX:]
        self._remember(file_uuid, _Seen(epoch, run, number, ended_runs))

    def _remember(self, file_uuid: str, seen: _Seen) -> None:
        self._seen[file_uuid] = seen
        self._seen.move_to_end(file_uuid)
        if len(self._seen) > self._uploads_max:
            self._seen.popitem(last=False)

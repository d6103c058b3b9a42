"""Paths on a node's disk that cannot be used, and what the node skips because of them.

A pass, a sweep or a start that processes many paths works on each inside `skipping`. If the disk refuses one,
this module remembers it, logs it once, reports it in heartbeats and counts it, and the other paths have their
turn. A path is forgotten when it could be used again, or is gone. For any thread; no I/O here.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from ca.errors import FilestoreError
from node.diskio.fs import DiskFull, DiskRefused
from runtime.lifetime import out_of_descriptors
from runtime.wording import reason_of

ITEMS_MAX: Final = 1000  # limit: with more of them the disk is at fault, which is reported otherwise
REASON_CHARS_MAX: Final = 200
WORK: Final = "work"  # the area of what the node does, and the disk does not let it do at all

_log = logging.getLogger(__name__)


class UnusablePaths:
    """Why each cannot be used, by area and name. An area is a directory, or a kind of work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    @contextmanager
    def skipping(self, area: str, name: str) -> Iterator[None]:
        """For work on one thing. What the disk refuses is noted, and not raised; else the thing is well.

        A shortage of descriptors says nothing of it, and is raised, as is everything that no disk says.
        """
        try:
            yield
        except (OSError, DiskRefused, DiskFull) as error:
            if not _is_of_a_disk(error):
                raise
            self.note(area, name, error)
        else:
            self.clear(area, name)

    def note(self, area: str, name: str, error: OSError | FilestoreError) -> None:
        """It cannot be used; logged when that is new."""
        reason = reason_of(error)[:REASON_CHARS_MAX]
        with self._lock:
            is_known = (area, name) in self._items
            if not is_known and len(self._items) >= ITEMS_MAX:
                return
            self._items[(area, name)] = reason
        if not is_known:
            facts = {"area": area, "item": _printable(name), "reason": reason}
            _log.error("a path on the disk cannot be used and is skipped", extra=facts)

    def clear(self, area: str, name: str) -> None:
        """It can be used, or is gone."""
        if not self._items:  # as nearly always
            return
        with self._lock:
            was_known = self._items.pop((area, name), None) is not None
        if was_known:
            _log.info("a path on the disk can be used again", extra={"area": area, "item": name})

    def keep(self, area: str, names: Collection[str], *, below: str = "") -> None:
        """Forget paths of an area that disappeared: those that begin with `below`, except for `names`."""
        for name in self.names(area):
            first = name.removeprefix(below).partition("/")[0]
            if first and name.startswith(below) and first not in names:
                self.clear(area, name)

    def names(self, area: str) -> frozenset[str]:
        """Return the unusable paths of an area."""
        if not self._items:
            return frozenset()
        with self._lock:
            return frozenset(name for of, name in self._items if of == area)

    def shown(self, limit: int) -> list[str]:
        """The first of them, each with why, for an operator."""
        with self._lock:
            items = list(self._items.items())[:limit]
        lines = [
            f"{area}/{name}: {reason}" if name else f"{area}: {reason}" for (area, name), reason in items
        ]
        return [_printable(text) for text in lines]


def _printable(text: str) -> str:
    """A name on a disk may be any bytes; a heartbeat, a table and a log line may not."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _is_of_a_disk(error: OSError | FilestoreError) -> bool:
    """A deadline, or a connection that ended, is an OSError too."""
    if isinstance(error, OSError):
        is_other = error.errno is None or isinstance(error, ConnectionError)
        return not is_other and out_of_descriptors(error) is None
    return True

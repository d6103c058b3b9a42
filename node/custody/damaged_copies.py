"""Report this node's damaged copies to the log, as sources of their intact segments.

A damaged replica is first reported lost (`node/custody/loss_repair.py`). This module reports the copies in
quarantine that files still need: at once with the known damage, and again after they were read to the end.
Nothing has to be remembered over a crash, as the quarantine is read again.

Tested by tests/unit/node/storage/test_out_of_service.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ca.errors import FilestoreError
from metadata.protocol.commands import ReportDamaged
from metadata.protocol.queries import ListDamagedCopies
from node.base.spans import Span
from node.custody.context import PAGE_BLOBS, CustodyContext
from node.custody.reporter import Reporter
from node.storage.quarantine import AREA, QuarantinedBlob
from runtime.bounds import SPANS_MAX

REPORT_AGAIN_S: Final = 600.0  # the interval between two reports of the same copy
NEW_S: Final = 60.0  # so soon after it was first seen here the log may not know yet that a replica is lost

_Entry = tuple[str, int]  # name, and the time of its move to quarantine in ms
_log = logging.getLogger(__name__)


class DamagedCopies:
    """The damaged copies of one node. For one event loop."""

    def __init__(self, context: CustodyContext, reporter: Reporter) -> None:
        self._context = context
        self._reporter = reporter
        self._spans: dict[str, list[Span]] = {}  # of copies that were read to their end
        self._reported: dict[_Entry, list[Span] | None] = {}  # the report of each; None: none is needed
        self._first_seen_s: dict[_Entry, float] = {}  # steady: file times are of a clock that may have jumped
        self._report_again_at_s = 0.0
        self._seen: object = None  # the state of quarantine when everything was reported

    def note(self, sha256: str, copy: QuarantinedBlob) -> None:
        """This copy was read to its end, and is not what its name says."""
        self._spans[sha256] = copy.wrong_spans()
        self._seen = None

    async def report_new(self) -> None:
        """Report what is new.

        Costs next to nothing while nothing is. Raises FilestoreError when the log cannot be asked.
        """
        blobs, now_s = self._context.blobs, self._context.clock_s()
        is_due = now_s >= self._report_again_at_s or now_s < self._report_again_at_s - REPORT_AGAIN_S
        removed = [
            (each.damage.sha256, each.modified_at_ns // 1_000_000) for each in blobs.out_of_service.all()
        ]
        seen = (await self._context.disk.run(self._context.quarantine.changed_at_ns), removed)
        if seen == self._seen and not is_due:
            return
        entries = await self._context.disk.run(self._context.quarantine.names)
        unknown = blobs.poison.names(AREA)
        if "" in unknown:
            return  # the directory cannot be read now, which does not mean that it is empty
        entries += removed
        names = {name for name, _ in entries} | unknown
        self._spans = {name: spans for name, spans in self._spans.items() if name in names}
        if is_due:
            self._report_again_at_s = now_s + REPORT_AGAIN_S
            self._reported.clear()
            await self._take_back(names)
        present = set(entries)
        self._reported = {entry: reported for entry, reported in self._reported.items() if entry in present}
        steady_s = asyncio.get_running_loop().time()
        self._first_seen_s = {entry: self._first_seen_s.get(entry, steady_s) for entry in entries}
        new = [entry for entry in entries if entry not in self._reported or self._has_more(entry)]
        for first in range(0, len(new), PAGE_BLOBS):
            await self._report_new(new[first : first + PAGE_BLOBS], steady_s)
        self._seen = seen if all(entry in self._reported for entry in new) else None

    async def _take_back(self, names: set[str]) -> None:
        """Report copies that the log counts on and that are not here any more."""
        after = ""
        while True:
            query = ListDamagedCopies(node_id=self._context.node_id, after=after, limit=PAGE_BLOBS)
            page = await self._context.metadata.read(query, list[str])
            missing = [sha256 for sha256 in page if sha256 not in names]
            # A copy that could not be moved is still in its place, and is found damaged there again.
            missing = await self._context.disk.run(_not_lying, self._context, missing)
            if missing:
                await self._reporter.report_lost(missing, "missing")
            if len(page) < PAGE_BLOBS:
                return
            after = page[-1]

    def _has_more(self, entry: _Entry) -> bool:
        """Whether more is known of a copy than was reported."""
        reported = self._reported[entry]
        return reported is not None and self._spans.get(entry[0], reported) != reported

    async def _report_new(self, entries: Sequence[_Entry], steady_s: float) -> None:
        known = await self._context.known_replicas([sha256 for sha256, _ in entries])
        for entry in entries:
            replica = known.get(entry[0])
            is_new = steady_s - self._first_seen_s[entry] < NEW_S
            if is_new and replica is not None and replica.state in ("held", "doomed"):
                continue  # its loss has yet to be reported, or a whole one has come: asked again
            if replica is not None and replica.state == "wanted":
                spans = self._spans.get(entry[0], [])
                if not replica.damaged or spans:
                    await self._report(entry[0], spans)
                self._reported[entry] = spans
            else:
                self._reported[entry] = None

    async def _report(self, sha256: str, spans: list[Span]) -> None:
        context = self._context
        command = ReportDamaged(node_id=context.node_id, sha256=sha256, spans=spans[:SPANS_MAX])
        try:
            await context.metadata.propose(command, type(None))
        except FilestoreError as refusal:
            _log.info("a damaged copy was not reported", extra={"sha256": sha256, "reason": refusal.details})
            raise
        facts = {"sha256": sha256, "wrong_bytes": sum(stop - start for start, stop in spans)}
        _log.warning("a damaged copy is kept, because its intact parts may be needed", extra=facts)


def _not_lying(context: CustodyContext, sha256s: list[str]) -> list[str]:
    return [sha256 for sha256 in sha256s if not context.blobs.has_name(sha256)]

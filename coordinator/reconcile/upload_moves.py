"""Move unfinished uploads off draining nodes: other nodes first get the acknowledged bytes.

The client of an idle upload may never come back, and its holder may be gone: so the leader acts for every
upload. The nodes of its placement report which of them have the bytes. If too few of them stay, others get
copies. Then the log places the upload there, in a new epoch (`PlaceUpload`), which fails if it has continued
in the meantime. An upload that is being written is left to its client: it ends, or pauses. Uploads that
cannot be moved are listed in the result of the run. If no node has the bytes any more, the upload starts
over.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from ca.errors import Conflict, NotFound
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import StepProgress
from coordinator.rpc.node_client import OrderFailed
from coordinator.rpc.server import Refused
from metadata.model.placement import choose
from metadata.model.records import DOWN, PlacedUpload, UploadPage
from metadata.protocol.commands import PlaceUpload
from metadata.protocol.queries import ListNodeUploads

PAGE_ROWS: Final = 100
UPLOADS_AT_ONCE: Final = 4
ANSWER_S: Final = 30.0  # a node answers sooner than this, even before the end
ASK_AGAIN_S: Final = 0.5
STILL_S: Final = 60.0  # without a byte that was read, received or hashed there
NAMED_MAX: Final = 5  # in the result of a run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers of the nodes of an upload's placement: `here`, `absent`, `busy`, or "" for no answer."""

    upload: PlacedUpload
    said: Mapping[str, str]

    @property
    def having(self) -> list[str]:
        """Return the nodes that have its bytes."""
        return [node_id for node_id in self.upload.placement if self.said.get(node_id) == "here"]

    @property
    def is_busy(self) -> bool:
        """Return whether it is being written."""
        return "busy" in self.said.values()

    def is_lost(self, facts: Facts) -> bool:
        """Return whether every node of the placement has left the cluster, or no longer has these bytes."""
        members = {node.node_id for node in facts.nodes}
        asked = [node_id for node_id in self.upload.placement if node_id in members]
        return self.upload.offset_bytes > 0 and all(self.said.get(name) == "absent" for name in asked)


def targets(upload: PlacedUpload, having: Sequence[str], facts: Facts) -> list[str]:
    """Return nodes that could get a copy, the best first: nodes of the placement, then others."""
    roomy = [c for c in facts.candidates if c.has_room(upload.offset_bytes) and c.node_id not in having]
    present = [c.node_id for c in roomy if c.node_id in upload.placement]
    zones = {facts.zone(node_id) for node_id in having}
    strangers = [c for c in roomy if c.node_id not in upload.placement]
    return present + choose(upload.file_uuid, strangers, len(strangers), taken_zones=zones)


def copies_wanted(having: Sequence[str], facts: Facts) -> int:
    """Return how many remaining nodes should have it: no fewer than before, at least the write quorum."""
    return max(facts.write_quorum, min(len(having), facts.wanted))


def obstacle(upload: PlacedUpload, facts: Facts) -> str:
    """Return why the move is impossible without asking the nodes; "" if it may be possible."""
    able = {*facts.counting_holders(upload.placement), *targets(upload, [], facts)}
    if upload.offset_bytes and len(able) < facts.write_quorum:
        return f"only {len(able)} of the remaining nodes can hold it, {facts.write_quorum} are required"
    return ""


def new_placement(upload: PlacedUpload, having: Sequence[str], facts: Facts) -> list[str]:
    """Return the nodes that have it, a holder among them first; then others, up to the number wanted."""
    holder = [node_id for node_id in upload.placement[:1] if node_id in having]
    first = holder + [node_id for node_id in having if node_id not in holder]
    others = [name for name in facts.counting_holders(upload.placement) if name not in first]
    others += [name for name in targets(upload, [*first, *others], facts) if name not in upload.placement]
    return (first + others)[: max(len(first), facts.replicas)]


def is_due(context: ReconcileContext, node_id: str) -> bool:
    """Return whether an unfinished upload is placed on a node."""
    return bool(context.ask_applied(ListNodeUploads(node_id=node_id, limit=1), UploadPage).uploads)


async def move_uploads(context: ReconcileContext, progress: StepProgress, node_id: str) -> None:
    """Do one pass over the unfinished uploads that are placed on a node.

    The result: uploads_moved, uploads_restarted; uploads_busy: they are written now; uploads_kept: they
    cannot be moved, the first of them named in `kept`.
    """
    unmoved: list[str] = []
    uploads = _placed_on(context, node_id)
    taking = asyncio.Lock()

    async def move(upload: PlacedUpload) -> None:
        why = await _Move(context, progress, upload).run()
        if why:
            progress.add(uploads_kept=1)
            facts = {"file_uuid": upload.file_uuid, "holder": node_id, "offset_bytes": upload.offset_bytes}
            _log.warning("an unfinished upload cannot be moved from a draining node: %s", why, extra=facts)
            unmoved.append(f"{upload.file_uuid}: {why}")
        await progress.note()

    async def work() -> None:
        while True:
            async with taking:
                upload = await anext(uploads, None)
            if upload is None:
                return
            await move(upload)

    async with asyncio.TaskGroup() as group:
        for _ in range(UPLOADS_AT_ONCE):
            group.create_task(work())
    if unmoved and "kept" not in progress.result:  # of the first node that keeps any
        progress.result["kept"] = "; ".join(sorted(unmoved)[:NAMED_MAX])


def forget_left(progress: StepProgress) -> None:
    """Forget the leftovers of an earlier pass of the same run."""
    for name in ("uploads_busy", "uploads_kept", "kept"):
        progress.result.pop(name, None)


async def _placed_on(context: ReconcileContext, node_id: str) -> AsyncIterator[PlacedUpload]:
    after, more = "", True
    while more:
        page = await context.ask(ListNodeUploads(node_id=node_id, after=after, limit=PAGE_ROWS), UploadPage)
        for upload in page.uploads:
            yield upload
        more = page.more
        after = page.uploads[-1].file_uuid if page.uploads else after


class _Move:
    """One upload."""

    def __init__(self, context: ReconcileContext, progress: StepProgress, upload: PlacedUpload) -> None:
        self._context, self._progress, self._upload = context, progress, upload

    async def run(self) -> str:
        """Move the upload; return why it stays, "" if it does not, or is written now. Raises Interrupted."""
        if why := obstacle(self._upload, self._context.facts()):
            return why
        survey = await self._survey()
        if survey.is_busy:
            self._progress.add(uploads_busy=1)
            return ""
        if not self._has_holder_said(survey):
            return (
                f"node {self._upload.placement[0]}, which holds it, does not report whether it is "
                "being written"
            )
        facts = self._context.facts()
        if survey.is_lost(facts):
            return await self._place(new_placement(self._upload, [], facts), survey, is_lost=True)
        having = facts.counting_holders(survey.having)
        if self._upload.offset_bytes:
            await self._copy(survey, having, copies_wanted(survey.having, facts))
            facts = self._context.facts()
            having = facts.counting_holders(having)
            if len(having) < facts.write_quorum:
                return (
                    f"only {len(having)} of the remaining nodes have its bytes, "
                    f"{facts.write_quorum} are required"
                )
        return await self._place(new_placement(self._upload, having, facts), survey)

    async def _survey(self) -> Survey:
        """Ask the nodes of the placement."""
        facts = self._context.facts()
        asked = [node_id for node_id in self._upload.placement if node_id in facts.reachable]
        said = await asyncio.gather(*(self._standing(node_id, self._upload) for node_id in asked))
        return Survey(self._upload, dict(zip(asked, said, strict=True)))

    def _has_holder_said(self, survey: Survey) -> bool:
        """Return whether the holder is known not to be written to: it reports so, or is down or gone."""
        holder = self._upload.placement[0]
        states = {node.node_id: node.state for node in self._context.facts().nodes}
        return bool(survey.said.get(holder)) or states.get(holder, DOWN) == DOWN

    async def _copy(self, survey: Survey, having: list[str], wanted: int) -> None:
        """Order copies on other nodes, until as many as are wanted have one, and add these to `having`."""
        sources = [*having, *(name for name in survey.having if name not in having)]
        if not sources:
            return
        for target in targets(self._upload, having, self._context.facts()):
            if len(having) >= wanted:
                return
            if await self._standing(target, self._upload, sources) == "here":
                self._progress.add(uploads_copied=1, bytes=self._upload.offset_bytes)
                having.append(target)

    async def _place(self, placement: list[str], survey: Survey, *, is_lost: bool = False) -> str:
        """Place the upload; return why not, "" on success. Changes meanwhile are left to the next pass.

        Raises Interrupted.
        """
        if not placement:
            return "no other node accepts the bytes"
        holder = self._upload.placement[0]
        look = replace(self._upload, offset_bytes=0)
        if holder in survey.said and await self._standing(holder, look) == "busy":  # since it was asked
            self._progress.add(uploads_busy=1)
            return ""
        command = PlaceUpload(
            file_uuid=self._upload.file_uuid,
            epoch=self._upload.epoch,
            offset_bytes=self._upload.offset_bytes,
            placement=placement,
            is_lost=is_lost,
            lost=[name for name, said in survey.said.items() if said == "absent"] if is_lost else [],
        )
        try:
            await self._progress.apply(command, int)
        except Refused as refusal:
            _log.info("an upload is not moved: %s", refusal.details, extra={"file_uuid": command.file_uuid})
            if refusal.code in (Conflict.code, NotFound.code):
                self._progress.add(uploads_changed=1)
                return ""
            return refusal.details
        facts = {"file_uuid": command.file_uuid, "placement": placement}
        _log.info(
            "an unfinished upload was moved" if not is_lost else "an unfinished upload starts over",
            extra=facts,
        )
        self._progress.add(**{"uploads_restarted" if is_lost else "uploads_moved": 1})
        return ""

    async def _standing(self, node_id: str, upload: PlacedUpload, sources: Sequence[str] = ()) -> str:
        """Return a node's final answer; "" for none.

        A node that did not answer recently is not asked, as it would delay each upload.
        """
        quiet = self._context.failures.answers
        if quiet.is_resting(node_id):
            return ""
        loop = asyncio.get_running_loop()
        last, moved_at_s = -1, loop.time()
        try:
            while loop.time() - moved_at_s < STILL_S:
                node = self._context.node(node_id)
                said = await self._context.orders.copy_upload(node, upload, sources, timeout_s=ANSWER_S)
                quiet.note_success(node_id)
                if said.state != "running":
                    return said.state
                if said.moved != last:
                    last, moved_at_s = said.moved, loop.time()
                await asyncio.sleep(ASK_AGAIN_S)
        except (OrderFailed, NotFound) as failure:
            if isinstance(failure, OrderFailed) and not failure.has_answered:
                quiet.note_failure(node_id, failure.reason)
            facts = {"file_uuid": upload.file_uuid, "peer": node_id}
            _log.info("a node does not report the state of an upload: %s", failure, extra=facts)
        return ""

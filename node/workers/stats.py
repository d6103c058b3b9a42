"""Exchange metrics and the list of background work between the workers of a node.

Worker 0 asks the others every LOOK_S and at each scrape, and keeps their answers; the others forward a scrape
to it. So it does not matter which worker a scrape reaches, and no counter goes back.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import choose_encoder

from ca.errors import Unavailable
from node.base.metrics import CLIENT_BYTES, POISON
from node.peer.client import PeerFailed, pieces
from node.workers.metrics_sum import WorkerMetrics, WorkerTotals, collect_families
from node.workers.siblings import Siblings
from runtime.background import Work, Works, WorkState

LOOK_S: Final = 1.0
HUNG_S: Final = 30.0  # without an answer; a loop that is only busy answers sooner
ANSWER_TIMEOUT_S: Final = 3.0  # for some hundred samples on a busy machine; a scrape has ten seconds
# A node that was stopped has received no answer in this time.
TICK_S_MAX: Final = ANSWER_TIMEOUT_S + 2 * LOOK_S
NUMBERS_BYTES_MAX: Final = 8 << 20
_PATH: Final = "/worker/numbers"
_WORK_PATH: Final = "/worker/work"
_UPLOADS: Final = "filestore_uploads_in_progress"

_log = logging.getLogger(__name__)


class WorkerNumbers:
    """The numbers of this worker, and on worker 0 those of all."""

    def __init__(self, registry: CollectorRegistry, siblings: Siblings, works: Works) -> None:
        self._registry = registry
        self._works = works
        self._siblings = siblings
        self._life = secrets.token_hex(8)
        self._tally = WorkerTotals()
        self._answering: frozenset[int] = frozenset()
        self._asking = asyncio.Lock()
        self._silences = Counter(
            "filestore_worker_silences",
            "Number of times a worker process did not answer when it was asked for its metrics.",
            registry=registry,
        )
        Gauge("filestore_workers", "Worker processes that answer.", registry=registry).set(1)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes for the other workers."""
        return [web.get(_PATH, self._answer), web.get(_WORK_PATH, self._answer_work)]

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the text of /metrics for the whole node, and its content type. Raises Unavailable."""
        if self._siblings.worker:
            return await self._of_the_node(accept)
        await self._ask_all()
        encode, content_type = choose_encoder(accept)
        return encode(self._tally.total(collect_families(self._registry), self._answering)), content_type

    async def work(self) -> dict[int, list[WorkState] | None]:
        """Return the background work of every worker of this node; None for a worker that does not answer."""
        others = self._siblings.others
        answers = await asyncio.gather(*(self._ask_work(worker) for worker in others))
        return {self._siblings.worker: self._works.states(), **dict(zip(others, answers, strict=True))}

    def has_received_all(self) -> bool:
        """Return whether every other worker has answered once, on worker 0; True on other workers."""
        return self._siblings.worker > 0 or self._tally.workers == frozenset(self._siblings.others)

    def other_uploads(self) -> int:
        """Return how many uploads the other workers were writing when they last answered."""
        return int(self._tally.gauge(_UPLOADS, self._answering))

    def other_unusable_paths(self) -> int:
        """Return how many paths on the disk the other workers skip."""
        return int(self._tally.gauge(POISON, self._answering))

    def other_client_bytes(self) -> float:
        """Return how many content bytes clients have exchanged with the other workers so far."""
        return sum(self._tally.counter(name) for name in CLIENT_BYTES)

    async def run(self, on_hung: Callable[[int], None]) -> None:
        """Keep asking, for ever, so that the numbers of a worker that dies are not lost. On worker 0.

        `on_hung` is called for a worker that answered before and stopped answering.
        """
        silent_s = dict.fromkeys(self._siblings.others, 0.0)
        asked_at_s = float("inf")

        async def look() -> None:
            nonlocal asked_at_s
            tick_s = min(max(0.0, time.monotonic() - asked_at_s), TICK_S_MAX)
            for worker in self._tally.workers:
                silent_s[worker] = 0.0 if worker in self._answering else silent_s[worker] + tick_s
                if silent_s[worker] > HUNG_S:
                    silent_s[worker] = 0.0  # its replacement has as long
                    on_hung(worker)
            asked_at_s = time.monotonic()
            await self._ask_all()

        await Work("numbers of the workers", look, every_s=LOOK_S).run()

    async def _ask_all(self) -> None:
        async with self._asking:  # an older answer must not arrive after a newer one
            others = self._siblings.others
            answers = await asyncio.gather(*(self._ask(worker) for worker in others))
            for worker, numbers in zip(others, answers, strict=True):
                if numbers is not None:
                    self._tally.receive(worker, numbers)
                elif worker in self._tally.workers:  # and is not just starting with the node
                    self._silences.inc()
            self._answering = frozenset(
                worker for worker, numbers in zip(others, answers, strict=True) if numbers is not None
            )

    async def _ask(self, worker: int) -> WorkerMetrics | None:
        try:
            answer, _ = await self._get(worker, _PATH, {})
            return msgspec.msgpack.decode(answer, type=WorkerMetrics)
        except (PeerFailed, TimeoutError, msgspec.MsgspecError) as error:
            _log.debug("a worker does not answer", extra={"worker": worker, "reason": str(error)})
            return None

    async def _ask_work(self, worker: int) -> list[WorkState] | None:
        try:
            answer, _ = await self._get(worker, _WORK_PATH, {})
            return msgspec.msgpack.decode(answer, type=list[WorkState])
        except (PeerFailed, TimeoutError, msgspec.MsgspecError):
            return None

    async def _of_the_node(self, accept: str) -> tuple[bytes, str]:
        try:
            return await self._get(0, "/metrics", {hdrs.ACCEPT: accept})
        except (PeerFailed, TimeoutError) as error:
            raise Unavailable("The first worker of this node does not answer.") from error

    async def _get(self, worker: int, path: str, headers: dict[str, str]) -> tuple[bytes, str]:
        """Return body and content type. Raises PeerFailed, TimeoutError."""
        # A child's scrape waits for worker 0, which waits for the other workers first.
        timeout_s = 2 * ANSWER_TIMEOUT_S if worker == 0 else ANSWER_TIMEOUT_S
        body = bytearray()
        async with asyncio.timeout(timeout_s):
            request = self._siblings.request(worker, "GET", path, headers=headers)
            async with request as answer:
                async for piece in pieces(f"worker {worker}", answer):
                    body += piece
                    if len(body) > NUMBERS_BYTES_MAX:
                        raise PeerFailed(f"worker {worker}", "answers too much")
                if answer.status != 200:
                    raise PeerFailed(f"worker {worker}", f"answered {answer.status}")
                return bytes(body), answer.headers.get(hdrs.CONTENT_TYPE, "")

    async def _answer(self, request: web.Request) -> web.Response:  # noqa: ARG002
        numbers = WorkerMetrics(self._life, collect_families(self._registry))
        return web.Response(body=msgspec.msgpack.encode(numbers), content_type="application/msgpack")

    async def _answer_work(self, request: web.Request) -> web.Response:  # noqa: ARG002
        body = msgspec.msgpack.encode(self._works.states())
        return web.Response(body=body, content_type="application/msgpack")

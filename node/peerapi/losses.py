"""Losses that workers report to worker 0. Apart from the rest: only the same node calls it.

These are the losses that the disk could not record. A worker keeps them in memory until worker 0 has received
them. Worker 0 reports them to the log, and serves other nodes: damaged replicas are out of service there too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from metadata.model.identifiers import is_sha256
from node.peer.client import PeerFailed
from node.storage.blobs import BlobStore
from node.storage.out_of_service import Loss
from node.storage.segments import BlobDamaged
from node.uploads.services import NODE, NodeServices
from runtime.background import Work
from web.app import read_json

REPORT_INTERVAL_S: Final = 1.0
REPORT_LOSSES_MAX: Final = 200  # at once
ANSWER_TIMEOUT_S: Final = 5.0
_PATH: Final = "/worker/losses"

_log = logging.getLogger(__name__)


class LossReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The losses that one worker knows of."""

    losses: Annotated[list[Loss], Meta(max_length=REPORT_LOSSES_MAX)]


def loss_routes() -> list[web.RouteDef]:
    """Return the routes for the other workers."""
    return [web.post(_PATH, _take_over)]


async def keep_reporting(services: NodeServices) -> None:
    """Report to worker 0 for ever. Runs on the other workers."""
    await Work(
        "losses for the first worker",
        partial(report, services),
        every_s=REPORT_INTERVAL_S,
        fails=(PeerFailed, TimeoutError),  # the first worker may be restarting
        level=logging.DEBUG,
    ).run()


async def report(services: NodeServices) -> None:
    """Report everything that is in memory now. Raises PeerFailed, TimeoutError."""
    out_of_service = services.blobs.out_of_service
    while losses := out_of_service.losses(REPORT_LOSSES_MAX):

        async def body() -> AsyncIterator[bytes]:
            yield msgspec.json.encode(LossReport(losses=losses))  # consumed before the next losses

        headers = {"Content-Type": "application/json"}
        async with (
            asyncio.timeout(2 * ANSWER_TIMEOUT_S),
            services.siblings.request(
                0, "POST", _PATH, headers=headers, body=body(), answer_timeout_s=ANSWER_TIMEOUT_S
            ) as answer,
        ):
            if answer.status != 204:
                raise PeerFailed("worker 0", f"answered {answer.status}")
        out_of_service.forget_losses(loss.sha256 for loss in losses)


async def _take_over(request: web.Request) -> web.Response:
    services = request.app[NODE]
    received = await read_json(request, LossReport)
    for loss in received.losses:
        if is_sha256(loss.sha256):
            await services.disk.run(_note, services.blobs, loss)
    return web.Response(status=204)


def _note(blobs: BlobStore, loss: Loss) -> None:
    if loss.file is not None:
        with suppress(OSError):
            blobs.remove_from_service(
                BlobDamaged(loss.sha256, "was found damaged by another worker", file=loss.file)
            )
    blobs.out_of_service.note_loss(loss)

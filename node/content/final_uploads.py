"""The handlers of final uploads (tus concatenation): which node puts one together, for all who ask for it.

Any node takes the creation of one, and passes it on to the node that holds the upload, at its address.
"""

import asyncio
from functools import partial
from typing import Final

from aiohttp import web

from api.access import authenticate
from ca.errors import Conflict
from metadata.model.records import Caller, UploadRecord
from node.content import handlers, tus
from node.content.concatenation import gather
from node.content.handlers import Unreachable, begin, elsewhere, hung, passed_on
from node.content.receiving import complete, ended
from node.content.upload_session import HandedOver, upload_session
from node.uploads.forwarding import node_holding, pass_on
from node.uploads.services import NODE, NodeServices
from node.uploads.takeover import take_over
from web.headers.tus_fields import parts_field, versioned

GATHERING_S: Final = 24 * 3600.0  # the holder says that it lives; its time is in the size of the file


async def tus_post(request: web.Request) -> web.StreamResponse:
    """For clients whose network lets neither PATCH nor DELETE through: the method is what the header
    `X-HTTP-Method-Override` says (tus core). Needs write on the file.
    """
    await authenticate(request)
    parts = parts_field(request.headers)
    if not parts:
        return await handlers.tus_post(request)
    with versioned():  # a final upload, from the node that was asked to create it
        _, caller, record = await begin(request)
        if record.parts != parts:
            raise Conflict("Upload-Concat: this upload consists of other parts.")
        return await concatenate(request, caller, record)


async def concatenate(request: web.Request, caller: Caller, record: UploadRecord) -> web.StreamResponse:
    """Put a final upload together on the node that holds it: 201 when the file is available, or was already.

    The work is that of all who ask for it, and goes on without them. As for any upload another node takes
    over where the holder cannot be reached, or its disk takes no more; it begins where the upload stands.
    """
    services = request.app[NODE]
    onward = partial(pass_on, path=tus.address(record.file_uuid), answer_timeout_s=GATHERING_S)
    if holder := elsewhere(services, record):
        with services.locks.writer(caller.subject, record.file_uuid):
            try:
                return await passed_on(request, holder, onward)
            except Unreachable:
                record = await take_over(services, caller, record)
            if holder := elsewhere(services, record):
                return await onward(request, holder)
    elif record.placement and services.disk.hangs():
        return await hung(request, services, caller, record, onward)
    work = partial(_concatenated, request, services, caller, record)
    try:
        return tus.concatenated(request, services, await services.concatenations.join(record.file_uuid, work))
    except HandedOver as error:
        with services.locks.writer(caller.subject, record.file_uuid):
            return await onward(request, node_holding(services, error.successor))


async def _concatenated(
    request: web.Request, services: NodeServices, caller: Caller, record: UploadRecord
) -> UploadRecord:
    """The upload once it has ended well; whoever needs its place may break this off."""
    task = asyncio.current_task()
    assert task is not None
    give_way = task.cancel

    def disconnect() -> None:
        give_way()

    session_of = upload_session(
        request, services, caller, record, seen_releases=-1, connection=(lambda: True, disconnect)
    )
    async with session_of as session:
        if session.has_ended:
            return ended(session.record)
        await session.begin()
        await gather(session)
        return await complete(session)

"""What becomes of an answer of the gateway that has begun."""

from typing import cast

import aiohttp
import pytest
from aiohttp import web

from deploy.base.connection import Connection
from deploy.restic.listening import place_of
from deploy.restic.repository import Repositories
from deploy.restic.server import _STATE, GatewayState, _answered, _shown
from filestore_client import AsyncClient
from web.app import new_application, serve_on
from web.listener import start_listening


@pytest.mark.parametrize("failure", [ConnectionError, aiohttp.ClientError, TimeoutError])
async def test_answer_that_cannot_be_ended_is_cut_and_nothing_passes_for_its_content(
    failure: type[Exception],
) -> None:
    async def begun(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 20
        await response.prepare(request)
        await response.write(b"content")
        raise failure

    app = new_application([web.get("/", begun)], component="gateway")
    app.middlewares.extend((_shown, _answered))
    nobody, nowhere = cast("AsyncClient", None), cast("Connection", None)
    app[_STATE] = GatewayState(nobody, Repositories(nobody, "bucket", ""), nowhere, is_append_only=False)
    listening, place = place_of("127.0.0.1:0").bound()
    listening.setblocking(False)
    listener = await serve_on(start_listening(listening), app)
    try:
        async with aiohttp.ClientSession() as http, http.get(place.url) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
    finally:
        await listener.close()

"""The server: restic's REST protocol, versions 1 and 2, over plain HTTP.

https://restic.readthedocs.io/en/stable/100_references.html#rest-backend
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import aiohttp
import click
import msgspec
from aiohttp import hdrs, web

from deploy.base.failures import line_of
from deploy.base.lookup import find_bucket
from deploy.restic.repository import CONFIG, NAME, REPOSITORY, TYPES, Repositories
from filestore_client import AsyncClient
from filestore_client.base.errors import (
    ChecksumMismatch,
    Conflict,
    FilestoreError,
    Forbidden,
    InsufficientStorage,
    NotFound,
    PayloadTooLarge,
    Unauthorized,
    Unavailable,
)

V1: Final = "application/vnd.x.restic.rest.v1"
V2: Final = "application/vnd.x.restic.rest.v2"
IN_MEMORY_BYTES_MAX: Final = 32 << 20  # a body of so many goes in one request; larger ones as they come
READ_BYTES: Final = 1 << 20
BODY_STALL_S: Final = 60.0  # without a byte of a body for so long restic has gone
_REPOSITORIES: Final = web.AppKey("repositories", Repositories)
_STATUSES: Final = (
    (NotFound, 404),
    (Conflict, 403),  # as restic's own server answers for what is there already
    (ChecksumMismatch, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (PayloadTooLarge, 413),
    (InsufficientStorage, 507),
    (Unavailable, 503),
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(client: AsyncClient, bucket: str, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT. Raises NotFound when there is no such bucket, OSError."""
    found = await find_bucket(client, bucket)
    runner = web.AppRunner(application(Repositories(client, found.bucket_id)), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"restic -r rest:http://{shown}:{runner.addresses[0][1]}/NAME/ finds bucket {found.name}.")
        await stopping.wait()
    finally:
        await runner.cleanup()


def application(repositories: Repositories) -> web.Application:
    """The routes of the protocol."""
    app = web.Application(middlewares=[_answered], client_max_size=IN_MEMORY_BYTES_MAX)
    app[_REPOSITORIES] = repositories
    app.router.add_post("/{repository}/", _create)
    app.router.add_get(f"/{{repository}}/{CONFIG}", _read)
    app.router.add_post(f"/{{repository}}/{CONFIG}", _save)
    app.router.add_delete(f"/{{repository}}/{CONFIG}", _delete)
    app.router.add_get("/{repository}/{type}/", _list)
    app.router.add_get("/{repository}/{type}/{name}", _read)
    app.router.add_post("/{repository}/{type}/{name}", _save)
    app.router.add_delete("/{repository}/{type}/{name}", _delete)
    return app


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the cluster refuses, in the statuses that restic knows."""
    try:
        return await handler(request)
    except FilestoreError as error:
        if request.writer.output_size:
            raise
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
        return web.Response(status=status, text=f"{line_of(error)}\n")
    except (ConnectionError, aiohttp.ClientError, TimeoutError) as error:
        # Whoever asked has gone, or says nothing any more: nobody reads this.
        raise web.HTTPBadRequest(text="The body ended before its end.\n") from error


async def _create(request: web.Request) -> web.Response:
    """A repository is there as soon as it has a configuration."""
    _repository(request)
    if request.query.get("create") != "true":
        raise web.HTTPBadRequest(text="?create=true is wanted.\n")
    return web.Response()


async def _list(request: web.Request) -> web.Response:
    repository, kind = _repository(request), _type(request)
    found = await request.app[_REPOSITORIES].list(repository, kind)
    if V2 in request.headers.get(hdrs.ACCEPT, ""):
        listed = [{"name": name, "size": size_bytes} for name, size_bytes in found.items()]
        return _listed(listed, V2)
    return _listed(list(found), V1)


def _listed(names: list[Any], version: str) -> web.Response:
    """A list. restic takes one whose type has a charset for one of version 1."""
    return web.Response(body=msgspec.json.encode(names), content_type=version)


async def _read(request: web.Request) -> web.StreamResponse:
    """GET and HEAD, with one range."""
    repositories = request.app[_REPOSITORIES]
    is_head = request.method == hdrs.METH_HEAD
    file = await (repositories.find if is_head else repositories.known)(*_named(request))
    try:
        wanted = request.http_range
    except ValueError:
        raise web.HTTPRequestRangeNotSatisfiable from None
    start, stop, _ = wanted.indices(file.size_bytes)
    is_part = hdrs.RANGE in request.headers
    if is_part and start >= stop:
        raise web.HTTPRequestRangeNotSatisfiable(headers={hdrs.CONTENT_RANGE: f"bytes */{file.size_bytes}"})
    response = web.StreamResponse(status=206 if is_part else 200)
    response.content_type = "application/octet-stream"
    response.content_length = stop - start
    if is_part:
        response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{file.size_bytes}"
    if is_head:
        await response.prepare(request)
        return response
    async with aclosing(repositories.read(file, start, stop)) as parts:
        first = await anext(parts, b"")  # before the head goes out: until then an error can be answered
        await response.prepare(request)
        await response.write(first)
        async for part in parts:
            await response.write(part)
    await response.write_eof()
    return response


async def _save(request: web.Request) -> web.Response:
    repository, kind, name = _named(request)
    length_bytes = request.content_length
    small = length_bytes is not None and length_bytes <= IN_MEMORY_BYTES_MAX
    content = await _whole(request) if small else _parts(request)
    await request.app[_REPOSITORIES].save(repository, kind, name, content)
    return web.Response()


async def _delete(request: web.Request) -> web.Response:
    await request.app[_REPOSITORIES].delete(*_named(request))
    return web.Response()


async def _whole(request: web.Request) -> bytes:
    """Raises when the body ends early."""
    return b"".join([part async for part in _parts(request)])


async def _parts(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(BODY_STALL_S):
            part = await request.content.read(READ_BYTES)
        if not part:
            return
        yield part


def _named(request: web.Request) -> tuple[str, str, str]:
    """Repository, type and name. Raises HTTPNotFound for what can be none."""
    repository = _repository(request)
    if "type" not in request.match_info:
        return repository, CONFIG, ""
    name = request.match_info["name"]
    if not NAME.fullmatch(name):
        raise web.HTTPNotFound
    return repository, _type(request), name


def _repository(request: web.Request) -> str:
    repository = request.match_info["repository"]
    if not REPOSITORY.fullmatch(repository):
        raise web.HTTPNotFound(text="A repository is named by letters, digits, '.', '_' and '-'.\n")
    return repository


def _type(request: web.Request) -> str:
    kind = request.match_info["type"]
    if kind not in TYPES:
        raise web.HTTPNotFound
    return kind

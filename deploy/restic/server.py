"""The server: restic's REST protocol, versions 1 and 2, over plain HTTP.

https://restic.readthedocs.io/en/stable/100_references.html#rest-backend
"""

import asyncio
import re
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
import msgspec
from aiohttp import hdrs, web

from ca.errors import InvalidRequest
from deploy.base.connection import Connection, read_text
from deploy.base.failures import explain_rejection, line_of
from deploy.base.lookup import find_bucket
from deploy.restic.access import Handler, guard, read_passwords
from deploy.restic.listening import ListenPlace
from deploy.restic.repository import CONFIG, TYPES, Repositories
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
from metadata.model.records import DEFAULT_BUCKET_ID
from web.app import ClientGone, new_application, serve_on
from web.listener import start_listening
from web.request_body import body_chunks

V1: Final = "application/vnd.x.restic.rest.v1"
V2: Final = "application/vnd.x.restic.rest.v2"
# Each holds a piece of a stream, and the next one while the first is sent: 16 MiB and the buffers.
BODIES_MAX: Final = 6
REPOSITORY_CHARS_MAX: Final = 128  # with type and name it has to fit into the name of a file
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,63})*")
_NAME: Final = re.compile(r"[0-9a-f]{64}")
_KEPT: Final = (hdrs.WWW_AUTHENTICATE, hdrs.ALLOW)  # headers of refusals
_STATUSES: Final = (
    (NotFound, 404),
    (Conflict, 403),  # as restic's own server answers where there is another configuration
    (ChecksumMismatch, 400),
    (Unauthorized, 503),  # the token of the gateway: restic tries again, and another token may be there then
    (Forbidden, 403),
    (PayloadTooLarge, 413),
    (InsufficientStorage, 507),
    (Unavailable, 503),
)
_TOLD: Final = (Unauthorized, Forbidden, InsufficientStorage, PayloadTooLarge, Unavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The options of the command. `password_file` None admits every client that reaches the address."""

    bucket: str
    place: ListenPlace
    password_file: Path | None
    is_append_only: bool


class GatewayState:
    """The common state of a server's requests."""

    def __init__(
        self,
        client: AsyncClient,
        repositories: Repositories,
        connection: Connection,
        *,
        is_append_only: bool,
    ) -> None:
        self.repositories = repositories
        self.is_append_only = is_append_only
        self.bodies = asyncio.Semaphore(BODIES_MAX)
        self._client, self._connection = client, connection
        self._told = ""

    def tell(self, error: FilestoreError) -> None:
        """Say on standard error what the cluster refuses; once, until a request has succeeded."""
        line = self._why_rejected() if isinstance(error, Unauthorized) else line_of(error)
        if line != self._told:
            self._told = line
            click.echo(f"filestore: {line}", err=True)

    def _why_rejected(self) -> str:
        file = self._connection.token_file
        try:
            token = read_text(file, "the token")
            return line_of(explain_rejection(token, f"in {file}", at_s=self._client.transport.time.now_s()))
        except InvalidRequest as error:
            return line_of(error)

    def note_success(self) -> None:
        """The cluster has answered as it should."""
        if self._told:
            self._told = ""
            click.echo("filestore: the cluster serves requests again", err=True)


_STATE: Final = web.AppKey("state", GatewayState)


async def serve(client: AsyncClient, connection: Connection, gateway: Gateway) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises NotFound if there is no such bucket, InvalidRequest, Conflict, UnsafeSecretFile, OSError.
    """
    passwords = None if gateway.password_file is None else read_passwords(gateway.password_file)
    listening, place = gateway.place.bound()
    try:
        click.echo(f"Starting on {place.url}: looking for bucket {gateway.bucket} first.", err=True)
        found = await find_bucket(client, gateway.bucket)
        owner_id = (await client.whoami()).user_id if found.bucket_id == DEFAULT_BUCKET_ID else ""
        repositories = Repositories(client, found.bucket_id, owner_id)
        state = GatewayState(client, repositories, connection, is_append_only=gateway.is_append_only)
        app = application(state, guard(passwords, place.own_host))
        listening.setblocking(False)
        listener = await serve_on(start_listening(listening), app)
        try:
            stopping = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stopping.set)
            _introduce(place, gateway.password_file, found.name)
            await stopping.wait()
        finally:
            await listener.close()
    finally:
        listening.close()
        if place.path is not None:
            place.path.unlink(missing_ok=True)


def _introduce(place: ListenPlace, password_file: Path | None, bucket: str) -> None:
    """Say how restic finds the repositories. A password appears neither here nor among restic's arguments."""
    if place.path is None and not _is_loopback(place.host):
        click.echo(
            "filestore: warning: passwords and content are sent over the network unencrypted", err=True
        )
    if password_file is None:
        click.echo(f"Serving bucket {bucket}: restic -r {shlex.quote(f'rest:{place.url}NAME/')}", err=True)
        return
    click.echo(f"Serving bucket {bucket}. User and password are in {password_file}; for restic:", err=True)
    known = f"$(head -n 1 {shlex.quote(str(password_file.absolute()))})@"
    url = place.url.replace("://", f"://{known}", 1)
    click.echo(f'  export RESTIC_REPOSITORY="rest:{url}NAME/"', err=True)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def application(state: GatewayState, guarded: Any) -> web.Application:
    """The routes of the protocol."""
    repository = "/{repository:[A-Za-z0-9._/-]+}"
    config, listed = f"{repository}/{CONFIG}", f"{repository}/{{type}}/"
    named = f"{listed}{{name}}"
    routes = [web.post(f"{repository}/", _create), web.get(listed, _list)]
    for place in (config, named):
        routes += web.get(place, _read), web.post(place, _save), web.delete(place, _delete)
    app = new_application(routes, component="gateway")
    app.middlewares.extend((_shown, guarded, _answered))
    app[_STATE] = state
    return app


@web.middleware
async def _shown(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer refusals as they are: `serve_on` would answer with errors of the cluster's API."""
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        kept = {name: refusal.headers[name] for name in _KEPT if name in refusal.headers}
        return web.Response(status=refusal.status, text=refusal.text, headers=kept)


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what the cluster refuses in the statuses that restic knows."""
    state = request.app[_STATE]
    try:
        response = await handler(request)
    except FilestoreError as error:
        if isinstance(error, _TOLD):
            state.tell(error)
        if request.writer.output_size:
            raise
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
        return web.Response(status=status, text=f"{line_of(error)}\n")
    except (ConnectionError, aiohttp.ClientError, TimeoutError) as error:
        if request.writer.output_size:  # another head would pass for content
            raise ClientGone("a response that has begun cannot be replaced") from error
        # The client has gone or is silent: it does not read this.
        raise web.HTTPBadRequest(text="The body is incomplete.\n") from error
    state.note_success()
    return response


async def _create(request: web.Request) -> web.Response:
    """A repository is there as soon as it has a configuration."""
    _repository(request)
    if request.query.get("create") != "true":
        raise web.HTTPBadRequest(text="?create=true is required.\n")
    return web.Response()


async def _list(request: web.Request) -> web.Response:
    repository, kind = _repository(request), _type(request)
    found = await request.app[_STATE].repositories.list(repository, kind)
    if V2 in request.headers.get(hdrs.ACCEPT, ""):
        listed = [{"name": name, "size": size_bytes} for name, size_bytes in found.items()]
        return _listed(listed, V2)
    return _listed(list(found), V1)


def _listed(names: list[Any], version: str) -> web.Response:
    """A list. restic takes one whose type has a charset for one of version 1."""
    return web.Response(body=msgspec.json.encode(names), content_type=version)


async def _read(request: web.Request) -> web.StreamResponse:
    """GET and HEAD, with one range."""
    repositories = request.app[_STATE].repositories
    is_head = request.method == hdrs.METH_HEAD
    file = await (repositories.find if is_head else repositories.find_known)(*_named(request))
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
    state, named = request.app[_STATE], _named(request)
    async with state.bodies:
        await state.repositories.save(*named, _parts(request))
    return web.Response()


async def _delete(request: web.Request) -> web.Response:
    state, named = request.app[_STATE], _named(request)
    if state.is_append_only and named[1] != "locks":
        raise web.HTTPForbidden(text="This server is append-only.\n")
    await state.repositories.delete(*named)
    return web.Response()


async def _parts(request: web.Request) -> AsyncIterator[bytes]:
    async with aclosing(body_chunks(request)) as chunks:
        async for chunk in chunks:
            yield chunk


def _named(request: web.Request) -> tuple[str, str, str]:
    """Repository, type and name. Raises HTTPNotFound for what can be none."""
    repository = _repository(request)
    if "type" not in request.match_info:
        return repository, CONFIG, ""
    name = request.match_info["name"]
    if not _NAME.fullmatch(name):
        raise web.HTTPNotFound
    return repository, _type(request), name


def _repository(request: web.Request) -> str:
    """The path of a repository, of one part or several. Raises HTTPNotFound for what can be none."""
    repository = request.match_info["repository"]
    parts = repository.split("/")
    is_ambiguous = len(parts) > 1 and not {*TYPES, CONFIG}.isdisjoint(parts)
    if is_ambiguous or len(repository) > REPOSITORY_CHARS_MAX or not _REPOSITORY.fullmatch(repository):
        raise web.HTTPNotFound(
            text=(
                "The name of a repository consists of letters, digits, '.', '_' and '-', with '/' "
                "between its parts.\n"
            )
        )
    return repository


def _type(request: web.Request) -> str:
    kind = request.match_info["type"]
    if kind not in TYPES:
        raise web.HTTPNotFound
    return kind

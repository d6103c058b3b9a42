"""A GNS3 server and its API: version 3, and version 2 (GNS3 2.2) as far as it has the same calls.

The token of version 3 is valid for a day: a request that is rejected for it is repeated with a new one.
Errors are those of `ca.errors`. Their texts name the server, to distinguish them from errors of the store.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from ca.errors import (
    Conflict,
    FilestoreError,
    Forbidden,
    InsufficientStorage,
    Internal,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.liveness import while_alive
from deploy.gns3.records import (
    EMULATORS,
    FOLDERS,
    AccessToken,
    ComputeImage,
    ControllerImage,
    LabNode,
    LabProject,
    ListedFile,
    Notification,
    Refusal,
    ServerImage,
    ServerVersion,
    is_built_in,
)
from filestore_client.base.retry import connection_trouble
from filestore_client.base.tls import root_context

CONNECT_TIMEOUT_S: Final = 10.0
# Opening a project makes its nodes, one after another; an import is unpacked at its end; before an export
# begins the server fetches what other computes have.
LONG_TIMEOUT_S: Final = 1800.0
CHECKSUMS_TIMEOUT_S: Final = 120.0  # of images: GNS3 2.2 answers nothing else meanwhile
ANSWER_S: Final = 20.0  # without a deadline
SILENT_S_MAX: Final = 30.0  # of notifications: the server says something every 5 s
ENDING_S_MAX: Final = 5.0  # for a task that was cancelled
RETRY_PAUSE_S: Final = 1.0
READ_BYTES: Final = 256 << 10
ANSWER_BYTES_MAX: Final = 64 << 20
_LOST: Final = (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError)

T = TypeVar("T")


class ProjectRuns(Conflict):
    """A project is not exported while its nodes run."""


class SignInRefused(Forbidden):
    """A server does not take the user, the password or the token."""


_STATUSES: Final[Mapping[int, type[FilestoreError]]] = {
    400: InvalidRequest,
    401: SignInRefused,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: InvalidRequest,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: InsufficientStorage,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address of a server, its user, and the trusted root. `root_pem` "" is the system's choice.

    `server_id` distinguishes its backups from those of other servers, see `identity`.
    """

    name: str
    url: str
    server_id: str = ""
    user: str = ""
    password: str = ""
    compute_user: str = ""
    compute_password: str = ""
    root_pem: str = ""

    @property
    def identity(self) -> ServerIdentity:
        """Return the identity of the server, independent of its address and name."""
        return ServerIdentity(self.server_id, self.name)

    def __repr__(self) -> str:
        return f"ServerAddress(name={self.name!r}, url={self.url!r}, user={self.user!r})"


class Gns3Server:
    """Use as `async with`. `deadline_s`: how long a server that does not answer is asked again."""

    def __init__(self, address: ServerAddress, *, deadline_s: float = 30.0) -> None:
        self.name = address.name
        self.identity = address.identity
        self.url = address.url.rstrip("/")
        self.version, self.deadline_s = "", deadline_s
        self.runs = True
        self._address = address
        self._api = "v3"
        self._token = ""
        self._renewing = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context: ssl.SSLContext | bool = True
        if self._address.root_pem:
            context = root_context(self._address.root_pem)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            headers={"User-Agent": "filestore"},
            read_bufsize=READ_BYTES,
        )
        try:
            await self._find_version()
            if self.is_v3:
                await self._renew("")
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    @property
    def is_v3(self) -> bool:
        """Whether it has users and roles, and lists its images; GNS3 2.2 does neither."""
        return self._api == "v3"

    @property
    def _answer_s(self) -> float:
        """How long it may take to answer what it can answer at once."""
        return max(self.deadline_s, 1.0) if self.deadline_s else ANSWER_S

    @property
    def has_compute_credentials(self) -> bool:
        """Whether requests to its compute can be made."""
        return not self.is_v3 or bool(self._address.compute_user)

    @property
    def compression(self) -> str:
        """How it packs what it exports, as the store names it."""
        return "none" if self.is_v3 else "deflate"  # exports with equal parts, which are sent and kept once

    async def projects(self) -> list[LabProject]:
        """Every project that the user may see, by name."""
        found = await self._call("GET", "/projects", list[LabProject])
        return sorted(found, key=lambda project: (project.name, project.project_id))

    async def project(self, project_id: str) -> LabProject:
        """A project as it is now. Raises NotFound."""
        return await self._call("GET", f"/projects/{project_id}", LabProject)

    async def nodes(self, project_id: str) -> list[LabNode]:
        """The nodes of a project. Of one that is being opened the answer comes when that is done."""
        return await self._call("GET", f"/projects/{project_id}/nodes", list[LabNode], is_slow=True)

    async def export(self, project_id: str) -> AsyncGenerator[bytes, None]:
        """A project as a portable archive, without images and snapshots.

        One that is just being opened would be exported, and saved, without the nodes that it has not yet. The
        list of its nodes is answered when it has all of them. A server may be silent for the deadline, or for
        LONG_TIMEOUT_S if it has to fetch files from other computes first.

        Raises ProjectRuns; Conflict if GNS3 exports no such project; Unavailable when it is broken off.
        """
        nodes = await self.nodes(project_id)
        if not all(node.is_exported for node in nodes):
            raise Conflict("GNS3 exports no project with a VirtualBox or VMware node: its disk is elsewhere.")
        is_local = all(node.compute_id in (None, "local") for node in nodes)
        path = f"/projects/{project_id}/export"
        params = {"compression": self.compression} if self.is_v3 else {}
        timeout_s = self._answer_s if is_local else LONG_TIMEOUT_S
        async with self._exchange("GET", path, timeout_s=timeout_s, params=params) as response:
            async for part in response.content.iter_chunked(READ_BYTES):
                yield part

    async def import_project(
        self, project_id: str, content: AsyncIterator[bytes], *, name: str = ""
    ) -> LabProject:
        """Make a project out of an export; `project_id` must be a new one. Raises what `content` does."""
        path = f"/projects/{project_id}/import"
        answer = await self._send(path, content, params={"name": name} if name else {})
        return self._decoded(answer, LabProject, path)

    async def open(self, project_id: str) -> None:
        """Open a project: all its nodes are made. Raises Conflict when one cannot be."""
        await self._do("POST", f"/projects/{project_id}/open", json={})

    async def act(self, project_id: str, path: str) -> None:
        """`close` a project, or `nodes/start` all of its nodes."""
        await self._do("POST", f"/projects/{project_id}/{path}", json={})

    async def reload(self) -> None:
        """Have the server look for projects in its folder; it opens none."""
        await self._do("POST", "/reload", json={})

    async def update_project(self, project_id: str, settings: Mapping[str, object]) -> None:
        """Change settings of a project, such as `auto_open`."""
        await self._do("PUT", f"/projects/{project_id}", json=settings)

    async def project_files(self, project_id: str) -> list[str]:
        """The files in the folder of an opened project, by their paths. The server reads each of them.

        Raises NotFound if the compute does not know the project; Forbidden, SignInRefused.
        """
        path = f"/compute/projects/{project_id}/files"
        listed = await self._call("GET", path, list[ListedFile], is_compute=True, is_slow=True)
        return [file.path for file in listed]

    async def delete_project(self, project_id: str) -> None:
        """Delete a project, and its folder."""
        await self._do("DELETE", f"/projects/{project_id}")

    async def remove_remains(self, project_id: str) -> None:
        """Remove the folder that an import which failed has left: as a project, which is then deleted."""
        name = f"remains of {project_id}"
        await self._do("POST", "/projects", json={"name": name, "project_id": project_id})
        await self.delete_project(project_id)

    async def images(self) -> list[ServerImage]:
        """Every image that did not come with the server, by name; what has no checksum is none."""
        if self.is_v3:
            found = [each.image for each in await self._call("GET", "/images", list[ControllerImage])]
        else:
            found = [each for kind in EMULATORS for each in await self._images_of(kind)]
        known = [each for each in found if each.checksum and each.image_type in EMULATORS]
        own = [each for each in known if not is_built_in(each.filename)]
        return sorted(own, key=lambda each: each.filename)

    async def _images_of(self, image_type: str) -> list[ServerImage]:
        path = f"/compute/{EMULATORS[image_type]}/images"
        listed = await self._call("GET", path, list[ComputeImage], timeout_s=CHECKSUMS_TIMEOUT_S)
        return [each.image(image_type) for each in listed]

    async def look_at_compute(self) -> None:
        """Raises SignInRefused when the compute does not take its credentials, with which images are read."""
        try:
            async with self._exchange("GET", "/compute/version", is_compute=True) as response:
                await response.read()
        except SignInRefused as error:
            raise SignInRefused(
                f"The compute of GNS3 server {self.name} rejects this password of "
                f"{self._address.compute_user!r}."
            ) from error

    async def read_image(self, image: ServerImage, start: int = 0) -> AsyncGenerator[bytes, None]:
        """The content of an image from a byte on. It needs the credentials of the compute.

        Raises InvalidRequest without credentials, Forbidden if they are rejected.
        """
        if not self.has_compute_credentials:
            raise InvalidRequest(
                f"GNS3 server {self.name}: its images are read with the credentials of its compute, "
                "which are unknown here. Sign in again with --compute-user and --compute-password-file "
                "(compute_username and compute_password in [Server] of its configuration)."
            )
        path = f"/compute/{EMULATORS[image.image_type]}/images/{quote(image.filename)}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        async with self._exchange("GET", path, headers=headers, is_compute=True) as response:
            skip_bytes = start if response.status == 200 else 0  # GNS3 2.2 knows no ranges
            async for part in response.content.iter_chunked(READ_BYTES):
                if skip_bytes < len(part):
                    yield part[skip_bytes:]
                skip_bytes = max(0, skip_bytes - len(part))

    async def write_image(self, image: ServerImage, content: AsyncIterator[bytes], *, is_twin: bool) -> None:
        """Store an image of a name that the server has not yet. Raises what `content` does.

        With its folder in the name a server of version 3 leaves alone what is there already; but it refuses
        content then that it has under another name (`is_twin`). By the name alone it takes that too.
        """
        name = quote(image.filename)
        if self.is_v3:
            place = name if is_twin else f"{FOLDERS[image.image_type]}/{name}"
            path = f"/images/upload/{place}"
            stored = self._decoded(await self._send(path, content), ControllerImage, path)
            if stored.checksum != image.checksum:
                raise Conflict(
                    f"GNS3 server {self.name} has another image named {image.filename}: {stored.checksum}."
                )
            return
        await self._send(f"/compute/{EMULATORS[image.image_type]}/images/{name}", content)

    async def notifications(self, project_id: str = "") -> AsyncGenerator[Notification, None]:
        """Yield the events of the server or a project. Raises Unavailable when the connection is lost.

        The first event, a ping, arrives as soon as the server listens for the caller.
        """
        decode = msgspec.json.Decoder(Notification).decode
        path = f"/projects/{project_id}/notifications" if project_id else "/notifications"
        async with self._exchange("GET", path, timeout_s=SILENT_S_MAX) as response:
            async for line in response.content:
                try:
                    yield decode(line)
                except msgspec.MsgspecError:
                    continue

    async def _find_version(self) -> None:
        for self._api in ("v3", "v2"):
            try:
                found = await self._call("GET", "/version", ServerVersion, is_public=True)
            except NotFound:
                continue
            self.version = found.version
            if self._api == "v2" and not found.version.startswith("2.2"):
                break
            return
        told = f"GNS3 {self.version} is too old" if self.version else f"no GNS3 server answers at {self.url}"
        raise InvalidRequest(f"GNS3 server {self.name}: {told}. Supported are 2.2 and 3.0.")

    async def _renew(self, refused: str) -> None:
        """Another token in the place of the one that was refused, once for all that wait for it."""
        async with self._renewing:
            if self._token != refused:
                return
            body = {"username": self._address.user, "password": self._address.password}
            path = "/access/users/authenticate"
            try:
                found = await self._call("POST", path, AccessToken, is_public=True, json=body)
            except SignInRefused as error:
                raise SignInRefused(
                    f"GNS3 server {self.name} rejects this password of {self._address.user!r}."
                ) from error
            self._token = found.access_token

    async def _ask_version(self) -> None:
        await self._call("GET", "/version", ServerVersion, is_public=True)

    async def _do(self, method: str, path: str, **request: Any) -> None:
        """A request that may take long, and whose answer says nothing."""
        async with (
            while_alive(self._ask_version, every_s=self._answer_s),
            self._exchange(method, path, timeout_s=LONG_TIMEOUT_S, **request) as response,
        ):
            await response.read()

    async def _call(
        self, method: str, path: str, reply_type: type[T], *, is_slow: bool = False, **request: Any
    ) -> T:
        """A request, sent again to a server that does not answer, until the deadline.

        `is_slow`: the answer may take longer than that, if the server is there.
        """
        if is_slow:
            async with while_alive(self._ask_version, every_s=self._answer_s):
                return await self._call(method, path, reply_type, timeout_s=LONG_TIMEOUT_S, **request)
        give_up_at = time.monotonic() + self.deadline_s
        while True:
            try:
                async with self._exchange(method, path, **request) as response:
                    answer = await response.content.read(ANSWER_BYTES_MAX)
                    while not response.content.at_eof() and len(answer) < ANSWER_BYTES_MAX:
                        answer += await response.content.read(ANSWER_BYTES_MAX)
                break
            except Unavailable:
                if time.monotonic() + RETRY_PAUSE_S > give_up_at:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
        return self._decoded(answer, reply_type, path)

    async def _send(
        self, path: str, content: AsyncIterator[bytes], *, params: Mapping[str, str] | None = None
    ) -> bytes:
        """A request with a body that can be read once; therefore the token is looked at before.

        Nothing reads `content` any more when this returns or raises. Raises what reading the content does.
        """
        if self.is_v3:
            await self._call("GET", "/access/users/me", dict)
        failures: list[Exception] = []
        idle = asyncio.Event()
        idle.set()

        async def watched() -> AsyncGenerator[bytes, None]:
            while True:
                idle.clear()
                try:
                    part = await anext(content)
                except StopAsyncIteration:
                    return
                except Exception as error:  # aiohttp would report a lost connection
                    failures.append(error)
                    raise
                finally:
                    idle.set()
                yield part

        try:
            async with (
                while_alive(self._ask_version, every_s=self._answer_s),
                self._exchange(
                    "POST", path, timeout_s=LONG_TIMEOUT_S, data=watched(), params=params or {}
                ) as response,
            ):
                return await response.read()
        except FilestoreError:
            if failures:
                raise failures[0] from None
            raise
        finally:
            with suppress(TimeoutError):  # the task that reads the content is cancelled, and may still run
                async with asyncio.timeout(ENDING_S_MAX):
                    await idle.wait()

    def _decoded(self, answer: bytes, reply_type: type[T], path: str) -> T:
        try:
            return msgspec.json.decode(answer, type=reply_type)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Internal(
                f"GNS3 server {self.name}: the response to {path} is not understood: {error}"
            ) from error

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float = 0.0,
        is_public: bool = False,
        is_compute: bool = False,
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; a status from 400 on is raised as its error, a lost connection as Unavailable.

        `timeout_s`: how long the server may be silent; the deadline if it is not given.
        """
        assert self._session is not None, "a server is used inside `async with`"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s or self._answer_s
        )
        url = f"{self.url}/{self._api}{path}"
        can_renew = self.is_v3 and not is_public and not is_compute and "data" not in request
        try:
            while True:
                token = self._token
                sent = {**(headers or {}), **self._credentials(is_public=is_public, is_compute=is_compute)}
                async with self._session.request(
                    method, url, timeout=timeout, headers=sent, allow_redirects=False, **request
                ) as response:
                    if response.status != 401 or not can_renew:
                        if response.status >= 400:
                            raise await self._refusal(response, path)
                        yield response
                        return
                can_renew = False
                await self._renew(token)
        except _LOST as error:
            raise Unavailable(
                f"GNS3 server {self.name} at {self.url}: {connection_trouble(error).rstrip('.')}."
            ) from error

    def _credentials(self, *, is_public: bool, is_compute: bool) -> dict[str, str]:
        address = self._address
        user, password = address.user, address.password
        if is_compute and address.compute_user:
            user, password = address.compute_user, address.compute_password
        elif self.is_v3:
            return {} if is_public else {"Authorization": f"Bearer {self._token}"}
        return {"Authorization": aiohttp.encode_basic_auth(user, password)} if user else {}

    async def _refusal(self, response: aiohttp.ClientResponse, path: str) -> FilestoreError:
        """The error that an answer stands for."""
        try:
            told = msgspec.json.decode(await response.content.read(READ_BYTES), type=Refusal)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            told = Refusal()
        words = told.words or f"{path} was answered {response.status}"
        details = f"GNS3 server {self.name}: {words.rstrip('.')}."
        if response.status == 409 and "must be stopped" in words:
            return ProjectRuns(details)
        if "No space left on device" in words:
            return InsufficientStorage(details)
        return _STATUSES.get(response.status, Internal)(details)

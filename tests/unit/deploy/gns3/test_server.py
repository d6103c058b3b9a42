"""How a GNS3 server is recognised, and what is made of its answers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ca.errors import FilestoreError, Forbidden, InsufficientStorage, Internal, InvalidRequest, Unavailable
from deploy.gns3.server import Gns3Server, ProjectRuns, ServerAddress, SignInRefused

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PASSWORD = "secret of the test"


def versioned(api: str, version: str) -> tuple[str, str, Handler]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"version": version})

    return "GET", f"/{api}/version", answer


def refused(method: str, path: str, status: int, message: str) -> tuple[str, str, Handler]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"message": message}, status=status)

    return method, path, answer


class Tokens:
    """Gives a token that is good for so many requests."""

    def __init__(self, uses: int) -> None:
        self.uses, self.left, self.given = uses, 0, 0

    async def authenticate(self, request: web.Request) -> web.Response:
        if (await request.json())["password"] != PASSWORD:
            return web.json_response({"message": "Authentication was unsuccessful."}, status=401)
        self.given += 1
        self.left = self.uses
        return web.json_response({"access_token": f"token{self.given}", "token_type": "bearer"})

    async def projects(self, request: web.Request) -> web.Response:
        if request.headers["Authorization"] != f"Bearer token{self.given}" or self.left == 0:
            return web.json_response({"message": "Could not validate credentials"}, status=401)
        self.left -= 1
        return web.json_response([{"project_id": "p", "name": "lab", "status": "closed"}])

    @property
    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            versioned("v3", "3.0.6"),
            ("POST", "/v3/access/users/authenticate", self.authenticate),
            ("GET", "/v3/projects", self.projects),
        ]


@asynccontextmanager
async def serving(*routes: tuple[str, str, Handler]) -> AsyncIterator[str]:
    app = web.Application()
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def at(url: str, *, password: str = PASSWORD) -> Gns3Server:
    address = ServerAddress(name="lab", url=url, user="admin", password=password)
    return Gns3Server(address, deadline_s=0)


async def test_version_3_is_asked_first() -> None:
    async with serving(*Tokens(9).routes, versioned("v2", "2.2.61")) as url, at(url) as server:
        assert (server.version, server.is_v3, server.compression) == ("3.0.6", True, "none")


async def test_version_2_is_taken_where_there_is_no_other() -> None:
    async with serving(versioned("v2", "2.2.61")) as url, at(url) as server:
        assert (server.version, server.is_v3, server.compression) == ("2.2.61", False, "deflate")


@pytest.mark.parametrize(
    ("routes", "told"),
    [([versioned("v2", "2.1.21")], "GNS3 2.1.21 is too old"), ([], "no GNS3 server answers at")],
    ids=["old", "other"],
)
async def test_what_is_no_server_of_ours_is_told(routes: list[tuple[str, str, Handler]], told: str) -> None:
    async with serving(*routes) as url:
        with pytest.raises(InvalidRequest, match=told):
            async with at(url):
                pass


async def test_server_that_is_not_there_is_told_with_its_name_and_no_secret() -> None:
    async with serving() as url:
        pass
    with pytest.raises(Unavailable, match=r"GNS3 server lab at .*Connection refused") as caught:
        async with at(url):
            pass
    assert PASSWORD not in str(caught.value)


async def test_token_is_renewed_when_it_is_refused() -> None:
    tokens = Tokens(uses=2)
    async with serving(*tokens.routes) as url, at(url) as server:
        for _ in range(5):
            assert [project.name for project in await server.projects()] == ["lab"]
    assert tokens.given == 3


async def test_token_that_is_never_taken_ends_in_a_refusal() -> None:
    async with serving(*Tokens(uses=0).routes) as url, at(url) as server:
        with pytest.raises(SignInRefused, match="Could not validate credentials"):
            await server.projects()


async def test_password_that_is_not_taken_is_told() -> None:
    async with serving(*Tokens(9).routes) as url:
        with pytest.raises(SignInRefused, match="rejects this password of 'admin'"):
            async with at(url, password="wrong"):
                pass


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (409, "Project must be stopped in order to export it", ProjectRuns),
        (409, "Could not import: [Errno 28] No space left on device", InsufficientStorage),
        (403, "Permission denied (privilege Project.Audit is required)", Forbidden),
        (503, "later", Unavailable),
    ],
    ids=["running", "full", "privilege", "later"],
)
async def test_refusal_is_its_error_in_the_words_of_the_server(
    status: int, message: str, kind: type[FilestoreError]
) -> None:
    refusing = refused("GET", "/v3/projects/p/nodes", status, message)
    async with serving(*Tokens(9).routes, refusing) as url, at(url) as server:
        with pytest.raises(kind) as caught:
            await server.nodes("p")
        assert caught.value.details == f"GNS3 server lab: {message}."


async def test_traceback_of_a_server_is_told_by_its_last_line() -> None:
    message = "Traceback (most recent call last):\n  File route.py, line 200\nTypeError: 2 were given.\n"
    refusing = refused("GET", "/v3/projects/p/nodes", 500, message)
    async with serving(*Tokens(9).routes, refusing) as url, at(url) as server:
        with pytest.raises(Internal) as caught:
            await server.nodes("p")
        assert caught.value.details == "GNS3 server lab: TypeError: 2 were given."


async def test_image_goes_on_from_a_byte_where_the_server_knows_no_ranges() -> None:
    async def image(_: web.Request) -> web.Response:
        return web.Response(body=b"0123456789")

    async def listed(_: web.Request) -> web.Response:
        entry = {"filename": "a.qcow2", "path": "a.qcow2", "md5sum": "m", "filesize": 10}
        return web.json_response([entry, {"filename": "empty8G.qcow2", "md5sum": "n", "filesize": 1}])

    async def none(_: web.Request) -> web.Response:
        return web.json_response([])

    routes: list[tuple[str, str, Handler]] = [
        versioned("v2", "2.2.61"),
        ("GET", "/v2/compute/qemu/images", listed),
        ("GET", "/v2/compute/qemu/images/a.qcow2", image),
        ("GET", "/v2/compute/iou/images", none),
        ("GET", "/v2/compute/dynamips/images", none),
    ]
    async with serving(*routes) as url, at(url) as server:
        (found,) = await server.images()
        assert b"".join([part async for part in server.read_image(found, 4)]) == b"456789"


async def test_export_of_version_3_is_asked_for_without_compression() -> None:
    asked: list[str] = []

    async def nodes(_: web.Request) -> web.Response:
        return web.json_response([])

    async def export(request: web.Request) -> web.Response:
        asked.append(request.query_string)
        return web.Response(body=b"zip")

    routes = [
        *Tokens(9).routes,
        ("GET", "/v3/projects/p/nodes", nodes),
        ("GET", "/v3/projects/p/export", export),
    ]
    async with serving(*routes) as url, at(url) as server:
        assert b"".join([part async for part in server.export("p")]) == b"zip"
    assert asked == ["compression=none"]

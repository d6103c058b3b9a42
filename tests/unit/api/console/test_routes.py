"""The web console over HTTP: what is asked for comes, compressed and with its policy, and nothing else."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from aiohttp import ClientResponse, ClientSession
from yarl import URL

from api.console.files import PLACE, ConsoleFiles, console_files, console_page
from api.console.routes import console_routes
from ca.errors import Unavailable
from web.app import new_application, serve
from web.cors import ConsoleMembers

PACKED_BYTES_MAX = 231_000  # of all that a browser ever loads of it
LINES_MAX = 300
BARE_IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](?![./])""")
IMPORTED = re.compile(r"""(?:from\s+|import\(|import\s+)["'](\.[^"']+)["']""")
NODE = "https://127.0.0.1:7443"


def node_url(_request: object) -> str:
    return NODE


OTHERS = ConsoleMembers(
    nodes=(NODE, "https://n2.lab.org", "https://[::1]:7443", "https://x; script-src *"),
    coordinators=("https://127.0.0.1:7442",),
)


def no_others(_request: object) -> ConsoleMembers:
    return ConsoleMembers()


def no_node(_request: object) -> str:
    raise Unavailable("No node's address is known here yet.")


@pytest.fixture
def files() -> ConsoleFiles:
    return console_files()


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    """Asks a process that serves content."""
    routes = console_routes(
        has_content=True, node_url=node_url, members=lambda _: OTHERS, current_members=lambda _: OTHERS
    )
    app = new_application(routes, component="node")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
    try:
        base = f"http://127.0.0.1:{listener.port}"
        async with ClientSession(base, auto_decompress=False, headers={"X-Base": base}) as session:
            yield session
    finally:
        await listener.close()


async def ask(
    client: ClientSession, path: str | URL, *, method: str = "GET", **headers: str
) -> ClientResponse:
    """What comes, unredirected; without headers nothing is accepted compressed."""
    named = {"Accept-Encoding": "identity"} | {name.replace("_", "-"): text for name, text in headers.items()}
    response = await client.request(method, path, headers=named, allow_redirects=False)
    await response.read()
    return response


@pytest.mark.parametrize("path", ["/", "/console"])
async def test_root_leads_to_the_console(client: ClientSession, path: str) -> None:
    answer = await ask(client, path)
    assert (answer.status, answer.headers["Location"]) == (302, "/console/")


async def test_page_has_a_strict_policy_and_is_asked_for_each_time(client: ClientSession) -> None:
    answer = await ask(client, "/console/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    policy = answer.headers["Content-Security-Policy"]
    for directive in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert directive in policy
    assert "unsafe" not in policy
    assert policy.endswith(
        ", script-src https://*:*/console/ http://*:*/console/"
    )  # of this origin: both hold


async def test_page_is_told_whether_there_is_content_here() -> None:
    assert b'data-content="yes"' in console_page(has_content=True, nodes=(), coordinators=()).body
    assert b'data-content="no"' in console_page(has_content=False, nodes=(), coordinators=()).body


async def test_page_may_ask_members_that_a_policy_can_name(client: ClientSession) -> None:
    answer = await ask(client, "/console/")
    sources = "'self' https://127.0.0.1:7443 https://n2.lab.org https://127.0.0.1:7442"
    assert f"connect-src {sources};" in answer.headers["Content-Security-Policy"]
    page = await answer.read()
    assert b'data-nodes="https://127.0.0.1:7443 https://n2.lab.org"' in page
    assert b'data-coordinators="https://127.0.0.1:7442"' in page


async def test_page_that_was_loaded_learns_the_members_of_now(client: ClientSession) -> None:
    answer = await ask(client, "/console/members")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
    assert await answer.json() == {"nodes": list(OTHERS.nodes), "coordinators": list(OTHERS.coordinators)}


async def test_page_of_another_policy_has_another_tag() -> None:
    """Browsers keep the policy that came with a page, and take none from the 304 that says it is the same."""
    others = [OTHERS]
    routes = console_routes(
        has_content=True, node_url=node_url, members=lambda _: others[0], current_members=no_others
    )
    listener = await serve(
        new_application(routes, component="node"), host="127.0.0.1", port=0, ssl_context=None
    )
    try:
        async with ClientSession(f"http://127.0.0.1:{listener.port}") as session:
            first = await ask(session, "/console/")
            others[0] = ConsoleMembers(nodes=OTHERS.nodes)
            again = await ask(session, "/console/", If_None_Match=first.headers["ETag"])
            assert again.status == 200
            assert "7442" not in again.headers["Content-Security-Policy"]
    finally:
        await listener.close()


async def test_parts_are_kept_for_good_under_their_version(
    client: ClientSession, files: ConsoleFiles
) -> None:
    answer = await ask(client, f"/console/{files.version}/app.js")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert await answer.read() == (PLACE / "app.js").read_bytes()


@pytest.mark.parametrize("path", ["", "app.js", "vendor/preact.js"])
async def test_etag_answers_304_in_each_form(client: ClientSession, files: ConsoleFiles, path: str) -> None:
    url = f"/console/{files.version}/{path}" if path else "/console/"
    plain, packed = await ask(client, url), await ask(client, url, Accept_Encoding="br, gzip")
    assert plain.headers["ETag"] != packed.headers["ETag"]
    for etag in (packed.headers["ETag"], f'"other", W/{packed.headers["ETag"]}', "*"):
        again = await ask(client, url, Accept_Encoding="gzip", If_None_Match=etag)
        assert (again.status, await again.read()) == (304, b"")
        assert again.headers["ETag"] == packed.headers["ETag"]
    assert (await ask(client, url, If_None_Match=packed.headers["ETag"])).status == 200


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("br;q=1, gzip;q=0.5", True),
        ("*", True),
        ("GZIP", True),
        ("gzip;q=0", False),
        ("*, gzip;q=0.0", False),
        ("br", False),
        ("", False),
    ],
)
async def test_compressed_only_for_who_takes_it(
    client: ClientSession, accepted: str, is_packed: bool
) -> None:
    answer = await ask(client, "/console/", Accept_Encoding=accepted)
    body = await answer.read()
    assert (answer.headers.get("Content-Encoding") == "gzip") is is_packed
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert (gzip.decompress(body) if is_packed else body).startswith(b"<!doctype html>")


async def test_head_answers_as_get_without_a_body(client: ClientSession, files: ConsoleFiles) -> None:
    for url in ("/console/", f"/console/{files.version}/style.css"):
        got, head = await ask(client, url), await ask(client, url, method="HEAD")
        assert (head.status, await head.read()) == (200, b"")
        for name in ("ETag", "Content-Length", "Content-Type", "Content-Security-Policy"):
            assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize(
    "path",
    [
        "/console/nothing",
        "/console/0000000000000000/app.js",
        "/console/{version}/",
        "/console/{version}/nothing.js",
        "/console/{version}/index.html",
        "/console/{version}/../../files.py",
        "/console/{version}/%2e%2e/files.py",
        "/console/{version}/..%2ffiles.py",
        "/console/{version}//app.js",
        "/console/{version}/app.js/",
        "/console/{version}/ui",
        "/console/{version}/app.js%00",
    ],
)
async def test_nothing_else_is_served(client: ClientSession, files: ConsoleFiles, path: str) -> None:
    """Asked as it is written: a client that tidies addresses up would never send these."""
    url = URL(f"{client.headers['X-Base']}{path.format(version=files.version)}", encoded=True)
    assert (await ask(client, url)).status == 404


async def test_other_methods_are_not_allowed(client: ClientSession) -> None:
    assert (await ask(client, "/console/", method="POST")).status == 405


async def test_who_needs_content_is_led_to_a_node(client: ClientSession) -> None:
    answer = await ask(client, "/console/node")
    assert (answer.status, answer.headers["Location"]) == (302, f"{NODE}/console/")


async def test_who_needs_content_is_told_where_no_node_is_known() -> None:
    routes = console_routes(has_content=False, node_url=no_node, members=no_others, current_members=no_others)
    app = new_application(routes, component="coordinator")
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=None)
    try:
        async with ClientSession(f"http://127.0.0.1:{listener.port}") as session:
            assert (await ask(session, "/console/node")).status == 503
            assert b'data-content="no"' in await (await session.get("/console/")).read()
    finally:
        await listener.close()


def test_all_of_it_is_small(files: ConsoleFiles) -> None:
    loaded = [part for name, part in files.parts.items() if "LICENSE" not in name and ".md" not in name]
    assert sum(len(part.packed) for part in loaded) < PACKED_BYTES_MAX


def modules() -> list[Path]:
    return [path for path in sorted(PLACE.rglob("*.js")) if "vendor" not in path.parts]


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PLACE).as_posix())
def test_modules_are_short_and_import_what_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LINES_MAX
    assert text.startswith("//"), "its first line says what it is for"
    assert not BARE_IMPORT.search(text)
    assert "innerHTML" not in text.replace("dangerouslySetInnerHTML", "innerHTML")
    for name in IMPORTED.findall(text):
        assert (path.parent / name).is_file(), name


def test_page_loads_what_is_there(files: ConsoleFiles) -> None:
    page = console_page(has_content=True, nodes=(), coordinators=()).body.decode()
    assert "@" not in page
    for address in re.findall(r'(?:href|src)="([^"]+)"', page):
        if address != "/docs":
            name = urljoin("/console/", address).removeprefix(f"/console/{files.version}/")
            assert name in files.parts, address

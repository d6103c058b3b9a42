"""The routes of the web console on a client port; `/` leads there. No credential: it has nothing of anybody.

The page is a client of the API like any other. What it may load and ask is this process alone.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import hdrs, web

from ca.errors import NotFound
from coordinator.console.files import Served, console_files

PLACE: Final = "/console/"
# Only what this process serves; pictures that a page made of bytes that it holds (blob:), and those in style
# sheets (data:). No script may make code or markup out of text.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Accept-Encoding",
}
_ASKED_EACH_TIME: Final = "no-cache"
_KEPT: Final = "public, max-age=31536000, immutable"
_GZIP: Final = re.compile(r"\s*(gzip|\*)\s*(?:;\s*q=([0-9.]{1,5})\s*)?", re.IGNORECASE)


def console_routes(*, has_content: bool, node_url: Callable[[web.Request], str]) -> list[web.RouteDef]:
    """`/` and `/console` lead to `/console/`, and everything of the console is below it.

    `has_content`: whether this process serves the content of files. `node_url`: of one that does, for who
    looks for it at `/console/node`; it raises Unavailable.
    """

    async def get_page(request: web.Request) -> web.Response:
        files = await asyncio.to_thread(console_files)
        return _answer(request, files.pages[has_content], _ASKED_EACH_TIME)

    async def lead_to_node(request: web.Request) -> web.Response:
        return _moved(f"{node_url(request)}{PLACE}")

    return [
        web.get("/", _lead_there),
        web.get("/console", _lead_there),
        web.get(PLACE, get_page),
        web.get(f"{PLACE}node", lead_to_node),
        web.get(f"{PLACE}{{version}}/{{name:.+}}", _get_part),
    ]


async def _lead_there(_request: web.Request) -> web.Response:
    return _moved(PLACE)


def _moved(location: str) -> web.Response:
    return web.Response(status=302, headers={hdrs.LOCATION: location, hdrs.CACHE_CONTROL: "no-store"})


async def _get_part(request: web.Request) -> web.Response:
    """Raises NotFound, for parts of another version, too."""
    files = await asyncio.to_thread(console_files)
    served = files.parts.get(request.match_info["name"])
    if request.match_info["version"] != files.version or served is None:
        raise NotFound("The console has no such part, or another version by now: load the page again.")
    return _answer(request, served, _KEPT)


def _answer(request: web.Request, served: Served, keeping: str) -> web.Response:
    is_packed = _takes_gzip(request.headers)
    etag = f'"{served.tag}-gzip"' if is_packed else f'"{served.tag}"'
    headers = _HEADERS | {hdrs.ETAG: etag, hdrs.CACHE_CONTROL: keeping}
    if _is_kept(request.headers.get(hdrs.IF_NONE_MATCH, ""), etag):
        return web.Response(status=304, headers=headers)
    headers[hdrs.CONTENT_TYPE] = served.content_type
    if is_packed:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=served.packed if is_packed else served.body, headers=headers)


def _is_kept(condition: str, etag: str) -> bool:
    """Whether an If-None-Match names this tag (RFC 9110, section 13.1.2)."""
    named = [tag.strip().removeprefix("W/") for tag in condition.split(",")]
    return etag in named or named == ["*"]


def _takes_gzip(headers: Mapping[str, str]) -> bool:
    """Whether an Accept-Encoding takes gzip (RFC 9110, section 12.5.3); an absent one is not asked to."""
    qualities = {
        match[1].lower(): (match[2] or "1").strip("0.") != ""
        for coding in headers.get(hdrs.ACCEPT_ENCODING, "").split(",")
        if (match := _GZIP.fullmatch(coding)) is not None
    }
    return qualities.get("gzip", qualities.get("*", False))

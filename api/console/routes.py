"""The routes of the web console on a client port; `/` redirects there. No credential is needed.

The page is a client of the API like any other. It loads everything from this process. It may also connect to
other members: an upload continues through another node when this one fails.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import urlencode

from aiohttp import hdrs, web

from api.console.files import Served, console_files, console_page
from ca.errors import InvalidRequest, NotFound
from web.cors import ConsoleMembers
from web.responses import json_response
from web.script_sources import scripts_of

PLACE: Final = "/console/"
MEMBERS_MAX: Final = 64  # members of each role that the policy lists, about 4 KiB
# The origins that a policy can contain. IPv6 addresses are not among them (CSP 3, section 2.3.1).
_NAMED: Final = re.compile(r"https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Accept-Encoding",
}
ANSWER_CHARS_MAX: Final = 4096  # of one parameter
_OF_PROVIDERS: Final = ("code", "state", "iss", "error")  # RFC 6749, 4.1.2; RFC 9207
_ASKED_EACH_TIME: Final = "no-cache"
_KEPT: Final = "public, max-age=31536000, immutable"
_GZIP: Final = re.compile(r"\s*(gzip|\*)\s*(?:;\s*q=([0-9.]{1,5})\s*)?", re.IGNORECASE)


def policy(others: Iterable[str] = ()) -> str:
    """Return the Content-Security-Policy of a page that may send requests to these origins and its own.

    The page loads only what this process serves; pictures also from bytes that a page holds (blob:) and from
    style sheets (data:). No script can turn text into code or markup.
    """
    asked = " ".join(("'self'", *others))
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        f"connect-src {asked}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"require-trusted-types-for 'script'; trusted-types 'none', {scripts_of(PLACE)}"
    )


def console_routes(
    *,
    has_content: bool,
    node_url: Callable[[web.Request], str],
    members: Callable[[web.Request], ConsoleMembers],
    current_members: Callable[[web.Request], ConsoleMembers],
) -> list[web.RouteDef]:
    """Return the routes: `/` and `/console` redirect to `/console/`, which has the page and its parts.

    `has_content`: whether this process serves the content of files. `node_url`: returns the URL of a node
    that does, the target of `/console/node`; raises Unavailable. `members`: returns the other members
    that the page may send requests to. `current_members`: returns them for a page that was loaded earlier;
    raises Unavailable if the list may be out of date.
    """

    async def get_page(request: web.Request) -> web.Response:
        known = members(request)
        nodes, coordinators = _nameable(known.nodes), _nameable(known.coordinators)
        page = await asyncio.to_thread(
            console_page, has_content=has_content, nodes=nodes, coordinators=coordinators
        )
        # Browsers store a page's policy with the page, and ignore the policy of a 304. The entity tag
        # contains the policy, so that a new policy makes a new tag.
        return _answer(request, page, _ASKED_EACH_TIME, policy((*nodes, *coordinators)))

    async def get_members(request: web.Request) -> web.Response:
        # No credential, as for the page: these responses decide which member the page sends its token to.
        known = current_members(request)
        return json_response({"nodes": known.nodes, "coordinators": known.coordinators})

    async def lead_to_node(request: web.Request) -> web.Response:
        return _moved(f"{node_url(request)}{PLACE}")

    async def lead_back(request: web.Request) -> web.Response:
        return _moved(f"{PLACE}#/signed-in/{request.match_info['provider']}?{_answer_of_provider(request)}")

    return [
        web.get("/", _lead_there),
        web.get("/console", _lead_there),
        web.get(PLACE, get_page),
        web.get(f"{PLACE}node", lead_to_node),
        web.get(f"{PLACE}sign-in/{{provider:[a-z0-9-]{{1,32}}}}", lead_back),
        web.get(f"{PLACE}members", get_members),
        web.get(f"{PLACE}{{version}}/{{name:.+}}", _get_part),
    ]


async def _lead_there(_request: web.Request) -> web.Response:
    return _moved(PLACE)


def _moved(location: str) -> web.Response:
    return web.Response(status=302, headers={hdrs.LOCATION: location, hdrs.CACHE_CONTROL: "no-store"})


def _answer_of_provider(request: web.Request) -> str:
    """Return what a provider has sent with the browser, for the page: behind the #, which no server sees."""
    sent = {name: request.query.get(name, "") for name in _OF_PROVIDERS}
    if any(len(value) > ANSWER_CHARS_MAX for value in sent.values()):
        raise InvalidRequest("The provider's answer is too long.")
    return urlencode({name: value for name, value in sent.items() if value})


async def _get_part(request: web.Request) -> web.Response:
    """Return a part of the console. Raises NotFound, also for parts of another version."""
    files = await asyncio.to_thread(console_files)
    served = files.parts.get(request.match_info["name"])
    if request.match_info["version"] != files.version or served is None:
        raise NotFound("This part of the console does not exist in this version. Reload the page.")
    return _answer(request, served, _KEPT, policy())


def _nameable(origins: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(origin for origin in origins if _NAMED.fullmatch(origin))[:MEMBERS_MAX])


def _answer(request: web.Request, served: Served, keeping: str, allowed: str) -> web.Response:
    is_packed = _takes_gzip(request.headers)
    etag = f'"{served.tag}-gzip"' if is_packed else f'"{served.tag}"'
    headers = _HEADERS | {"Content-Security-Policy": allowed, hdrs.ETAG: etag, hdrs.CACHE_CONTROL: keeping}
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
    """Whether Accept-Encoding allows gzip (RFC 9110, section 12.5.3). False if the header is absent."""
    qualities = {
        match[1].lower(): (match[2] or "1").strip("0.") != ""
        for coding in headers.get(hdrs.ACCEPT_ENCODING, "").split(",")
        if (match := _GZIP.fullmatch(coding)) is not None
    }
    return qualities.get("gzip", qualities.get("*", False))

"""The OpenAPI document of the interface, and a page that shows it in a browser.

The page is Swagger UI as the package `offapi` ships it, and loads nothing from other sites. The package is
never imported, as that would load its other viewers into memory too.
"""

import asyncio
import functools
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from api.spec.openapi import document
from api.spec.operation import Answer, Handler, Operation
from ca.errors import NotFound, RateLimited
from web.script_sources import scripts_of

DOCUMENT_PATH: Final = "/api/v1/openapi.json"
_PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Filestore</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/viewer.css">
</head>
<body>
<noscript>This page needs JavaScript; the document itself is at {DOCUMENT_PATH}.</noscript>
<div id="viewer"></div>
<script src="/docs/viewer.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
# The viewer writes markup, which its DOMPurify has cleaned and which can run no script under this policy.
# Without `createScript` and `createScriptURL`, no text becomes a script or the address of one.
_START: Final = f"""window.trustedTypes?.createPolicy("default", {{ createHTML: (text) => text }});
SwaggerUIBundle({{
  url: "{DOCUMENT_PATH}",
  dom_id: "#viewer",
  deepLinking: true,
  docExpansion: "none",
  validatorUrl: null,
}});
"""
_PACKAGED: Final = {
    "viewer.js": ("swagger_bundle.js", "text/javascript"),
    "viewer.css": ("swagger_style.css", "text/css"),
}
# Nothing but our own files, and the small pictures that are in the style sheet.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"require-trusted-types-for 'script'; trusted-types default dompurify, {scripts_of('/docs/')}"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Documentation:
    """The operations that a process serves, together with those that describe them.

    The OpenAPI document is made when it is first asked for: most processes are never asked, and it is a tenth
    of what their start costs.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations: tuple[Operation, ...] = (*operations, *_operations(self.get_document))

    @functools.cached_property
    def encoded(self) -> bytes:
        """The OpenAPI document as JSON."""
        return msgspec.json.encode(document(self.operations))

    async def get_document(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Return the operations of this process as OpenAPI 3.1. A coordinator has no content.

        No credential.
        """
        body = await asyncio.to_thread(lambda: self.encoded)
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-cache"})


async def get_page(request: web.Request) -> web.Response:  # noqa: ARG001
    """The document to read and to try, in a browser; it works offline. No credential."""
    return _answer(_PAGE.encode(), "text/html")


async def get_part(request: web.Request) -> web.Response:
    """The script and the style of the page. No credential."""
    name = request.match_info["file"]
    if name == "start.js":
        return _answer(_START.encode(), "text/javascript")
    if name not in _PACKAGED:
        raise NotFound("This part of the documentation does not exist.")
    packaged, content_type = _PACKAGED[name]
    return _answer(await asyncio.to_thread(packaged_file, packaged), content_type)


@functools.cache
def packaged_file(name: str) -> bytes:
    """A file of the viewer's package. Blocks the first time."""
    located = importlib.metadata.distribution("offapi").locate_file(f"offapi/{name}")
    return Path(str(located)).read_bytes()


def _answer(body: bytes, content_type: str) -> web.Response:
    return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)


def _operations(get_document: Handler) -> tuple[Operation, ...]:
    return (
        Operation(
            name="get_openapi",
            tag="Documentation",
            method="GET",
            path=DOCUMENT_PATH,
            handler=get_document,
            summary="This document",
            answers={200: Answer("OpenAPI 3.1.", media_type="application/json")},
            credential="none",
            errors=(RateLimited,),
        ),
        Operation(
            name="get_docs",
            tag="Documentation",
            method="GET",
            path="/docs",
            handler=get_page,
            summary="Show this document in a browser",
            answers={200: Answer("A page.", media_type="text/html")},
            credential="none",
            is_json=False,
        ),
        Operation(
            name="get_docs_part",
            tag="Documentation",
            method="GET",
            path="/docs/{file}",
            handler=get_part,
            summary="Fetch a part of that page",
            answers={200: Answer("A script or a style sheet.", media_type="text/*")},
            credential="none",
            errors=(RateLimited,),
            is_json=False,
        ),
    )

"""Every route of the metadata API, for the client ports of nodes and coordinators alike."""

import re
from typing import Final

from aiohttp import hdrs, web

from ca.errors import NotAcceptable
from node.api import auth, cluster, coordinators, health, project_files
from node.api.access import Handler, watched

_API: Final = "/api/v1"
_QUALITY: Final = re.compile(r"q=(0|0\.[0-9]{0,3}|1|1\.0{0,3})", re.IGNORECASE)
_MATCHING: Final = {"application/json": 3, "application/*": 2, "*/*": 1}  # and how specific each is


def metadata_routes() -> list[web.RouteDef]:
    """The routes to mount. Their handlers find what they need in `app[API]` and `app[METRICS]`."""
    file, node = f"{_API}/project-files/{{file_uuid}}", f"{_API}/cluster/nodes/{{id}}"
    tokens = f"{_API}/cluster/join-tokens"
    return [
        web.post(f"{_API}/project-files", _json(project_files.create)),
        web.get(f"{_API}/project-files", _json(project_files.list_page)),
        web.get(file, _json(project_files.get)),
        web.patch(file, _json(project_files.update)),
        web.delete(file, _json(project_files.delete)),
        web.post(f"{_API}/auth/users/{{user_id}}/token", _json(auth.mint)),
        web.get(f"{_API}/auth/whoami", _json(auth.whoami)),
        web.get("/.well-known/jwks.json", _json(auth.key_set)),
        web.post(f"{_API}/cluster/join/filestore", _json(cluster.join)),
        web.get(f"{_API}/cluster/ca", _json(cluster.authority)),
        web.get(f"{_API}/cluster/status", _json(coordinators.status)),
        web.post(f"{_API}/cluster/coordinators", _json(coordinators.add)),
        web.delete(f"{_API}/cluster/coordinators/{{id}}", _json(coordinators.remove)),
        web.post(f"{_API}/cluster/leader", _json(coordinators.transfer_leader)),
        web.get(f"{_API}/cluster/nodes", _json(cluster.list_nodes)),
        web.get(node, _json(cluster.get_node)),
        web.post(tokens, _json(cluster.create_join_token)),
        web.get(tokens, _json(cluster.list_join_tokens)),
        web.delete(f"{tokens}/{{token_id}}", _json(cluster.delete_join_token)),
        web.get("/healthz", health.lives),
        web.get("/readyz", health.ready),
        web.get("/metrics", health.metrics),
    ]


def accepts_json(accept: str) -> bool:
    """Whether an Accept header takes JSON (RFC 9110, section 12.5.1); an absent one takes anything."""
    best, quality = 0, "" if accept.strip() else "1"
    for element in accept.split(","):
        media_range, *parameters = (part.strip() for part in element.split(";"))
        specific = _MATCHING.get(media_range.lower(), 0)
        if specific > best:
            found = [match[1] for part in parameters if (match := _QUALITY.fullmatch(part))]
            best, quality = specific, found[0] if found else "1"
    return quality.strip("0.") != ""


def _json(handler: Handler) -> Handler:
    """A handler whose answer is JSON: callers that take none are refused before anything is done."""
    watching = watched(handler)

    async def answering(request: web.Request) -> web.StreamResponse:
        if not accepts_json(", ".join(request.headers.getall(hdrs.ACCEPT, []))):
            raise NotAcceptable("Accept: this endpoint answers with application/json.")
        return await watching(request)

    return answering

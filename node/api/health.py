"""What watches a process from outside: is it alive, can it serve, and its numbers. No credential."""

from aiohttp import hdrs, web

from coordinator.web import METRICS, json_response
from node.api.bodies import Health
from node.api.services import API


async def lives(request: web.Request) -> web.Response:  # noqa: ARG001
    """GET /healthz: the process answers."""
    return json_response(Health(status="ok"), headers={"Cache-Control": "no-store"})


async def ready(request: web.Request) -> web.Response:
    """GET /readyz: 200 when requests can be served here; 503 whose details say what is missing.

    A coordinator with a full disk serves reads: its status is `disk_full`, with 200.
    """
    services = request.app[API]
    services.view.require_fresh()
    status = await services.readiness()
    return json_response(Health(status=status), headers={"Cache-Control": "no-store"})


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics: Prometheus text, or OpenMetrics when Accept asks for it."""
    text, content_type = request.app[METRICS].exposition(request.headers.get(hdrs.ACCEPT, ""))
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type, "Cache-Control": "no-store"})

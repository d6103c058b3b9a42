"""The metadata API on the client port of a coordinator. Apart from `server`, which knows of no handler.

Tested by tests/api/test_openapi.py.
"""

from aiohttp import web

from api.context import API, ApiServices
from api.routes import METADATA, client_routes
from ca.hostnames import authority_of
from coordinator.admin.restore import Bundles
from coordinator.server import Shell
from metadata.rpc.view import node_url
from runtime.audit import AuditLog
from web.app import new_application
from web.web_access import WEB


def application(shell: Shell) -> web.Application:
    """The application of `coordinator.server.run_coordinator`."""
    app = new_application(client_routes(METADATA), component="coordinator", metrics=shell.metrics)
    access = shell.access.with_members(lambda: shell.view.console_members())
    app[API] = ApiServices(
        metadata=shell.metadata,
        view=shell.view,
        audit=AuditLog.of_people(shell.files.audit),
        node_url=lambda node_id: node_url(shell.view, node_id),
        readiness=shell.readiness,
        work=shell.work,
        access=access,
        authority=authority_of(shell.config.own.address, shell.config.own.api_port),
        bundles=Bundles(shell.files, shell.config),
    )
    app[WEB] = access
    return app

"""What a coordinator serves on its client port: the metadata API, with nothing of a node behind it."""

from aiohttp import web

from coordinator.admin.bundles import Bundles
from coordinator.http.app import new_application
from coordinator.http.web_access import WEB
from coordinator.runtime.audit import AuditLog
from coordinator.server import Shell
from node.api.context import API, ApiServices
from node.api.routes import METADATA, client_routes
from node.server import authority_of, node_url


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
        access=access,
        authority=authority_of(shell.config.own.address, shell.config.own.api_port),
        bundles=Bundles(shell.files, shell.config),
    )
    app[WEB] = access
    return app

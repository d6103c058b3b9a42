"""The listeners of a node process, and what they serve.

All workers share the client port, and the plain port for a proxy: the kernel distributes connections. The
peer port belongs to worker 0. If there are several workers, each has a Unix socket for the others, which
serves the same as the peer port, without TLS.

Tested by tests/unit/node/content/test_short_put.py.
"""

import asyncio
import socket

from aiohttp import web

from api.context import CONCATENATE
from api.health import metrics as metrics_handler
from api.routes import METADATA, client_routes
from api.tus_creation import RECEIVE
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeConfig
from node.content.concatenation import concatenate
from node.content.creation_with_upload import receive
from node.content.fastpath import HotPath
from node.content.routes import OPERATIONS, content_routes
from node.peer.reachability import reach_routes
from node.peerapi.admission import prepare_admission
from node.peerapi.blobs import transfer_routes
from node.peerapi.custody import custody_routes
from node.peerapi.losses import loss_routes
from node.peerapi.upload_copies import upload_copy_routes
from node.peerapi.uploads import following_routes, prepare_following
from node.uploads.services import NodeServices, provide
from node.workers.stats import WorkerNumbers
from runtime.metrics import Metrics
from web.app import Listener, new_application, serve, serve_on
from web.fastpath import DIRECT
from web.listener import Places, bound_socket, start_listening
from web.web_access import WEB

Address = tuple[str, int]
LOCAL_DRAIN_S = 1.0  # within END_TIMEOUT_S of `node/workers/supervisor.py`


class Ports:
    """The listeners of one process. Use as a context manager, which cuts off what was not drained."""

    def __init__(
        self, config: NodeConfig, contexts: MemberContexts, services: NodeServices, metrics: Metrics
    ) -> None:
        self._config = config
        self._contexts = contexts
        self._services = services
        self._metrics = metrics
        self._is_shared = services.siblings.workers > 1
        self._listeners: list[Listener] = []
        self._local: Listener | None = None
        self._bound: list[socket.socket] = []  # bound, but not listening yet

    async def __aenter__(self) -> "Ports":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(0.0)
        await self.drain_local(0.0)
        for bound in self._bound:
            bound.close()

    async def open_local(self, numbers: WorkerNumbers) -> None:
        """Listen to the other workers, if there are any. Raises OSError."""
        if self._is_shared:
            app = _member_application(self._services)
            app.add_routes([*numbers.routes(), *loss_routes(), web.get("/metrics", metrics_handler)])
            listening = self._services.siblings.listening_socket()
            self._local = await serve_on(listening, app, peer=True, metrics=self._metrics)

    async def open_peer(self) -> int:
        """Listen to other members; return the port. Raises OSError."""
        app = _member_application(self._services)
        prepare_admission(app, self._services.api.view)
        host, port = self._config.address, self._config.peer_port
        listener = await serve(
            app,
            host=host,
            port=port,
            ssl_context=self._contexts.peer.listening,
            peer=True,
            metrics=self._metrics,
        )
        self._listeners.append(listener)
        return listener.port

    async def bind_clients(self, plain: Address | None) -> Address | None:
        """Bind the ports for clients, which refuse connections for now.

        Return the plain address with its port. Raises OSError.
        """
        addresses = [(self._config.address, self._config.api_port), *([] if plain is None else [plain])]
        for address in addresses:
            await self._require_no_stranger(address)
            self._bound.append(await bound_socket(*address, shared=self._is_shared))
        return None if plain is None else (plain[0], self._bound[-1].getsockname()[1])

    async def open_clients(self) -> None:
        """Start to accept clients at the bound ports. Raises OSError."""
        places = Places()
        for bound, context in zip(self._bound, (self._contexts.api.listening, None), strict=False):
            await self._require_no_stranger(bound.getsockname()[:2])
            app = client_application(self._services, self._metrics)
            listener = await serve_on(start_listening(bound), app, ssl_context=context, places=places)
            self._listeners.append(listener)
        self._bound.clear()

    async def _require_no_stranger(self, address: Address) -> None:
        """Check on worker 0, which starts first, that no other program listens.

        The kernel would share the port. Raises CannotListen.
        """
        if self._is_shared and self._services.siblings.worker == 0:
            (await bound_socket(*address)).close()

    async def drain(self, drain_s: float) -> None:
        """Stop accepting clients and members; running requests have `drain_s` to end. May be called twice.

        All at once: an upload that ends meanwhile may need our own peer port through another node.
        """
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.close(drain_s) for listener in listeners))

    async def drain_local(self, drain_s: float = LOCAL_DRAIN_S) -> None:
        """Stop accepting the other workers, which have all drained. May be repeated.

        A request that one of them has cut off may still be finishing here, with calls to coordinators.
        """
        local, self._local = self._local, None
        if local is not None:
            await local.close(drain_s)


def client_application(services: NodeServices, metrics: Metrics) -> web.Application:
    """Return the application with the whole API."""
    routes = client_routes([*METADATA, *OPERATIONS])
    app = new_application(routes, component="node", metrics=metrics)
    provide(app, services)
    app[WEB] = services.api.access
    app[CONCATENATE] = concatenate
    app[RECEIVE] = receive
    app[DIRECT] = HotPath(services, services.records.get).answer
    return app


def _member_application(services: NodeServices) -> web.Application:
    """Return the application for members. It counts no requests, as the forwarding node has counted them."""
    routes = [
        *transfer_routes(),
        *upload_copy_routes(),
        *following_routes(),
        *custody_routes(),
        *reach_routes(),
    ]
    app = new_application([*routes, *content_routes()], component="node")
    provide(app, services)
    prepare_following(app)
    return app

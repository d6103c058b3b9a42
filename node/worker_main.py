"""The program of the second and later workers of a node.

`node/workers/supervisor.py` describes the messages between them and worker 0. A worker serves clients and the
other workers once it knows the cluster: before that it could only refuse. It does nothing that a node does
once: no peer port, no heartbeats, no renewal of certificates.

Tested by tests/cluster/test_workers.py.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeFiles
from node.base.instance import Start
from node.listeners import Ports
from node.peerapi.losses import keep_reporting
from node.server import DRAIN_S, keep_large_buffers, open_node
from node.workers.siblings import Siblings
from node.workers.supervisor import DRAIN, DRAINED, LOG_LEVEL, RELOAD
from runtime import logs
from runtime.lifetime import raise_descriptor_limit, wait_for_first
from runtime.metrics import Metrics
from web.listener import loopback_listener
from web.web_access import parse_web_access
from web.web_options import NO_WEB_OPTIONS, WebOptions

ORPHAN_DRAIN_S = 5.0  # worker 0 is gone: a restarted node waits for this

_log = logging.getLogger(__name__)


class SupervisorOrders:
    """The orders of worker 0. `drain` is set by its message, by SIGTERM, and when worker 0 is gone."""

    def __init__(self, contexts: MemberContexts) -> None:
        self._contexts = contexts
        self.drain = asyncio.Event()
        self.gone = asyncio.Event()

    async def receive(self) -> None:
        """Read orders until the end of standard input."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        loop.add_signal_handler(signal.SIGTERM, self.drain.set)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
        )
        try:
            while line := await lines.readline():
                if line == DRAIN:
                    self.drain.set()
                elif line == RELOAD:
                    self._contexts.reload_all()
                elif line.startswith(LOG_LEVEL):
                    logs.set_level(line.removeprefix(LOG_LEVEL).decode("ascii").strip())
        finally:
            transport.close()
            self.gone.set()
            self.drain.set()


async def run_worker(
    data: Path, siblings: Siblings, http: str | None, web: WebOptions, instance: str
) -> None:
    """Run until worker 0 closes the input, or until SIGTERM. Raises the error that stopped the process.

    `instance`: the instance that worker 0 reports for this start; the disk may have one that it does not
    report.
    """
    plain = None if http is None else loopback_listener(http)
    files = NodeFiles(data)
    config = files.read_config()
    access, metrics = parse_web_access(web), Metrics("node")
    # A worker that starts again keeps its uploads: a certificate pair that was damaged meanwhile is no reason
    # to end.
    contexts = MemberContexts(files.credential(), config.identity, web=access.certificate, needs_web=False)
    orders = SupervisorOrders(contexts)
    start = Start(instance)
    async with (
        open_node(files, config, contexts, metrics, siblings, start=start, access=access) as node,
        Ports(config, contexts, node.services, metrics) as ports,
        node.works as works,
    ):
        node.start_work()
        works.start("orders", orders.receive())
        works.start("losses", keep_reporting(node.services))
        # This worker would reject requests before it knows the cluster; other workers serve them or wait.
        await wait_for_first(node.services.api.view.wait_until_fresh(), orders.drain.wait())
        if not orders.drain.is_set():
            await ports.open_local(node.numbers)
            await ports.bind_clients(plain)
            await ports.open_clients()
            _log.info("worker ready", extra={"worker": siblings.worker})
        await orders.drain.wait()
        await ports.drain(ORPHAN_DRAIN_S if orders.gone.is_set() else DRAIN_S)
        await node.services.records.leave()
        await _say_drained(orders)
        await ports.drain_local()
        await node.services.concatenations.close()


async def _say_drained(orders: SupervisorOrders) -> None:
    """Report that this worker is drained, and serve other workers until worker 0 closes the input."""
    with suppress(OSError):
        sys.stdout.buffer.write(DRAINED)
        sys.stdout.buffer.flush()
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await orders.gone.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m node.worker_main`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--http")
    parser.add_argument("--web", type=partial(msgspec.json.decode, type=WebOptions), default=NO_WEB_OPTIONS)
    parser.add_argument("--instance", default="")
    parser.add_argument("--log-level", choices=logs.LEVELS, default=logs.usual_level())
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal: worker 0 receives them and sends us orders
        signal.signal(number, signal.SIG_IGN)
    logs.setup(f"node-worker-{options.worker}", options.log_level)
    raise_descriptor_limit()
    keep_large_buffers()
    siblings = Siblings(options.worker, options.workers, NodeFiles(options.data).run)
    uvloop.run(run_worker(options.data, siblings, options.http, options.web, options.instance))


if __name__ == "__main__":
    main()

"""Stand between a command and its server: one cuts answers of GNS3, one holds requests to a node."""

import http.client
import http.server
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.gns3.lab_server import LabServer

READ_BYTES: Final = 16 << 10
HOP: Final = {"transfer-encoding", "connection", "content-length", "keep-alive"}


class CuttingProxy:
    """So many bytes of an answer to `path` pass. `politely`: the rest is left out as if there were none.

    `silent`: exports of this project are not cut, but silent from then on; all others pass. Then the server
    does not answer `unanswered` further requests either. `path`: what is cut in the place of exports.
    """

    def __init__(
        self,
        server: LabServer,
        *,
        cut_after: int,
        politely: bool,
        cuts: int = 1000,
        silent: str = "",
        unanswered: int = 0,
        path: str = "/export",
    ) -> None:
        self.server, self.cut_after, self.politely, self.cuts_left = server, cut_after, politely, cuts
        self.silent, self.unanswered, self.path = silent, unanswered, path
        self._is_silent, self._ended = False, threading.Event()

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Its URL."""
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.pass_on(self)

            def do_POST(self) -> None:
                proxy.pass_on(self)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            self._ended.set()
            listening.shutdown()
            thread.join()
            listening.server_close()

    def pass_on(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """One request and its answer, which ends with the connection."""
        if self._is_silent and self.unanswered > 0:
            self.unanswered -= 1
            self._ended.wait()
            return
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        onward = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP}
            onward.request(handler.command, handler.path, body=body, headers=headers)
            response = onward.getresponse()
            left = -1
            if f"{self.silent}{self.path}" in handler.path and self.cuts_left > 0:
                self.cuts_left -= 1
                left = self.cut_after
            handler.protocol_version = "HTTP/1.1" if left >= 0 and not self.politely else "HTTP/1.0"
            handler.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP:
                    handler.send_header(name, value)
            if handler.protocol_version == "HTTP/1.1":  # more is announced than comes
                handler.send_header("Content-Length", str(1 << 40))
            handler.send_header("Connection", "close")
            handler.end_headers()
            while left and (part := response.read1(READ_BYTES)):
                sent = part if left < 0 else part[:left]
                handler.wfile.write(sent)
                left = left if left < 0 else left - len(sent)
            if left == 0 and self.silent:
                self._is_silent = True
                handler.wfile.flush()
                self._ended.wait()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            handler.close_connection = True
            onward.close()


class Gate:
    """Stands between a command and a node, and holds the first bytes to the node once `is_shut` is true.

    Within `listening`. `holds` is set when it holds some; it never lets them pass.
    """

    def __init__(self, port: int, is_shut: Callable[[], bool]) -> None:
        self.holds = threading.Event()
        self._port, self._is_shut = port, is_shut

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Its URL. The certificate is that of the node."""
        gate = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                gate.pass_on(self.request)

        class Listening(socketserver.ThreadingTCPServer):
            daemon_threads = True

        with Listening(("127.0.0.1", 0), Connection) as listening:
            thread = threading.Thread(target=listening.serve_forever)
            thread.start()
            try:
                yield f"https://127.0.0.1:{listening.server_address[1]}"
            finally:
                listening.shutdown()
                thread.join()

    def pass_on(self, command: socket.socket) -> None:
        """One connection, until either side ends it or the gate is shut."""
        with socket.create_connection(("127.0.0.1", self._port)) as node, suppress(OSError):
            other = {command: node, node: command}
            while True:
                for ready in select.select([command, node], [], [])[0]:
                    if not (part := ready.recv(READ_BYTES)):
                        return
                    if ready is command and self._is_shut():
                        self.holds.set()
                        return
                    other[ready].sendall(part)

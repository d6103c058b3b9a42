"""Pass on connections: `relay.py LISTEN CONNECT`, each ADDRESS:PORT or the path of a socket.

Two of them join networks that do not reach each other.
"""

import socket
import sys
import threading

PIECE_BYTES = 1 << 16


def address_of(text: str) -> tuple[int, str | tuple[str, int]]:
    """Its family, and what `bind` and `connect` take."""
    if text.startswith("/"):
        return socket.AF_UNIX, text
    host, _, port = text.rpartition(":")
    return socket.AF_INET, (host, int(port))


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """One direction, to its end."""
    try:
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            each.close()


def main() -> None:
    """Until it is killed."""
    (family, here), (other_family, there) = map(address_of, sys.argv[1:])
    listening = socket.socket(family)
    if family == socket.AF_INET:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(here)
    listening.listen()
    while True:
        accepted, _ = listening.accept()
        connected = socket.socket(other_family)
        connected.connect(there)
        for pair in ((accepted, connected), (connected, accepted)):
            threading.Thread(target=pass_on, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()

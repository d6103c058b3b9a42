"""Clients that take their time cost a node little memory, over TLS too, where bytes pass through it."""

import os
import socket
import ssl

import pytest

from bench.loaders import resident_bytes
from tests.cluster.harness import Cluster

CLIENTS = 64
SIZE_BYTES = 12 << 20
TAKEN_BYTES = 1 << 20  # then each stops, and the node has filled whatever it fills
GROWTH_BYTES_MAX = 2 << 20  # for each of them


def slow_client(cluster: Cluster, path: str) -> ssl.SSLSocket:
    """One that has sent its request, with little room of its own for the answer."""
    node = cluster.nodes[0]
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    plain.connect(("127.0.0.1", node.api_port))
    client = cluster.context.wrap_socket(plain, server_hostname="127.0.0.1")
    lines = [f"GET {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {cluster.admin_token}", "", ""]
    client.sendall("\r\n".join(lines).encode())
    return client


@pytest.mark.long
def test_client_that_stops_reading_holds_less_than_2_mib_of_a_node(own_cluster: Cluster) -> None:
    cluster = own_cluster  # the shared one has its peak of memory looked at
    path = f"/api/v1/files/{cluster.store(os.urandom(SIZE_BYTES))}"
    pid = cluster.pid(cluster.nodes[0])
    before_bytes = resident_bytes(pid)
    clients = [slow_client(cluster, path) for _ in range(CLIENTS)]
    try:
        for client in clients:
            taken_bytes = 0
            while taken_bytes < TAKEN_BYTES:
                piece = client.recv(TAKEN_BYTES)
                assert piece
                taken_bytes += len(piece)
        assert (resident_bytes(pid) - before_bytes) / CLIENTS < GROWTH_BYTES_MAX
    finally:
        for client in clients:
            client.close()

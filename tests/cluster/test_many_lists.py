"""One user's lists, however many are asked for in one moment, do not keep others from small requests."""

import json
import socket
import ssl
import threading
import time

from tests.cluster.harness import Cluster

IMAGES = 40
ASKING = 500
SHARE_MAX = 1 / 8  # of the time of all the lists, for one small request; it is 1/20, and was 1/5 to 1/2
DOCUMENT = json.dumps({"a": "b" * 60_000})


def client_of(cluster: Cluster) -> ssl.SSLSocket:
    """One that has asked for nothing yet."""
    plain = socket.create_connection(("127.0.0.1", cluster.nodes[0].api_port))
    return cluster.context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_many_lists_in_one_moment_leave_turns_to_small_requests_of_others(own_cluster: Cluster) -> None:
    cluster = own_cluster
    for number in range(IMAGES):
        image = {"filename": f"{number}", "virt_type": "qemu", "format": "raw"}
        answer = cluster.request("POST", "/vms", body=image | {"extra_attributes_json": DOCUMENT})
        assert answer.status == 201
    durations_s: list[float] = []
    is_over = threading.Event()

    def ask_another_node() -> None:
        while not is_over.is_set():
            started_s = time.monotonic()
            assert cluster.request("GET", "/auth/whoami", node=cluster.nodes[1]).status == 200
            durations_s.append(time.monotonic() - started_s)

    credential = f"Authorization: Bearer {cluster.admin_token}"
    request = f"GET /api/v1/vms HTTP/1.1\r\nHost: x\r\n{credential}\r\n\r\n".encode()
    asking = threading.Thread(target=ask_another_node)
    clients = [client_of(cluster) for _ in range(ASKING)]
    asking.start()
    started_s = time.monotonic()
    try:
        for client in clients:
            client.sendall(request)
        for client in clients:
            assert client.recv(9) == b"HTTP/1.1 "
    finally:
        lists_s = time.monotonic() - started_s
        for client in clients:
            client.close()
        is_over.set()
        asking.join()
    assert max(durations_s) < lists_s * SHARE_MAX

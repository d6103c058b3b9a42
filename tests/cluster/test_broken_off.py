"""An offset that is asked for right after a request has broken off is where the upload goes on."""

import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.throttle import ThrottlingProxy
from tests.cluster.upload_steps import TUS, Steps

CONTENT = os.urandom(24 << 20)
PIECE_BYTES = 64 << 10
BYTES_PER_S = 4 << 20


@pytest.fixture
def ways(cluster: Cluster) -> Iterator[dict[str, ThrottlingProxy]]:
    """To each node, by its id."""
    with ExitStack() as stack:
        yield {
            node.id: stack.enter_context(ThrottlingProxy(node.api_port, bytes_per_s=BYTES_PER_S))
            for node in cluster.nodes
        }


def break_off(steps: Steps, way: ThrottlingProxy, after_bytes: int, *, is_cut: bool) -> None:
    """A PATCH of everything through the proxy, of which the client sends so much and then goes away: with the
    proxy, or so that this passes on what it still has.
    """
    connection = http.client.HTTPSConnection(
        "127.0.0.1", urlsplit(way.url).port, timeout=30, context=steps.cluster.context
    )
    connection.putrequest("PATCH", steps.path)
    headers = TUS | {"Upload-Offset": "0", "Authorization": f"Bearer {steps.cluster.admin_token}"}
    for name, value in (headers | {"Content-Length": str(len(steps.content))}).items():
        connection.putheader(name, value)
    connection.endheaders()
    for at in range(0, after_bytes, PIECE_BYTES):
        connection.send(steps.content[at : at + PIECE_BYTES])
    if is_cut:
        way.cut()
    connection.close()


def check_offsets(cluster: Cluster, ways: dict[str, ThrottlingProxy], tries: int) -> None:
    """The offset never moves after it was told, whichever nodes take the PATCH and the question."""
    for number in range(tries):
        steps = Steps(cluster, CONTENT)
        patched = (steps.holder, steps.others[0])[number % 2]
        asked = (steps.others[0], steps.holder, steps.others[1])[number % 3]
        break_off(steps, ways[patched.id], (2 << 20) + number * (500 << 10), is_cut=number % 4 < 2)
        told = steps.offset(asked)
        answer = steps.patch(told, told + 1000, node=asked)
        assert answer.status == 204, (number, told, answer.status, answer.headers.get("upload-offset"))
        assert steps.offset() == told + 1000


@pytest.mark.timeout(120)
def test_offset_that_is_told_after_a_cut_does_not_move(
    cluster: Cluster, ways: dict[str, ThrottlingProxy]
) -> None:
    check_offsets(cluster, ways, 4)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_offset_that_is_told_after_thirty_cuts_moves(
    cluster: Cluster, ways: dict[str, ThrottlingProxy]
) -> None:
    check_offsets(cluster, ways, 30)


@pytest.mark.long
def test_offset_of_an_upload_that_goes_on_is_told(cluster: Cluster) -> None:
    steps = Steps(cluster, CONTENT)
    with steps.begin(len(CONTENT)) as sender:
        sender.send(5 << 20)
        goes_on = threading.Event()

        def trickle() -> None:
            while not goes_on.wait(0.2):
                sender.send(1000)

        sending = threading.Thread(target=trickle)
        sending.start()
        try:
            assert steps.offset(steps.others[0]) < len(CONTENT)
            for _ in range(3):
                assert cluster.get(f"/files/{steps.file_uuid}/status").json["offset"] < len(CONTENT)
        finally:
            goes_on.set()
            sending.join()
        sender.send(len(CONTENT))
        assert sender.status() == 204

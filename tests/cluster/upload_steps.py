"""Steps of an upload that is interrupted: pieces at any node, slow clients, and what lies on each disk."""

import http.client
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.diskio.durable import Disk, OffsetRecord
from tests.cluster.harness import Answer, Cluster

TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


class Steps:
    """One upload, and the cluster that takes it."""

    def __init__(self, cluster: Cluster, content: bytes, **fields: Any) -> None:
        self.cluster, self.content = cluster, content
        created = cluster.create(**{"size_bytes": len(content), **fields})
        self.file_uuid = str(created["file_uuid"])
        self.path = f"/api/v1/files/{self.file_uuid}/content"
        self.holder = next(node for node in cluster.nodes if created["upload_url"].startswith(node.url))
        self.others = [node for node in cluster.nodes if node != self.holder]

    def patch(self, start: int, stop: int, node: Member | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.cluster.request(
            "PATCH",
            self.path,
            node=node or self.holder,
            content=self.content[start:stop],
            headers={**TUS, "Upload-Offset": str(start), **named},
            timeout_s=60,
        )

    def patch_until_taken(self, start: int, stop: int, node: Member) -> Answer:
        """Again while the cluster says that it cannot now; bounded by the test's own deadline."""
        answer = self.patch(start, stop, node)
        while answer.status == 503:
            answer = self.patch(start, stop, node)
        return answer

    def offset(self, node: Member | None = None) -> int:
        answer = self.cluster.request("HEAD", self.path, node=node or self.holder, headers=TUS)
        assert answer.status == 200, answer.status
        return int(answer.headers["upload-offset"])

    def offset_once_told(self, node: Member) -> int:
        """Again while the cluster says that it cannot now; bounded by the test's own deadline."""
        while (answer := self.cluster.request("HEAD", self.path, node=node, headers=TUS)).status == 503:
            pass
        assert answer.status == 200, answer.status
        return int(answer.headers["upload-offset"])

    def begin(self, stop: int, node: Member | None = None, start: int = 0, **headers: str) -> "Sender":
        return Sender(self, start, stop, node or self.holder, headers)

    def lying_bytes(self, node: Member) -> int:
        """The size of the upload's file on a node's disk."""
        try:
            return (self.cluster.data(node) / "uploads" / self.file_uuid / "data").stat().st_size
        except FileNotFoundError:
            return 0

    def wait_lying(self, node: Member, size_bytes: int) -> None:
        wait_until(
            lambda: self.lying_bytes(node) >= size_bytes, what=f"{size_bytes} on {node.id}", timeout_s=30
        )

    def members(self) -> list[Member]:
        """The nodes beside the holder that have a part of the upload."""
        return [node for node in self.others if self.lying_bytes(node)]

    def wait_members(self) -> list[Member]:
        """The same, once there are two."""
        wait_until(lambda: len(self.members()) == 2, what="two members with bytes", timeout_s=30)
        return self.members()

    def durable_bytes(self, node: Member) -> int:
        """How much of the upload its node would have after a crash."""
        with (self.cluster.data(node) / "uploads" / self.file_uuid / "offset").open("rb") as file:
            return OffsetRecord(file.fileno(), Disk()).offset

    def ask_for_completion(self) -> Answer:
        """By a PUT without content, that says nothing of a digest."""
        headers = {"Content-Range": f"bytes */{len(self.content)}"}
        return self.cluster.request("PUT", self.path, node=self.holder, headers=headers)

    def stored(self, node: Member) -> bytes:
        answer = self.cluster.get(f"/files/{self.file_uuid}", node=node)
        assert answer.status == 200, answer.body
        return answer.body


class Sender:
    """A PATCH of which the test sends the body bit by bit, and ends by no last chunk if it is chunked.

    Use as a context manager.
    """

    def __init__(self, steps: Steps, start: int, stop: int, node: Member, headers: Mapping[str, str]) -> None:
        self._steps, self._start, self._stop, self._sent = steps, start, stop, start
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self._is_chunked = "Transfer-Encoding" in self._headers
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", node.api_port, timeout=60, context=steps.cluster.context
        )

    def __enter__(self) -> Self:
        self._connection.putrequest("PATCH", self._steps.path)
        length = {} if self._is_chunked else {"Content-Length": str(self._stop - self._start)}
        headers = {
            **TUS,
            **length,
            "Upload-Offset": str(self._start),
            "Authorization": f"Bearer {self._steps.cluster.admin_token}",
            **self._headers,
        }
        for name, value in headers.items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        return self

    def send(self, size_bytes: int) -> None:
        piece = self._steps.content[self._sent : self._sent + size_bytes]
        self._connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)
        self._sent += size_bytes

    def status(self) -> int:
        """Of the answer, once all was sent."""
        return self._connection.getresponse().status

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


@contextmanager
def stopped(cluster: Cluster, node: Member) -> Iterator[None]:
    """The node's process does nothing, and its connections stand."""
    pid = cluster.pid(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

"""Partial failures of a node, and how long a client then waits for one answer.

A node hangs by SIGSTOP: it keeps its connections, the kernel accepts more, and nobody answers or reads. A
disk hangs by strace: its calls begin and do not end. What a client waits for is one request; that it may have
to ask again, elsewhere, is the rule, and is what `Impatient` does.
"""

import hashlib
import http.client
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.content.sources import ANSWER_TIMEOUT_S
from node.membership.disk_monitor import HANG_S, LOOK_S
from node.membership.disk_monitor import PROBE_S as LOOK_AT_DISK_S
from node.peer.client import CONNECT_TIMEOUT_S
from tests.cluster.faulty_disk import injected
from tests.cluster.harness import Answer, Cluster
from tests.cluster.upload_steps import TUS, Sender, Steps, stopped

LOAD_S = 10.0  # what a machine that others use as well may add to any wait
DEADLINE_S = 100.0  # for all that a client does until it has what it wants
ANSWER_S_MAX = 90.0  # no bound is longer: a client that waits so long has met none
DELAY_US = 300_000_000

# What a client waits for at most, by what is named in the product; none of it grows with the size. For others
# a request waits PATIENCE_S in all; a disk that hangs is found out by itself.
DISK_S = LOOK_AT_DISK_S + HANG_S + 3 * LOOK_S  # a disk that is known to hang, and the second look
READ_S = CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S  # for each replica that does not answer


@dataclass(frozen=True)
class Failure:
    """A way to fail in part: `makes` it for a node while the block runs."""

    name: str
    makes: Callable[[Cluster, Member, Path], AbstractContextManager[None]]


@contextmanager
def _hung(cluster: Cluster, node: Member, _log: Path) -> Iterator[None]:
    with stopped(cluster, node):
        yield


@contextmanager
def _disk(calls: str, cluster: Cluster, node: Member, log: Path) -> Iterator[None]:
    with injected(cluster.pid(node), f"{calls}:delay_enter={DELAY_US}", log):
        yield


HANGS = Failure("node hangs", _hung)
SYNC_HANGS = Failure("fsync hangs", lambda *known: _disk("fsync,fdatasync", *known))
# Not pread: with that the loop takes what it has found in the page cache, which no disk holds up.
READ_HANGS = Failure("read hangs", lambda *known: _disk("preadv,fsync,fdatasync", *known))


@dataclass
class Impatient:
    """A client that asks again, at one node after the other; `longest_s`: what it waited for one answer."""

    cluster: Cluster
    nodes: Sequence[Member]
    longest_s: float = 0.0
    asked: int = 0
    words: list[str] = field(default_factory=list)

    def ask(
        self,
        method: str,
        path: str,
        node: Member,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | None:
        """The answer; None when the connection was broken off."""
        began_s = time.monotonic()
        self.asked += 1
        try:
            answer = self.cluster.request(
                method, path, node=node, content=content, headers=headers, timeout_s=ANSWER_S_MAX
            )
        except (OSError, http.client.HTTPException) as error:
            self.words.append(f"{method} {node.id}: {error!r}")
            return None
        finally:
            self.waited(began_s)
        self.words.append(f"{method} {node.id}: {answer.status}")
        return answer

    def waited(self, began_s: float) -> None:
        """For an answer since then."""
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def finish(self, steps: Steps) -> None:
        """Sends what is not acknowledged, until the file is available."""
        turns = itertools.cycle(self.nodes)

        def sent() -> bool:
            node = next(turns)
            head = self.ask("HEAD", steps.path, node, headers=TUS)
            if head is None or head.status != 200:
                return False
            start = int(head.headers["upload-offset"])
            if start == len(steps.content):
                return True
            headers = {**TUS, "Upload-Offset": str(start)}
            answer = self.ask("PATCH", steps.path, node, content=steps.content[start:], headers=headers)
            return answer is not None and answer.status == 204

        self._until(sent, "the end of an upload")

    def download(self, file_uuid: str, content: bytes, part: tuple[int, int] | None = None) -> None:
        """Gets it, or the bytes from the first to before the second, and compares them."""
        start, stop = part or (0, len(content))
        headers = {"Range": f"bytes={start}-{stop - 1}"} if part else {}
        turns = itertools.cycle(self.nodes)

        def got() -> bool:
            answer = self.ask("GET", f"/files/{file_uuid}", next(turns), headers=headers)
            if answer is None or answer.status == 503:
                return False
            assert answer.status == (206 if part else 200), answer.body
            assert hashlib.sha256(answer.body).digest() == hashlib.sha256(content[start:stop]).digest()
            return True

        self._until(got, "a download")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        try:
            wait_until(done, what=what, timeout_s=DEADLINE_S)
        except Exception as error:
            raise AssertionError("; ".join(self.words)) from error


def send_rest(impatient: Impatient, sender: Sender, rest_bytes: int) -> None:
    """What remains of a PATCH that was begun, and the wait for its answer; it may be broken off."""
    began_s = time.monotonic()
    with suppress(OSError, http.client.HTTPException):
        sender.send(rest_bytes)
        sender.status()
    impatient.waited(began_s)

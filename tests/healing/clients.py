"""Clients in threads: they upload, read and delete, at nodes that may die meanwhile, and say what was wrong.

A refusal is no fault while things break; a wrong byte, a lost acknowledged file or a fault of ours (500) is.
"""

import http.client
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.cluster.harness import API, Answer
from tests.cluster.upload_steps import TUS
from tests.healing.ledger import Content, File
from tests.healing.stage import Stage

CLIENTS: Final = 4
WAITING_MAX: Final = 8
TRIES_MAX: Final = 6
OFTEN: Final = 6  # beyond the replicas that are wanted, and the nodes that there are
PAUSE_S: Final = 0.4
REQUEST_TIMEOUT_S: Final = 40.0
REFUSALS: Final = frozenset({408, 423, 429, 503, 507})

Act = Callable[["Stage", random.Random], str]


class Clients:
    """Use as a context manager: its end waits for all of them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._pool = ThreadPoolExecutor(CLIENTS, thread_name_prefix="client")
        self._slots = threading.BoundedSemaphore(WAITING_MAX)

    def begin(self, name: str, number: int, act: Act) -> None:
        """Have one of them do it; waits while all have enough to do."""
        self._slots.acquire()
        dice = random.Random(f"{self._stage.ledger.seed} client {number}")

        def work() -> None:
            try:
                outcome = act(self._stage, dice)
                self._stage.ledger.count(f"{name}: {outcome}")
                self._stage.note(f"#{number} {name}: {outcome}")
            except Exception as error:  # noqa: BLE001  # the edge: a thread that dies would say nothing
                self._stage.ledger.fault(f"#{number} {name}: {type(error).__name__}: {error}")
            finally:
                self._slots.release()

        self._pool.submit(work)

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def uploading(content: Content) -> Act:
    """A new file with this content."""
    return lambda stage, dice: _upload(stage, dice, content)


def uploading_often(content: Content) -> Act:
    """New files with this content, one after the other: each upload makes replicas of its own."""

    def upload(stage: Stage, dice: random.Random) -> str:
        told = [_upload(stage, dice, content) for _ in range(OFTEN)]
        return f"{sum(each.startswith('stored') for each in told)} times"

    return upload


def beginning(content: Content) -> Act:
    """A new file with a part of this content, which is left off."""
    return lambda stage, dice: _begin(stage, dice, content)


def going_on(file: File) -> Act:
    """More of an upload that was left off: it stands where somebody was told, or further on."""
    return lambda stage, dice: go_on(stage, dice, file, dice.randint(1, file.content.size_bytes))


def reading(file: File) -> Act:
    """All of a file that was stored."""
    return lambda stage, dice: _read(stage, dice, file)


def deleting(file: File) -> Act:
    """Once."""
    file.is_deletion_asked = True
    return lambda stage, dice: _delete(stage, dice, file)


def _upload(stage: Stage, dice: random.Random, content: Content) -> str:
    file = _create(stage, dice, content)
    if file is None:
        return "not created"
    file.is_stored = _send(stage, dice, file)
    return f"stored {file.file_uuid} {content.sha256[:8]}" if file.is_stored else f"given up {file.file_uuid}"


def _begin(stage: Stage, dice: random.Random, content: Content) -> str:
    file = _create(stage, dice, content)
    return "not created" if file is None else go_on(stage, dice, file, dice.randrange(content.size_bytes))


def _create(stage: Stage, dice: random.Random, content: Content) -> File | None:
    fields = {
        "filename": f"{content.number}.bin",
        "project_id": "healing",
        "size_bytes": content.size_bytes,
    }
    for _ in range(TRIES_MAX):
        answer = ask(stage, dice, "POST", "/project-files", body=fields)
        if answer is not None and answer.status == 201:
            file = File(answer.json["file_uuid"], content)
            stage.ledger.add(file)
            return file
        if answer is not None and answer.status not in REFUSALS:
            stage.ledger.fault(f"creation answered {answer.status}: {answer.body[:300]!r}")
        time.sleep(PAUSE_S)
    return None


def go_on(stage: Stage, dice: random.Random, file: File, more_bytes: int) -> str:
    """Send so much more of an upload, as tus clients do; if that is not all, it is left off again."""
    for _ in range(TRIES_MAX):
        start = _stands_at(stage, dice, file)
        if start == file.content.size_bytes:
            file.is_stored = True
            return f"stored {file.file_uuid}"
        if start is not None and _patch(stage, dice, file, start, start + more_bytes):
            break
        time.sleep(PAUSE_S)
    if file.acknowledged_bytes == file.content.size_bytes:
        file.is_stored = True
        return f"stored {file.file_uuid}"
    stage.ledger.leave(file)
    return f"left off {file.file_uuid}"


def _stands_at(stage: Stage, dice: random.Random, file: File) -> int | None:
    """Where the upload is said to stand; None when nobody says so."""
    answer = ask(stage, dice, "HEAD", f"{API}/files/{file.file_uuid}/content", headers=TUS)
    if answer is None or answer.status in REFUSALS:
        return None
    if answer.status != 200:
        stage.ledger.fault(f"HEAD {file.file_uuid} answered {answer.status}")
        return None
    return _told(stage, file, answer)


def _patch(stage: Stage, dice: random.Random, file: File, start: int, stop: int) -> bool:
    """Whether a piece was taken."""
    path, piece = f"{API}/files/{file.file_uuid}/content", file.content.bytes()[start:stop]
    headers = {**TUS, "Upload-Offset": str(start)}
    answer = ask(stage, dice, "PATCH", path, content=piece, headers=headers)
    if answer is not None and answer.status == 204:
        _told(stage, file, answer)
        return True
    if answer is not None and answer.status not in REFUSALS | {409}:
        stage.ledger.fault(f"PATCH {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
    return False


def _told(stage: Stage, file: File, answer: Answer) -> int:
    offset = int(answer.headers["upload-offset"])
    if offset < file.acknowledged_bytes:
        stage.ledger.fault(
            f"{file.file_uuid} stands at {offset}, {file.acknowledged_bytes} were acknowledged"
        )
    file.acknowledged_bytes = offset
    return offset


def _send(stage: Stage, dice: random.Random, file: File) -> bool:
    raw, size_bytes, offset = file.content.bytes(), file.content.size_bytes, 0
    for _ in range(TRIES_MAX):
        headers = {}
        if offset:
            piece = f"{offset}-{size_bytes - 1}" if offset < size_bytes else "*"
            headers["Content-Range"] = f"bytes {piece}/{size_bytes}"
        path = f"{API}/files/{file.file_uuid}/content"
        answer = ask(stage, dice, "PUT", path, content=raw[offset:], headers=headers)
        if answer is not None and answer.status == 200:
            return _is_as_sent(stage, file, answer)
        if answer is not None and answer.status == 409 and "upload-offset" in answer.headers:
            offset = int(answer.headers["upload-offset"])
            continue
        if answer is not None and answer.status not in REFUSALS:
            stage.ledger.fault(f"PUT {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
        offset = 0
        time.sleep(PAUSE_S)
    return False


def _is_as_sent(stage: Stage, file: File, answer: Answer) -> bool:
    if answer.json["blob_sha256"] != file.content.sha256:
        stage.ledger.fault(f"{file.file_uuid} was stored with another sha256: {answer.body!r}")
    return True


def _read(stage: Stage, dice: random.Random, file: File) -> str:
    answer = ask(stage, dice, "GET", f"/files/{file.file_uuid}")
    if answer is None:
        return "broken off"
    if answer.status == 200:
        if answer.body != file.content.bytes():
            stage.ledger.fault(f"{file.file_uuid} was read with other bytes")
        return "right bytes"
    if answer.status not in REFUSALS and not (answer.status == 404 and file.is_deletion_asked):
        stage.ledger.fault(f"GET {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
    return f"{answer.status}"


def _delete(stage: Stage, dice: random.Random, file: File) -> str:
    was_asked = False
    for _ in range(TRIES_MAX):
        answer = ask(stage, dice, "DELETE", f"/files/{file.file_uuid}")
        if answer is not None and (answer.status == 200 or (answer.status == 404 and was_asked)):
            file.is_deleted = True
            return f"done {file.file_uuid}"
        if answer is not None and answer.status not in REFUSALS:
            stage.ledger.fault(f"DELETE {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
        was_asked = True
        time.sleep(PAUSE_S)
    return "unanswered"


def ask(
    stage: Stage,
    dice: random.Random,
    method: str,
    path: str,
    *,
    body: object = None,
    content: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer | None:
    """One request at some node that should run; None when it was broken off."""
    node = dice.choice(stage.running)
    try:
        return stage.cluster.request(
            method, path, node=node, body=body, content=content, headers=headers, timeout_s=REQUEST_TIMEOUT_S
        )
    except TimeoutError:
        if node.id not in stage.dead:
            stage.ledger.fault(f"{method} {path} at {node.id}: no answer within {REQUEST_TIMEOUT_S:g} s")
        return None
    except (OSError, http.client.HTTPException):
        return None

"""Clients in threads: they upload, read and delete, at nodes that may die meanwhile, and say what was wrong.

A refusal is no fault while things break; a wrong byte, a lost acknowledged file or a fault of ours (500) is.
"""

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.cluster.harness import API, Answer
from tests.cluster.upload_steps import TUS
from tests.file_ledger import GONE, Content, File
from tests.healing.stage import Stage

CLIENTS: Final = 4
WAITING_MAX: Final = 8
TRIES_MAX: Final = 6
OFTEN: Final = 6  # beyond the replicas that are wanted, and the nodes that there are
PAUSE_S: Final = 0.4
REQUEST_TIMEOUT_S: Final = 40.0
REFUSALS: Final = frozenset({408, 423, 429, 503, 507})
NO_ROOM: Final = frozenset({413, 429})  # what a bucket with a quota answers
PIECE_BYTES: Final = 256 << 10

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


def uploading(content: Content, bucket_id: str = "") -> Act:
    """A new file with this content, in a bucket that may have a quota."""
    return lambda stage, dice: _upload(stage, dice, content, bucket_id)


def looping(contents: list[Content], bucket_id: str) -> Act:
    """Files that are deleted as soon as they are stored."""

    def loop(stage: Stage, dice: random.Random) -> str:
        for content in contents:
            file = _upload_file(stage, dice, content, bucket_id, is_to_stay=False)
            if file is not None:
                _delete(stage, dice, file)
        return "done"

    return loop


def withdrawing(content: Content) -> Act:
    """A new file that is deleted while its bytes are on their way."""

    def withdraw(stage: Stage, dice: random.Random) -> str:
        file = _create(stage, dice, content, {})
        if file is None:
            return "not created"
        file.is_deletion_asked = True
        deletion = threading.Thread(target=_delete, args=(stage, random.Random(dice.random()), file))
        deletion.start()
        path, raw = f"{API}/files/{file.file_uuid}/content", content.bytes()
        answer = ask(stage, dice, "PUT", path, content=raw)
        deletion.join()
        if answer is not None and answer.status not in REFUSALS | {200, 404, 409, 410}:
            stage.ledger.fault(f"PUT {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
        return f"{answer.status if answer else 'broken off'}"

    return withdraw


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


def _upload(stage: Stage, dice: random.Random, content: Content, bucket_id: str = "") -> str:
    file = _upload_file(stage, dice, content, bucket_id)
    if file is None:
        return "not created"
    return f"stored {file.file_uuid} {content.sha256[:8]}" if file.is_stored else f"given up {file.file_uuid}"


def _begin(stage: Stage, dice: random.Random, content: Content) -> str:
    file = _create(stage, dice, content, {"size_bytes": content.size_bytes})
    return "not created" if file is None else go_on(stage, dice, file, dice.randrange(content.size_bytes))


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


def _upload_file(
    stage: Stage, dice: random.Random, content: Content, bucket_id: str, *, is_to_stay: bool = True
) -> File | None:
    fields: dict[str, object] = {"bucket_id": bucket_id} if bucket_id else {}
    is_told = not bucket_id or dice.random() < 0.5
    file = _create(stage, dice, content, fields | ({"size_bytes": content.size_bytes} if is_told else {}))
    if file is not None:
        file.is_deletion_asked = not is_to_stay  # nobody else may count on it
        file.is_stored = _send(stage, dice, file, refusals=NO_ROOM if bucket_id else frozenset())
    return file


def _create(stage: Stage, dice: random.Random, content: Content, more: dict[str, object]) -> File | None:
    """None when there is no room for it in its bucket, or nobody takes it."""
    fields = {"filename": f"{content.number}.bin", "project_id": "healing", **more}
    for _ in range(TRIES_MAX):
        answer = ask(stage, dice, "POST", "/project-files", body=fields)
        if answer is not None and answer.status == 201:
            file = File(answer.json["file_uuid"], content)
            stage.ledger.add(file)
            return file
        if answer is not None and "bucket_id" in more and answer.status in NO_ROOM:
            return None
        if answer is not None and answer.status not in REFUSALS:
            stage.ledger.fault(f"creation answered {answer.status}: {answer.body[:300]!r}")
        time.sleep(PAUSE_S)
    return None


def _send(stage: Stage, dice: random.Random, file: File, *, refusals: frozenset[int]) -> bool:
    """Whether it is stored. One of `refusals` is a last word; without them no length is left out."""
    raw, size_bytes, offset = file.content.bytes(), file.content.size_bytes, 0
    is_chunked = bool(refusals) and dice.random() < 0.5
    for _ in range(TRIES_MAX):
        headers = {}
        if offset:
            piece = f"{offset}-{size_bytes - 1}" if offset < size_bytes else "*"
            headers["Content-Range"] = f"bytes {piece}/{size_bytes}"
        path = f"{API}/files/{file.file_uuid}/content"
        body: bytes | Iterator[bytes] = _pieces(raw) if is_chunked and not offset else raw[offset:]
        answer = ask(stage, dice, "PUT", path, content=body, headers=headers)
        if answer is not None and answer.status == 200:
            return _is_as_sent(stage, file, answer)
        if answer is not None and answer.status == 409 and "upload-offset" in answer.headers:
            offset = int(answer.headers["upload-offset"])
            continue
        if answer is not None and answer.status in refusals:
            return False
        if answer is not None and answer.status not in REFUSALS:
            stage.ledger.fault(f"PUT {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
        offset = 0
        time.sleep(PAUSE_S)
    return False


def _pieces(raw: bytes) -> Iterator[bytes]:
    """A body that does not tell its length."""
    return (raw[start : start + PIECE_BYTES] for start in range(0, len(raw), PIECE_BYTES))


def _is_as_sent(stage: Stage, file: File, answer: Answer) -> bool:
    if answer.json["blob_sha256"] != file.content.sha256:
        stage.ledger.fault(f"{file.file_uuid} was stored with another sha256: {answer.body!r}")
    return True


def _read(stage: Stage, dice: random.Random, file: File) -> str:
    was_deleted = file.is_deleted
    answer = ask(stage, dice, "GET", f"/files/{file.file_uuid}")
    if answer is None:
        return "broken off"
    if wrong := file.wrong_with(answer.status, answer.body, was_deleted=was_deleted):
        stage.ledger.fault(f"GET {file.file_uuid}: {wrong}")
    elif answer.status not in REFUSALS | GONE | {200}:
        stage.ledger.fault(f"GET {file.file_uuid} answered {answer.status}: {answer.body[:300]!r}")
    return "right bytes" if answer.status == 200 and not wrong else f"{answer.status}"


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
    content: bytes | Iterator[bytes] | None = None,
    headers: dict[str, str] | None = None,
) -> Answer | None:
    """One request at some node that should run; None when it was broken off."""
    node = dice.choice(stage.running)
    try:
        return stage.cluster.request(
            method, path, node=node, body=body, content=content, headers=headers, timeout_s=REQUEST_TIMEOUT_S
        )
    except TimeoutError:
        if node.id not in stage.dead | stage.hung:  # it may hang since it was chosen
            stage.ledger.fault(f"{method} {path} at {node.id}: no answer within {REQUEST_TIMEOUT_S:g} s")
        return None
    except (OSError, http.client.HTTPException):
        return None

"""Snapshots of the metadata at another place: a directory, or a bucket of another cluster.

What goes there is what `filestore coordinator restore` takes, but for the bundle: the copy of the database,
its sha256, and a note of what they are, with the settings of the coordinator that made it. The copy goes
last, so that where there is one, all of it is there. The newest `keep` stay.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import msgspec
from msgspec import Meta, Struct

from ca.errors import InvalidRequest, Unavailable
from ca.secretfiles import SECRET_MODE, read_secret, sync_directory
from ca.tls import client_context, read_roots
from coordinator.admin.restore import copy_durably
from coordinator.machine.execution.rules import RULES
from coordinator.rpc.connector import Connector
from coordinator.runtime.config import CoordinatorFiles, NotInitialised
from coordinator.runtime.json_files import decode_foreign
from coordinator.runtime.stopping import Stop, in_thread
from coordinator.runtime.version import VERSION
from coordinator.storage.file_digests import digest_beside, sha256_of

KEEP: Final = 30
KEEP_MAX: Final = 300  # three files each: one page of the bucket's list has them all
SCHEDULE_S: Final = 86_400.0
ATTEMPTS: Final = 3  # each at the next address
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)
ANSWER_BYTES_MAX: Final = 4 << 20
ERROR_BYTES_SHOWN: Final = 300
LISTED: Final = 1000
PAUSE_S: Final = 1.0  # before the next attempt
_PASSING: Final = (HTTPStatus.LOCKED, HTTPStatus.TOO_MANY_REQUESTS)
_MAKING: Final = ".making"
_OWN: Final = r"{cluster}-\d{{8}}T\d{{6}}-(\d+)\.sqlite"


class OffsiteConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """offsite.json: where snapshots go.

    Either a `directory`, or a bucket: `urls`, `ca`, `token_file` and `bucket_id`. Paths that are not absolute
    are in the data directory. `keep`: so many snapshots stay there.
    """

    directory: str = ""
    urls: Annotated[list[str], Meta(max_length=16)] = []
    ca: str = ""
    token_file: str = ""
    bucket_id: str = ""
    keep: Annotated[int, Meta(ge=1, le=KEEP_MAX)] = KEEP


@dataclass(frozen=True, slots=True)
class _Sent:
    """A snapshot, its digest, and what is said of it beside."""

    cluster: str
    snapshot: Path
    sha256: str
    note: bytes = b""

    @property
    def name(self) -> str:
        """What it is called there."""
        return f"{self.cluster}-{self.snapshot.name}"

    @property
    def digest(self) -> bytes:
        """For `sha256sum -c`."""
        return f"{self.sha256}  {self.name}\n".encode()


class Offsite:
    """The other place of one coordinator's snapshots."""

    def __init__(self, files: CoordinatorFiles, config: OffsiteConfig) -> None:
        """Raises InvalidRequest for a configuration that names no place, or two."""
        self._files, self._config = files, config
        bucket = {name: getattr(config, name) for name in ("urls", "ca", "token_file", "bucket_id")}
        if bool(config.directory) == any(bucket.values()):
            raise InvalidRequest(f"{files.offsite}: give a directory, or a bucket with its urls")
        if missing := [name for name, value in bucket.items() if not value and not config.directory]:
            raise InvalidRequest(f"{files.offsite}: {missing[0]}: is missing")
        if not all(url.startswith("https://") for url in config.urls):
            raise InvalidRequest(f"{files.offsite}: urls: https:// is required")

    async def send(self, snapshot: Path, *, log_index: int, at: str) -> str:
        """Bring a snapshot and what belongs to it there; to which place. Raises FilestoreError, OSError."""
        sent = await in_thread(partial(self._described, snapshot, log_index, at))
        if self._config.directory:
            directory = self._files.data / self._config.directory
            await in_thread(partial(_into_directory, directory, sent, self._config.keep))
            return f"directory {directory}"
        async with _Bucket.opened(self._files.data, self._config) as bucket:
            await bucket.receive(sent, keep=self._config.keep)
        return f"bucket {self._config.bucket_id}"

    def _described(self, snapshot: Path, log_index: int, at: str, stop: Stop) -> _Sent:
        settings = self._files.read_config()
        sent = _Sent(settings.cluster, snapshot, sha256_of(snapshot, stop))
        note = {
            "snapshot": sent.name,
            "sha256": sent.sha256,
            "taken_at": at,
            "log_index": log_index,
            "version": VERSION,
            "rules": RULES,
            "coordinator": settings,
        }
        return replace(sent, note=msgspec.json.format(msgspec.json.encode(note)) + b"\n")


def read_offsite(files: CoordinatorFiles) -> Offsite | None:
    """Where offsite.json says, None without that file. Raises NotInitialised, InvalidRequest."""
    try:
        return Offsite(files, decode_foreign(files.offsite.read_bytes(), OffsiteConfig))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise NotInitialised(f"{files.offsite} cannot be read: {error}") from error


def _into_directory(directory: Path, sent: _Sent, keep: int, stop: Stop) -> None:
    """Blocks until it is durable. A directory that is not there is not made: it may not be mounted."""
    if not directory.is_dir():
        raise Unavailable(f"There is no directory {directory}: is it mounted?")
    target, making = directory / sent.name, directory / f".{sent.name}{_MAKING}"
    for left in directory.glob(f".*{_MAKING}"):
        if _index_of(left.name.removeprefix(".").removesuffix(_MAKING), sent.cluster) is not None:
            left.unlink(missing_ok=True)  # of a process that was killed
    for path, content in ((digest_beside(target), sent.digest), (_note_beside(target), sent.note)):
        _write(path, content)
    try:
        copy_durably(sent.snapshot, making, stop)
        if sha256_of(making, stop) != sent.sha256:
            raise Unavailable(f"What was written to {directory} is not what was sent.")
        making.replace(target)
    except BaseException:
        making.unlink(missing_ok=True)
        raise
    for older in _older([each.name for each in directory.iterdir()], sent.cluster, keep):
        for path in (directory / older, digest_beside(directory / older), _note_beside(directory / older)):
            path.unlink(missing_ok=True)
    sync_directory(directory)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, SECRET_MODE)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _note_beside(snapshot: Path) -> Path:
    return snapshot.with_name(f"{snapshot.name}.json")


def _index_of(name: str, cluster: str) -> int | None:
    """The last entry in a snapshot of this cluster, None for what is not one: `lab-2` is not `lab`."""
    found = re.fullmatch(_OWN.format(cluster=re.escape(cluster)), name)
    return int(found[1]) if found else None


def _older(names: Iterable[str], cluster: str, keep: int) -> list[str]:
    """All snapshots of this cluster but the newest, by the index of the log: a clock may be wrong."""
    own = [(index, name) for name in names if (index := _index_of(name, cluster)) is not None]
    return [name for _, name in sorted(own)[:-keep]]


class _MayPassError(Exception):
    """An answer that another attempt may not get."""


class _Bucket:
    """A bucket of another cluster, through its API."""

    def __init__(self, http: aiohttp.ClientSession, config: OffsiteConfig) -> None:
        self._http, self._config = http, config
        self._turn = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, data: Path, config: OffsiteConfig) -> AsyncIterator["_Bucket"]:
        """Raises UnsafeSecretFile, and what `read_roots` raises."""
        context, token = await asyncio.to_thread(_credentials, data, config)
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(
            connector=Connector(context=context), timeout=REQUEST_TIMEOUT, headers=headers
        ) as http:
            yield cls(http, config)

    async def receive(self, sent: _Sent, *, keep: int) -> None:
        """Store the snapshot and what belongs to it; then remove those that are too many."""
        await self._tried(partial(self._store, f"{sent.name}.sha256", sent.digest))
        await self._tried(partial(self._store, f"{sent.name}.json", sent.note))
        await self._tried(partial(self._store, sent.name, sent.snapshot, sha256=sent.sha256))
        await self._tried(partial(self._remove_older, sent.cluster, keep))

    async def _tried(self, work: Callable[[str], Awaitable[None]]) -> None:
        """Do it, all of it again at the next address when something failed that may pass. Raises Unavailable.

        What an attempt has left that failed half-way expires, or is removed with the others of its name.
        """
        why = ""
        for _ in range(ATTEMPTS):
            url = self._config.urls[self._turn % len(self._config.urls)].rstrip("/")
            try:
                return await work(url)
            except (aiohttp.ClientError, TimeoutError, _MayPassError) as error:
                why = f"{url}: {error or type(error).__name__}"
            self._turn += 1
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"The other cluster did not take the snapshot: {why}")

    async def _store(self, filename: str, content: bytes | Path, url: str, *, sha256: str = "") -> None:
        body = {
            "filename": filename,
            "bucket_id": self._config.bucket_id,
            "size_bytes": content.stat().st_size if isinstance(content, Path) else len(content),
            "backup_type": "full",
            **({"blob_sha256": sha256} if sha256 else {}),
        }
        made = await self._call("POST", f"{url}/api/v1/backups", json=body)
        place = f"{url}/api/v1/files/{made['file_uuid']}/content"
        if isinstance(content, Path):
            with content.open("rb") as file:
                await self._call("PUT", place, data=file)
        else:
            await self._call("PUT", place, data=content)

    async def _remove_older(self, cluster: str, keep: int, url: str) -> None:
        query = {"filename": f"{cluster}-", "status": "available", "limit": str(LISTED)}
        bucket = f"{url}/api/v1/buckets/{self._config.bucket_id}/files"
        listed = await self._call("GET", bucket, params=query)
        ids: dict[str, list[str]] = {}
        for file in listed["files"]:
            ids.setdefault(file["filename"], []).append(file["file_uuid"])
        for older in _older(ids, cluster, keep):
            for each in (older, f"{older}.sha256", f"{older}.json"):
                for file_uuid in ids.get(each, ()):
                    await self._call("DELETE", f"{url}/api/v1/files/{file_uuid}")

    async def _call(self, method: str, url: str, **options: Any) -> Any:
        """What is answered. Raises _MayPassError, Unavailable, and what aiohttp raises."""
        async with self._http.request(method, url, **options) as response:
            answer, status = bytearray(), response.status
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > ANSWER_BYTES_MAX:
                    raise Unavailable(f"The other cluster answers too much: {url}")
        if status < HTTPStatus.BAD_REQUEST or (method, status) == ("DELETE", HTTPStatus.NOT_FOUND):
            return msgspec.json.decode(answer) if answer else None
        why = f"{method} {status}: {answer[:ERROR_BYTES_SHOWN].decode(errors='replace')}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
            raise _MayPassError(why)
        raise Unavailable(f"The other cluster did not take the snapshot: {url}: {why}")


def _credentials(data: Path, config: OffsiteConfig) -> tuple[ssl.SSLContext, str]:
    """Blocks. The token is read anew each time: it may have been renewed."""
    token = read_secret(data / config.token_file).decode("ascii", errors="replace").strip()
    return client_context(read_roots(data / config.ca)), token

"""Snapshots of the metadata at another place: a directory, or a bucket of another cluster.

It receives everything that `filestore coordinator restore` needs, except for the bundle: the copy of the
database, its sha256, and a note about them, with the settings of the coordinator. The copy is sent last, so
that an existing copy is complete.

A name contains the history of the state, which is unique to a cluster, and which a restore changes
(`RecordRestore`). The newest `keep` snapshots of a history are kept, by their indexes in its log, which do
not depend on clocks. Snapshots of another history, or of a release without histories in names, are left to
the operator. Others may write to the place as well: existing names are never opened for writing.
"""

import asyncio
import os
import re
import secrets
import sqlite3
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import aiohttp
import msgspec
from msgspec import Meta, Struct

from ca.certificates import root_digest
from ca.errors import InvalidRequest, NotFound, Unavailable
from ca.secretfiles import read_secret, sync_directory, write_secret
from ca.tls import client_context, read_roots
from coordinator.admin.restore import COPY_BYTES, HISTORY_DIGITS, copy_durably
from coordinator.storage.config import CoordinatorFiles, NotInitialised
from metadata.model.rules import RULES
from metadata.rpc.connector import Connector
from runtime.file_digests import digest_beside, sha256_of
from runtime.json_files import decode_foreign
from runtime.stopping import Stop, run_in_thread
from runtime.version import VERSION

KEEP: Final = 30
KEEP_MAX: Final = 300
ATTEMPTS: Final = 3  # each at the next address
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)
ANSWER_BYTES_MAX: Final = 4 << 20
ERROR_BYTES_SHOWN: Final = 300
LISTED: Final = 1000
PAUSE_S: Final = 1.0  # before the next attempt
_PASSING: Final = (HTTPStatus.LOCKED, HTTPStatus.TOO_MANY_REQUESTS)
MARKER: Final = "filestore-offsite"  # a directory without it may be an empty mount point
_SNAPSHOT: Final = r"[0-9]{8}T[0-9]{6}-([0-9]{1,19})\.sqlite"
_UNFINISHED: Final = r"(\.sha256|\.json)?\.[0-9a-f]{16}\.tmp"
_T = TypeVar("_T")


class OffsiteConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """offsite.json: where snapshots go.

    Either a `directory`, or a bucket: `urls`, `ca`, `token_file` and `bucket_id`. Paths that are not absolute
    are in the data directory. `keep`: the number of snapshots to keep there.
    """

    directory: str = ""
    urls: Annotated[list[str], Meta(max_length=16)] = []
    ca: str = ""
    token_file: str = ""
    bucket_id: str = ""
    keep: Annotated[int, Meta(ge=1, le=KEEP_MAX)] = KEEP


@dataclass(frozen=True, slots=True)
class _SentSnapshot:
    """A snapshot, its digest, and its note."""

    cluster: str
    history: str
    log_index: int
    snapshot: Path
    sha256: str
    note: bytes = b""

    @property
    def prefix(self) -> str:
        """Return the beginning of the names of all snapshots of this history."""
        return f"{self.cluster}-{self.history}-"

    @property
    def name(self) -> str:
        """Return its name at the other place."""
        return f"{self.prefix}{self.snapshot.name}"

    @property
    def digest(self) -> bytes:
        """Return the line for `sha256sum -c`."""
        return f"{self.sha256}  {self.name}\n".encode()


class Offsite:
    """The other place of one coordinator's snapshots."""

    def __init__(self, files: CoordinatorFiles, config: OffsiteConfig) -> None:
        """Use this configuration. Raises InvalidRequest if it names no place, or two."""
        self._files, self._config = files, config
        bucket = {name: getattr(config, name) for name in ("urls", "ca", "token_file", "bucket_id")}
        if bool(config.directory) == any(bucket.values()):
            raise InvalidRequest(f"{files.offsite}: expected a directory, or a bucket with its urls")
        if missing := [name for name, value in bucket.items() if not value and not config.directory]:
            raise InvalidRequest(f"{files.offsite}: {missing[0]}: is missing")
        if not all(url.startswith("https://") for url in config.urls):
            raise InvalidRequest(f"{files.offsite}: urls: https:// is required")

    async def send(self, snapshot: Path, *, history: str, log_index: int, at: str) -> str:
        """Send a snapshot with its digest and note; return the place. Raises FilestoreError, OSError.

        `history`: of the state in it, which has applied the entries up to `log_index`.
        """
        sent = await run_in_thread(partial(self._described, snapshot, history, log_index, at))
        if self._config.directory:
            directory = self._files.data / self._config.directory
            await run_in_thread(partial(_into_directory, directory, sent, self._config.keep))
            return f"directory {directory}"
        async with _Bucket.connected(self._files.data, self._config) as bucket:
            await bucket.receive(sent, keep=self._config.keep)
        return f"bucket {self._config.bucket_id}"

    async def fetch_newest(self, history: str, target: Path) -> str:
        """Fetch the newest snapshot of a history and its digest; return its name.

        Raises NotFound if there is none, Unavailable, FilestoreError, OSError.
        """
        prefix = f"{self._files.read_config().cluster}-{history}-"
        if self._config.directory:
            directory = self._files.data / self._config.directory
            return await run_in_thread(partial(_from_directory, directory, prefix, target))
        async with _Bucket.connected(self._files.data, self._config) as bucket:
            return await bucket.attempt(partial(bucket.fetch_newest, prefix, target))

    def _described(self, snapshot: Path, history: str, log_index: int, at: str, stop: Stop) -> _SentSnapshot:
        settings = self._files.read_config()
        sent = _SentSnapshot(settings.cluster, history, log_index, snapshot, sha256_of(snapshot, stop))
        note = {
            "snapshot": sent.name,
            "sha256": sent.sha256,
            "taken_at": at,
            "history": history,
            "log_index": log_index,
            "version": VERSION,
            "rules": RULES,
            "coordinator": settings,
        }
        return replace(sent, note=msgspec.json.format(msgspec.json.encode(note)) + b"\n")


def read_offsite(files: CoordinatorFiles) -> Offsite | None:
    """Read offsite.json; None without that file. Raises NotInitialised, InvalidRequest."""
    try:
        return Offsite(files, decode_foreign(files.offsite.read_bytes(), OffsiteConfig))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise NotInitialised(f"{files.offsite} cannot be read: {error}") from error


def history_of(snapshot: Path) -> str:
    """Return the history of a snapshot's state: drawn at its last restore, before the first its cluster's.

    No other cluster has it, and no two states of one history differ at one index. Blocks.
    """
    address = f"{snapshot.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as db:
        return history_in(db)


def history_in(db: sqlite3.Connection) -> str:
    """Return the history of a state: see `history_of`."""
    drawn = db.execute("SELECT history FROM restores").fetchone()
    (root_pem,) = db.execute("SELECT root_pem FROM cluster").fetchone()
    return str(drawn[0]) if drawn else root_digest(root_pem)[:HISTORY_DIGITS]


def _into_directory(directory: Path, sent: _SentSnapshot, keep: int, stop: Stop) -> None:
    """Write a snapshot; block until it is durable. Raises Unavailable, WorkStopped, OSError."""
    _require_place(directory)
    for name in os.listdir(directory):
        if re.fullmatch(rf"\.{re.escape(sent.prefix)}{_SNAPSHOT}{_UNFINISHED}", name):
            _remove(directory / name)  # of a process that was killed
    target = directory / sent.name
    making = directory / f".{sent.name}.{secrets.token_hex(8)}.tmp"
    write_secret(digest_beside(target), sent.digest)
    write_secret(_note_beside(target), sent.note)
    try:
        copy_durably(sent.snapshot, making, stop)
        if sha256_of(making, stop) != sent.sha256:
            raise Unavailable(f"The copy in {directory} differs from what was written.")
        making.replace(target)
        sync_directory(directory)  # before an older one is removed
    except BaseException:
        making.unlink(missing_ok=True)
        raise
    for older in _older(os.listdir(directory), sent, keep):
        for path in (directory / older, digest_beside(directory / older), _note_beside(directory / older)):
            _remove(path)
    sync_directory(directory)


def _from_directory(directory: Path, prefix: str, target: Path, stop: Stop) -> str:
    _require_place(directory)
    name = _newest(os.listdir(directory), prefix)
    copy_durably(directory / name, target, stop)
    _name_digest(digest_beside(directory / name).read_bytes(), target)
    return name


def _name_digest(digest: bytes, target: Path) -> None:
    """Write the digest of a fetched snapshot next to its file, for the name of that file."""
    digits = digest.split(maxsplit=1)[:1]
    write_secret(digest_beside(target), b"".join(digits) + f"  {target.name}\n".encode())


def _newest(names: Iterable[str], prefix: str) -> str:
    """Return the snapshot with the highest index. Raises NotFound."""
    found = [
        (int(match[1]), name)
        for name in names
        if (match := re.fullmatch(re.escape(prefix) + _SNAPSHOT, name))
    ]
    if not found:
        raise NotFound(f"The other place has no snapshot {prefix}*.sqlite.")
    return max(found)[1]


def _require_place(directory: Path) -> None:
    """Raise Unavailable unless an operator has marked the directory as a place for snapshots.

    Its content proves nothing: snapshots may have been written into the mount point of an unmounted share.
    """
    if not directory.is_dir():
        raise Unavailable(f"There is no directory {directory}: is it mounted?")
    marker = directory / MARKER
    if not marker.exists():
        raise Unavailable(
            f"There is no file {marker}: is the directory mounted? If it is the right one, mark it (`touch"
            f" {marker}`)."
        )


def _remove(path: Path) -> None:
    """Remove a file, or a link. A directory of that name is foreign and stays."""
    with suppress(FileNotFoundError, IsADirectoryError):
        path.unlink()


def _note_beside(snapshot: Path) -> Path:
    return snapshot.with_name(f"{snapshot.name}.json")


def _older(names: Iterable[str], sent: _SentSnapshot, keep: int) -> list[str]:
    """Return the snapshots of this history that are too many: earlier ones, except for `keep` - 1."""
    before = []
    for name in names:
        found = re.fullmatch(re.escape(sent.prefix) + _SNAPSHOT, name)
        if found and name != sent.name and int(found[1]) <= sent.log_index:
            before.append((int(found[1]), name))
    return [name for _, name in sorted(before)[: max(0, len(before) - keep + 1)]]


class _MayPassError(Exception):
    """An error that another attempt may not get."""


class _Bucket:
    """A bucket of another cluster, through its API."""

    def __init__(self, http: aiohttp.ClientSession, config: OffsiteConfig) -> None:
        self._http, self._config = http, config
        self._turn = 0

    @classmethod
    @asynccontextmanager
    async def connected(cls, data: Path, config: OffsiteConfig) -> AsyncIterator["_Bucket"]:
        """Open the connection. Raises UnsafeSecretFile, and what `read_roots` raises."""
        context, token = await asyncio.to_thread(_credentials, data, config)
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(
            connector=Connector(context=context), timeout=REQUEST_TIMEOUT, headers=headers
        ) as http:
            yield cls(http, config)

    async def receive(self, sent: _SentSnapshot, *, keep: int) -> None:
        """Store the snapshot and its other files; then remove the oldest ones."""
        await self.attempt(partial(self._store, f"{sent.name}.sha256", sent.digest))
        await self.attempt(partial(self._store, f"{sent.name}.json", sent.note))
        await self.attempt(partial(self._store, sent.name, sent.snapshot, sha256=sent.sha256))
        await self.attempt(partial(self._remove_older, sent, keep))

    async def attempt(self, work: Callable[[str], Awaitable[_T]]) -> _T:
        """Do all the work, again at the next address after a temporary error. Raises Unavailable.

        Remains of a failed attempt expire, or are removed with the others of its name.
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
        raise Unavailable(f"The other cluster cannot be used now: {why}")

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

    async def fetch_newest(self, prefix: str, target: Path, url: str) -> str:
        """Fetch the newest snapshot with this prefix and its digest; return its name."""
        ids = await self._own_files(prefix, url)
        name = _newest(ids, prefix)
        for each, path in ((name, target), (f"{name}.sha256", digest_beside(target))):
            if each not in ids:
                raise NotFound(f"The other place has no {each}.")
            await self._download(f"{url}/api/v1/files/{ids[each][-1]}", path)
        _name_digest(await asyncio.to_thread(digest_beside(target).read_bytes), target)
        return name

    async def _download(self, url: str, path: Path) -> None:
        async with self._http.get(url) as response:
            if response.status != HTTPStatus.OK:
                raise _MayPassError(f"{url}: {response.status}")
            with await asyncio.to_thread(path.open, "wb") as file:
                async for chunk in response.content.iter_chunked(COPY_BYTES):
                    await asyncio.to_thread(file.write, chunk)

    async def _remove_older(self, sent: _SentSnapshot, keep: int, url: str) -> None:
        ids = await self._own_files(sent.prefix, url)
        for older in _older(ids, sent, keep):
            for each in (older, f"{older}.sha256", f"{older}.json"):
                for file_uuid in ids.get(each, ()):
                    await self._call("DELETE", f"{url}/api/v1/files/{file_uuid}")

    async def _own_files(self, prefix: str, url: str) -> dict[str, list[str]]:
        """Return the files of this token's user by name: other users may choose the same names."""
        own = await self._call("GET", f"{url}/api/v1/auth/whoami")
        wanted = own["user_id"], self._config.bucket_id
        query = {"filename": prefix, "status": "available", "limit": str(LISTED)}
        ids: dict[str, list[str]] = {}
        while "cursor" not in query or query["cursor"]:
            listed = await self._call("GET", f"{url}/api/v1/backups", params=query)
            for file in listed["backups"]:
                if (file["owner_id"], file["bucket_id"]) == wanted:
                    ids.setdefault(file["filename"], []).append(file["file_uuid"])
            query["cursor"] = listed.get("next_cursor", "")
        return ids

    async def _call(self, method: str, url: str, **options: Any) -> Any:
        """Return the response. Raises _MayPassError, Unavailable, and the errors of aiohttp."""
        async with self._http.request(method, url, **options) as response:
            answer, status = bytearray(), response.status
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > ANSWER_BYTES_MAX:
                    raise Unavailable(f"The other cluster sent a response that is too long: {url}")
        if status < HTTPStatus.BAD_REQUEST or (method, status) == ("DELETE", HTTPStatus.NOT_FOUND):
            return msgspec.json.decode(answer) if answer else None
        why = f"{method} {status}: {answer[:ERROR_BYTES_SHOWN].decode(errors='replace')}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
            raise _MayPassError(why)
        raise Unavailable(f"The other cluster rejected a request: {url}: {why}")


def _credentials(data: Path, config: OffsiteConfig) -> tuple[ssl.SSLContext, str]:
    """Return context and token. Blocks. The token is read again each time, as it may have been renewed."""
    token = read_secret(data / config.token_file).decode("ascii", errors="replace").strip()
    return client_context(read_roots(data / config.ca)), token

"""Files of all kinds: up, down, what there is, what it is called, and away with it."""

import asyncio
import os
import stat
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, overload

from filestore_client.base.errors import (
    ChecksumMismatch,
    FileChanged,
    FilestoreError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from filestore_client.base.pages import check_filters, pages
from filestore_client.base.paths import content_path, forms_of, path_part
from filestore_client.base.records import (
    Content,
    FileRecord,
    FileSummary,
    Folder,
    Kind,
    Manifest,
    Ticket,
)
from filestore_client.base.transport import Transport
from filestore_client.kind_files import KindFiles
from filestore_client.kinds import (
    HEAD_BYTES,
    KINDS,
    PROJECT,
    is_utf8,
    is_wanted,
    kind_of,
    new_record_fields,
)
from filestore_client.sending import NEW, abandon, base_of, find_begun, send, stored_record, tell
from filestore_client.transfer.creating import BegunUpload, NewFile, begin, create, upload_at_once
from filestore_client.transfer.downloading import (
    Progress,
    describe,
    download_to_file,
    download_to_stream,
    read_span,
)
from filestore_client.transfer.parallel import PartedFile, spans_of, upload_parts
from filestore_client.transfer.ranges import CONNECTIONS
from filestore_client.transfer.reading import AsyncReader
from filestore_client.transfer.sources import Contents, FileSource, Source, source_of
from filestore_client.transfer.upload_memory import Memory
from filestore_client.transfer.uploading import UploadState, give_up, is_begun_with
from filestore_client.transfer.writing import AsyncWriter

KIND_NAMES: Sequence[Kind] = ("project", "image", "backup")


def _silent(_done_bytes: int, _total_bytes: int | None) -> None:
    """Ignore progress."""


def _unnoted(_file_uuid: str) -> None:
    """Ignore the id of the upload."""


class Files:
    """Files of all kinds together."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kinds: dict[str, KindFiles[Any]] = {
            name: KindFiles(transport, kind) for name, kind in KINDS.items()
        }

    async def upload(
        self,
        content: str | os.PathLike[str] | Contents,
        /,
        *,
        kind: Kind | None = None,
        filename: str = "",
        resume: bool = True,
        only_url: bool = False,
        parallel: int = 1,
        progress: Progress = _silent,
        created: Callable[[str], None] = _unnoted,
        identity: str = "",
        base: str | None = None,
        **fields: object,
    ) -> FileRecord:
        """Upload a path, an open file, bytes, or an iterator of bytes; return its available record.

        `kind`: if absent, detected from the content of a path, and a backup otherwise. `fields`: those of the
        record, such as `bucket_id`, `path` (the folder in the bucket), `retention_period` (hours),
        `project_id`, `virt_type`. A path resumes an earlier upload of the same file, unless `resume` is
        false. `only_url`: the bytes go through the client's nodes, not to the one that the cluster names.
        `parallel`: the number of connections for a path that is large enough, sent in as many parts; the
        cluster needs twice its space for a moment. The checksum is compared at the end. For other content
        than a path, `created` is called with the file_uuid before the first byte is sent, and `identity`
        identifies the content: with it, a stream too resumes an earlier upload of the same content. `base`:
        the file_uuid of a file whose equal parts are not sent again ("" for none); if absent, for a path the
        newest file of the same name. That needs `filestore-client[delta]`.

        Raises FilestoreError, OSError; FileChanged if the file was written to during the upload.
        """
        if isinstance(content, (str, os.PathLike)):
            record, memory = await self.upload_remembered(
                Path(content),
                kind=kind,
                filename=filename,
                resume=resume,
                only_url=only_url,
                parallel=parallel,
                progress=progress,
                base=base,
                **fields,
            )
            memory.forget()
            return record
        source = source_of(content)
        name = filename or Path(str(getattr(content, "name", ""))).name or "stdin"
        kind = kind or "backup"
        wanted = new_record_fields(kind, name, b"", fields)
        if identity and resume:
            return await self._send_identified(identity, kind, wanted, source, only_url, progress, created)
        return await self._send_stream(
            kind, wanted, source, only_url=only_url, progress=progress, created=created, base=base or ""
        )

    async def upload_remembered(
        self,
        path: Path,
        /,
        *,
        kind: Kind | None = None,
        filename: str = "",
        resume: bool = True,
        only_url: bool = False,
        parallel: int = 1,
        progress: Progress = _silent,
        base: str | None = None,
        **fields: object,
    ) -> tuple[FileRecord, Memory]:
        """Upload a file as `upload` does, and go on remembering it until the caller forgets.

        So of several files that belong together none is stored twice when all are uploaded again.
        """
        _require_regular(path)
        transport = self._transport.sibling()
        with path.open("rb") as file:
            chosen: Kind = await asyncio.to_thread(kind_of, file, path.name) if kind is None else kind
            wanted = await _wanted(chosen, filename or path.name, file, fields)
            source = FileSource(file)
            if spans := spans_of(source.facts.st_size, parallel, wanted):
                named = {"kind": chosen, "parts": len(spans), **wanted}
                memory = Memory.of(transport.cluster, path, source.facts, named)
                parted = PartedFile(KINDS[chosen].path, wanted, file, source, spans)
                made = await upload_parts(
                    transport,
                    parted,
                    memory,
                    resume=resume,
                    only_url=only_url,
                    progress=partial(tell, progress, source),
                )
                return await stored_record(transport, chosen, made, source), memory
            memory = Memory.of(transport.cluster, path, source.facts, {"kind": chosen, **wanted})
            unfinished, state = await find_begun(transport, memory) if resume else (None, NEW)
            try:
                if unfinished is not None and not await is_begun_with(source, state):
                    await abandon(transport, memory, unfinished)
                    unfinished, state = None, NEW
                if unfinished is None:
                    begun = await begin(transport, _new(chosen, wanted), source, memory, resume=resume)
                    if isinstance(begun, FileRecord):
                        tell(progress, source, begun.size_bytes)
                        return begun, memory
                    unfinished, state = begun.upload, UploadState(begun.offset, None)
                found = await base_of(transport, chosen, wanted, source, base)
                await send(
                    transport, unfinished, source, state, only_url=only_url, progress=progress, base=found
                )
                return await stored_record(transport, chosen, unfinished, source), memory
            except FileChanged:
                await abandon(transport, memory, unfinished)
                raise

    async def is_begun(
        self, path: Path, /, *, kind: Kind | None = None, filename: str = "", **fields: object
    ) -> bool:
        """Return whether an earlier `upload_remembered` of this file is remembered; False if unreadable."""
        try:
            _require_regular(path)
            with path.open("rb") as file:
                chosen: Kind = await asyncio.to_thread(kind_of, file, path.name) if kind is None else kind
                wanted = await _wanted(chosen, filename or path.name, file, fields)
                facts = os.fstat(file.fileno())
        except (OSError, FilestoreError):
            return False
        return Memory.of(self._transport.cluster, path, facts, {"kind": chosen, **wanted}).exists()

    async def download(
        self,
        file_uuid: str,
        target: str | os.PathLike[str] | BinaryIO | None = None,
        *,
        connections: int = CONNECTIONS,
        replace: bool = True,
        progress: Progress = _silent,
        content: Content | None = None,
    ) -> Path | None:
        """Download to a file, or to an open one in order; the path of the file. The checksum is compared.

        `target`: a path; a directory, by default this one, for the file's own name. A path that is there is
        replaced, or with `replace=False` Conflict; in a directory nothing is. Several connections take
        ranges from all nodes of this client; what an earlier download left in TARGET.part is not asked again.
        `content`: what `stat` returns, if the caller knows it; it saves a request.

        Raises FilestoreError, OSError; ChecksumMismatch, and then nothing is left of it.
        """
        content = content or await self.stat(file_uuid)
        if target is None or isinstance(target, (str, os.PathLike)):
            path = Path(target) if target is not None else None
            return await download_to_file(
                self._transport,
                file_uuid,
                content,
                path,
                connections=connections,
                replace=replace,
                progress=progress,
            )
        await download_to_stream(self._transport, file_uuid, content, target, progress=progress)
        return None

    @overload
    async def open(self, file: str, mode: Literal["rb"] = "rb") -> AsyncReader: ...

    @overload
    async def open(
        self, file: str, mode: Literal["wb"], *, kind: Kind = "backup", **fields: object
    ) -> AsyncWriter: ...

    async def open(
        self, file: str, mode: str = "rb", *, kind: Kind = "backup", **fields: object
    ) -> AsyncReader | AsyncWriter:
        """A file to read or to write.

        `rb`: `file` is a file_uuid; its content, seekable, with read-ahead. Raises as `stat` does. `wb`:
        `file` is the name of a new file, which is available once it is closed; `fields` as of `upload`.
        """
        if mode == "rb":
            return AsyncReader(self._transport, file, await self.stat(file))
        if mode != "wb":
            raise ValueError(f"mode {mode!r} is neither 'rb' nor 'wb'")
        wanted = new_record_fields(kind, file, b"", fields)
        return AsyncWriter(partial(self._send_stream, kind, wanted))

    def read(
        self, file_uuid: str, start: int = 0, stop: int | None = None, *, content: Content | None = None
    ) -> AsyncIterator[bytes]:
        """Bytes `start` to `stop` (excluded; the end if it is left out) of the content, in order.

        `content`: what `stat` returns, if the caller knows it; it saves a request.
        """
        return self._read(file_uuid, start, stop, content)

    def list(self, /, kind: Kind | None = None, **filters: str) -> AsyncIterator[FileRecord]:
        """Every file that the caller may see, of one kind or of all; see `KindFiles.list`."""
        kinds = [KINDS[kind].name] if kind is not None else KIND_NAMES
        check_filters(kinds, filters)
        return self._list(kinds, filters)

    async def named(self, filename: str, *, path: str | None = None) -> AsyncIterator[FileRecord]:
        """Every available file of this name that the caller may see.

        `path`: only those in this folder, "" for the top of a bucket; in folders too if it is absent. A name
        is the same in both forms of its accents.
        """
        folder = None if path is None else unicodedata.normalize("NFC", path.strip("/"))
        for form in forms_of(filename):
            async for record in self.list(filename=form, status="available"):
                is_there = folder is None or unicodedata.normalize("NFC", record.path) == folder
                if record.filename == form and is_there:
                    yield record

    async def find(self, filename: str, *, path: str | None = None) -> FileRecord | None:
        """The newest available file of this name that the caller may see; None if there is none.

        `path`: only those in this folder, "" for the top of a bucket.
        """
        found = [record async for record in self.named(filename, path=path)]
        return max(found, key=lambda record: record.created_at, default=None)

    async def in_bucket(self, /, bucket_id: str, **filters: str) -> AsyncIterator[FileSummary]:
        """Every file of a bucket, of all kinds.

        `filters`: `status`, `filename` (how it begins), `name` (the whole name), `path` (the folder; "/" for
        the top), and with that `recursive="1"` for the folders below it too.
        """
        check_filters(["bucket"], filters)
        where = f"/api/v1/buckets/{path_part(bucket_id)}/files"
        async for file in pages(self._transport, where, "files", FileSummary, **filters):
            if is_wanted(file, filters):  # servers of release 0.1.0 know neither folders nor whole names
                yield file

    def folders(self, bucket_id: str, path: str = "") -> AsyncIterator[Folder]:
        """The folders in a folder of a bucket, by name; "" for the top."""
        where = f"/api/v1/buckets/{path_part(bucket_id)}/folders"
        return pages(self._transport, where, "folders", Folder, path=path)

    async def get(self, file_uuid: str) -> FileRecord:
        """The record of a file of any kind. Raises NotFound."""
        *others, last = self._kinds.values()
        for files in others:
            with suppress(NotFound):
                return cast(FileRecord, await files.get(file_uuid))
        return cast(FileRecord, await last.get(file_uuid))

    async def update(self, /, file_uuid: str, *, if_match: str = "", **fields: object) -> FileRecord:
        """Change some fields of a file of any kind; see `KindFiles.update`."""
        record = await self.get(file_uuid)
        found: FileRecord = await self._kinds[record.kind].update(file_uuid, if_match=if_match, **fields)
        return found

    async def delete(self, file_uuid: str) -> None:
        """Delete a file of any kind for good, or its upload."""
        await self._transport.delete(content_path(file_uuid))

    async def stat(self, file_uuid: str) -> Content:
        """Size, checksum, name and type of available content. Raises NotFound, NotAvailable, Forbidden."""
        return await describe(self._transport, file_uuid)

    async def manifest(self, file_uuid: str) -> Manifest:
        """Return the contents of the archive of a project."""
        path = f"{PROJECT.path}/{path_part(file_uuid)}/manifest"
        return await self._transport.call("GET", path, Manifest)

    async def ticket(self, file_uuid: str, *, ttl_seconds: int | None = None) -> Ticket:
        """A short-lived address of the file that needs no token, such as for a browser."""
        body = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
        path = f"{content_path(file_uuid)}/ticket"
        # Nothing is recorded of it, so twice does no harm.
        return await self._transport.call("POST", path, Ticket, body=body, repeats=True)

    async def _send_stream(
        self,
        kind: Kind,
        wanted: Mapping[str, Any],
        source: Source,
        *,
        only_url: bool = False,
        progress: Progress = _silent,
        created: Callable[[str], None] = _unnoted,
        base: str = "",
    ) -> FileRecord:
        """Upload content that can be read only once. If the upload fails for good, it is deleted."""
        transport = self._transport.sibling()  # it goes over to the node that holds the upload
        begun: FileRecord | BegunUpload | None = None
        if created is _unnoted:  # otherwise the caller wants the record before the bytes
            begun = await upload_at_once(transport, _new(kind, wanted), source)
        if isinstance(begun, FileRecord):
            tell(progress, source, begun.size_bytes)
            return begun
        if begun is None:
            begun = BegunUpload(await create(transport, _new(kind, wanted), source), 0)
        upload = begun.upload
        created(upload.file_uuid)
        try:
            state = UploadState(begun.offset, None)
            known = await base_of(transport, kind, wanted, source, base)
            await send(transport, upload, source, state, only_url=only_url, progress=progress, base=known)
        except Unavailable:  # it could not be resumed anyway; the server lets it expire
            raise
        except BaseException:
            with suppress(FilestoreError):
                await give_up(transport, upload.file_uuid)
            raise
        return await stored_record(transport, kind, upload, source)

    async def _send_identified(
        self,
        identity: str,
        kind: Kind,
        wanted: Mapping[str, Any],
        source: Source,
        only_url: bool,
        progress: Progress,
        created: Callable[[str], None],
    ) -> FileRecord:
        """Upload what can be read again from its beginning, and go on where an earlier upload of it ended."""
        transport = self._transport.sibling()
        memory = Memory.of_identity(transport.cluster, identity, {"kind": kind, **wanted})
        begun, state = await find_begun(transport, memory)
        if begun is None:
            begun = await create(transport, _new(kind, wanted), source)
            memory.write(begun)
        created(begun.file_uuid)
        try:
            if not await is_begun_with(source, state):  # nor can a stream be sent from its beginning now
                raise ChecksumMismatch(
                    f"The cluster has {state.offset} bytes of an earlier upload, {begun.file_uuid}, "
                    "and this content begins differently. The earlier upload was discarded. Upload the "
                    "content again."
                )
            await send(transport, begun, source, state, only_url=only_url, progress=progress)
            record = await stored_record(transport, kind, begun, source)
        except (ChecksumMismatch, FileChanged):
            await abandon(transport, memory, begun)
            raise
        memory.forget()
        return record

    async def _read(
        self, file_uuid: str, start: int, stop: int | None, content: Content | None
    ) -> AsyncIterator[bytes]:
        content = content or await self.stat(file_uuid)
        end = content.size_bytes if stop is None else min(stop, content.size_bytes)
        async for part in read_span(self._transport, file_uuid, content, start, end):
            yield part

    async def _list(self, kinds: Sequence[Kind], filters: Mapping[str, str]) -> AsyncIterator[FileRecord]:
        for kind in kinds:
            async for record in self._kinds[kind].list(**filters):
                yield record


def _new(kind: Kind, wanted: Mapping[str, Any]) -> NewFile[Any]:
    return NewFile(KINDS[kind].path, KINDS[kind].record, wanted)


async def _wanted(kind: Kind, name: str, file: BinaryIO, fields: Mapping[str, object]) -> dict[str, Any]:
    """The fields of the new record. Raises InvalidRequest for a name that the API cannot take."""
    if not name:
        raise InvalidRequest("The file has no name of its own; give it one.")
    if not is_utf8(name):
        raise InvalidRequest("The name of the file is not UTF-8; give it another one.")
    head = await asyncio.to_thread(os.pread, file.fileno(), HEAD_BYTES, 0)
    return new_record_fields(kind, name, head, fields)


def _require_regular(path: Path) -> None:
    """Before it is opened: that waits for who writes into a pipe. Raises InvalidRequest, OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InvalidRequest(f"{path} is not a regular file.")

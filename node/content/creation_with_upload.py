"""Bytes that come with the creation of their upload (tus creation-with-upload).

Whatever can be told by the headers is told before anything is created. Then the upload is begun, and its
bytes go to the node that holds it, as those of a PUT or a PATCH at its address do: all of the content as a
whole PUT, else as a PATCH at offset 0. The leader lets this node hold it, if it is one of those that get the
bytes: then nothing is passed on.

A body that is refused leaves no upload. Where bytes are missing for another reason the answer is 201 with the
offset that the log has, as tus wants it: the client goes on from there. Where none is missing, and the file
is not available all the same, it is the error: whoever is told all bytes asks for nothing more.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import uuid_utils
from aiohttp import hdrs, web
from msgspec.structs import replace

from api import tus_creation
from api.tus_creation import Creation
from ca.errors import (
    ChecksumMismatch,
    Conflict,
    FilestoreError,
    InvalidRequest,
    OffsetMismatch,
    PayloadTooLarge,
    RateLimited,
    Unavailable,
)
from metadata.model.records import BACKUP, PARTIAL, PROJECT_FILE, VM, UploadRecord
from metadata.protocol.calls import PlaceCall
from metadata.protocol.commands import CreateFile, CreateProjectFile, CreateVm
from metadata.protocol.queries import GetUpload
from node.content import put, tus
from node.content.handlers import write
from node.content.replay import is_repeated
from node.content.short_put import CutOff, small_body
from node.content.tus import PatchFields
from node.content.upload_session import UploadSession
from node.uploads.completion import complete_upload
from node.uploads.forwarding import HolderAddress, ask_holder, refusal_of
from node.uploads.services import NODE, NodeServices
from node.uploads.small_content import SMALL_CONTENT_BYTES, store_small
from runtime.time_limits import moved
from web.app import keeps_in_memory
from web.headers.conditions import require_content
from web.headers.digests import (
    PIECE_FIELD,
    TUS_FIELD,
    Checksum,
    agreed_sha256,
    piece_checksums,
    piece_digest,
    require_before_body,
    whole_digest,
)
from web.headers.ranges import SIZE_BYTES_MAX

_OWN_TRIES_MAX: Final = 256  # to find an id of this worker: where there are 8, all fail once in 10^14
_REFUSED: Final = (ChecksumMismatch, InvalidRequest, PayloadTooLarge)  # the bytes, for good


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the headers say of the bytes.

    `is_whole`: they are all of the content, and how many they are is told. `whole_sha256`: what the content
    must hash to, "" when nobody said; `checksums`: what the bytes must hash to besides.
    """

    is_whole: bool
    length_bytes: int | None
    checksums: Sequence[Checksum]
    whole_sha256: str


async def receive(request: web.Request, creation: Creation) -> web.StreamResponse:
    """Create the upload and take the bytes of the request: 201 with the offset that was reached.

    Raises what the creation is refused with, and what a PUT or PATCH of the bytes would be.
    """
    services = request.app[NODE]
    told = _told_of(request, creation)
    caller, file_uuid = creation.command.caller, creation.command.file_uuid
    file_uuid = file_uuid if creation.is_keyed else _own_uuid(services)
    services.locks.require_place(caller.subject, file_uuid)
    seen_releases = services.locks.releases
    creation = creation.with_placement(file_uuid, services.node_id)
    if (made := await _made_at_once(request, services, creation, told)) is not None:
        return await creation.answer(made)
    upload = await tus_creation.begin(services.api.metadata, creation)
    moved()
    coming = _Coming(services, creation, told, upload)
    try:
        return await write(
            request,
            coming.take,
            needs_file=coming.needs_file,
            onward=coming.pass_on,
            begun=(seen_releases, caller, upload),
        )
    except _REFUSED:
        with suppress(FilestoreError):  # then it expires
            await tus.terminate(request, services, caller, upload)
        raise
    except FilestoreError as error:
        return await coming.where_it_stands(error)


async def _made_at_once(
    request: web.Request, services: NodeServices, creation: Creation, told: _Told
) -> UploadRecord | None:
    """The file, created by one change with small content that is durable before; None where that cannot be.

    An upload of which nothing has come where the content cannot be stored now. Raises what the bytes or the
    creation are refused with; nothing was created then.
    """
    command, length_bytes = creation.command, told.length_bytes
    is_small = told.is_whole and length_bytes is not None and length_bytes <= SMALL_CONTENT_BYTES
    if not (is_small and isinstance(command, CreateFile) and services.blobs.packed.takes_new()):
        return None
    call = PlaceCall(command.caller, command.file_uuid, command.bucket_id, length_bytes or 0)
    try:
        place = await services.api.metadata.place(call)
    except FilestoreError:  # the creation says that better, or was carried out before
        return None
    if services.node_id not in place.placement or services.disk.hangs():
        return None
    if not keeps_in_memory(request, length_bytes or 0):
        return None
    # There is no lock by which the client would be broken off, to ask elsewhere, while the disk hangs.
    place_of = services.locks.writer(command.caller.subject, command.file_uuid)
    with place_of, services.disk.waited_for(request.transport):
        try:
            content = await small_body(request, services, length_bytes or 0, told.checksums)
        except CutOff as cut_off:
            raise cut_off.error from cut_off
        found = hashlib.sha256(content).hexdigest()
        sha256 = agreed_sha256(command.expected_sha256, told.whole_sha256, found=found)
        metadata, kind = services.api.metadata, _kind_of(command)
        try:
            stored = await store_small(
                services, kind, place.placement, content, sha256=sha256, as_of=place.log_index
            )
            made = await tus_creation.begin(metadata, creation.with_content(stored))
        except FilestoreError as error:
            if error.status < 500:
                raise
            # Through no fault of the bytes: the client sends them to the upload, unless that has ended well.
            return await tus_creation.begin(metadata, dataclasses.replace(creation, is_keyed=True))
    if made.placement:
        raise Unavailable("Another request under this key has begun it: ask again.", retry_after_s=1)
    if made.blob_sha256 != sha256:
        raise Conflict("Something else was created under this key.")
    services.metrics.uploads_completed.inc()
    return made


def _kind_of(command: CreateFile) -> str:
    if isinstance(command, CreateVm):
        return VM
    return PROJECT_FILE if isinstance(command, CreateProjectFile) else BACKUP


def _told_of(request: web.Request, creation: Creation) -> _Told:
    """Refuse what cannot be taken, before anything is created.

    Raises PayloadTooLarge, InvalidRequest, ChecksumMismatch for digests that contradict each other,
    PreconditionFailed.
    """
    headers, command = request.headers, creation.command
    require_before_body(headers)
    checksums, whole_sha256 = piece_checksums(headers), whole_digest(headers)
    length_bytes, size_bytes = put.body_length(request), command.size_bytes
    limit_bytes = SIZE_BYTES_MAX if size_bytes is None else size_bytes
    if (length_bytes or 0) > limit_bytes:
        raise PayloadTooLarge(f"Content-Length: the upload is declared with {limit_bytes} bytes.")
    is_whole = isinstance(command, CreateFile) and size_bytes is not None and length_bytes == size_bytes
    if isinstance(command, CreateFile) and is_whole:
        whole_sha256 = agreed_sha256(whole_sha256, piece_digest(headers), command.expected_sha256)
        checksums = tuple(each for each in checksums if each.field != PIECE_FIELD)
    require_content(headers, "")
    return _Told(is_whole=is_whole, length_bytes=length_bytes, checksums=checksums, whole_sha256=whole_sha256)


def _own_uuid(services: NodeServices) -> str:
    """The id of a new upload that belongs to this worker of the node, as this one has its bytes at hand."""
    found = ""
    for _ in range(_OWN_TRIES_MAX):
        found = str(uuid_utils.uuid7())
        if services.siblings.owner(found) is None:
            break
    return found


@dataclass(slots=True)
class _Coming:
    """The bytes of one creation. `upload`: as it was last known to stand; `is_known`: after they came."""

    services: NodeServices
    creation: Creation
    told: _Told
    upload: UploadRecord
    is_known: bool = False

    def needs_file(self, request: web.Request, services: NodeServices, record: UploadRecord) -> bool:
        """Whether the file is wanted at once."""
        return not self.told.is_whole or put.needs_file(request, services, record)

    async def take(self, session: UploadSession) -> web.StreamResponse:
        """Take them on the node that holds the upload, and answer."""
        try:
            return await self.creation.answer(await _taken(self.told, session))
        finally:
            self.upload, self.is_known = session.record, True

    async def pass_on(self, request: web.Request, holder: HolderAddress) -> web.StreamResponse:
        """Answer by what the holder makes of them. Raises what it refuses them with."""
        upload, told = self.upload, self.told
        is_put = told.is_whole and TUS_FIELD not in request.headers  # which a PUT does not look at
        asking = ask_holder(
            request,
            holder,
            method=hdrs.METH_PUT if is_put else hdrs.METH_PATCH,
            path=tus.address(upload.file_uuid),
            fields={} if is_put else {"Upload-Offset": "0"},
        )
        async with asking as answer:
            if answer.status >= 400:
                raise await refusal_of(holder, answer)
            offset = told.length_bytes if is_put else int(answer.headers["Upload-Offset"])
        if offset == upload.size_bytes and not self.creation.is_partial:
            return await self.creation.answer(tus.ended(upload))
        return await self.creation.answer(replace(upload, offset_bytes=offset))

    async def where_it_stands(self, error: FilestoreError) -> web.StreamResponse:
        """201 with the offset to go on from, after bytes that were not taken through no fault of theirs.

        Raises the error, with the address of the upload, where that is no answer.
        """
        error.headers |= {hdrs.LOCATION: self.creation.url_of(self.upload)}
        if error.status < 500 and not isinstance(error, (RateLimited, OffsetMismatch)):
            raise error
        if not self.is_known:
            query = GetUpload(caller=self.creation.command.caller, file_uuid=self.upload.file_uuid)
            try:
                self.upload = await self.services.api.metadata.read(query, UploadRecord)
            except FilestoreError:
                raise error from None
        upload = self.upload
        lacks_completion = bool(upload.placement) and upload.offset_bytes == upload.size_bytes
        if lacks_completion and not self.creation.is_partial:
            raise error
        return await self.creation.answer(upload)


async def _taken(told: _Told, session: UploadSession) -> UploadRecord:
    """The upload with the bytes of the request, on the node that holds it.

    A request that comes again, under its key, may find that it has ended, or that some bytes are here.
    """
    record = session.record
    if session.has_ended:
        checksums, sha256 = told.checksums, told.whole_sha256
        if told.is_whole and not await is_repeated(session, 0, checksums, whole_sha256=sha256):
            raise Conflict("This upload has ended: the file is available with other content.")
        return tus.ended(record)
    if told.is_whole:
        await put.take_whole(
            session,
            expected=told.whole_sha256,
            checksums=told.checksums,
            length_bytes=told.length_bytes,
        )
        return tus.ended(session.record)
    if not record.offset_bytes:
        return await tus.take(session, PatchFields(0, None, told.checksums, told.whole_sha256))
    if session.holder.is_complete and record.kind != PARTIAL:
        await complete_upload(session.holder, told.whole_sha256)
        return tus.ended(session.record)
    return record

"""Bytes that arrive with the creation of their upload (tus creation-with-upload).

Errors that the headers show are raised before anything is created. Then the upload is created, and its bytes
go to the node that holds it, as a PUT or a PATCH at its address would: all of the content as a whole PUT,
otherwise as a PATCH at offset 0. The leader makes this node the holder if it is in the placement, so nothing
has to be passed on.

If the body is rejected, the upload is deleted. If it is cut short, the response is 201 with the recorded
offset, and the client resumes there (tus). If all bytes arrived and the file is not available, the response
is the error: a client that learns the full offset sends no further request.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import uuid_utils
from aiohttp import hdrs, web
from msgspec import structs

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
from metadata.model.records import BACKUP, PROJECT_FILE, VM, UploadRecord
from metadata.protocol.calls import PlaceCall
from metadata.protocol.commands import CreateFile, CreateProjectFile, CreateVm
from metadata.protocol.queries import GetUpload
from node.content import tus
from node.content.handlers import write_alone
from node.content.incoming import COMPLETION, IncomingBytes
from node.content.receiving import completed_record, small_body, write_incoming
from node.content.upload_session import UploadRequest, UploadSession
from node.uploads.completion import SMALL_CONTENT_BYTES, store_small
from node.uploads.forwarding import HolderAddress, ask_holder, refusal_of
from node.uploads.services import NODE, NodeServices
from runtime.time_limits import note_progress
from web.app import keeps_in_memory
from web.headers.conditions import require_content
from web.headers.digests import (
    PIECE_FIELD,
    TUS_FIELD,
    agreed_sha256,
    piece_checksums,
    piece_digest,
    require_before_body,
    whole_digest,
)
from web.headers.ranges import SIZE_BYTES_MAX
from web.request_body import body_length

_OWN_TRIES_MAX: Final = 256  # to find an id of this worker: with 8 workers, all fail once in 10^14
_REFUSED: Final = (ChecksumMismatch, InvalidRequest, PayloadTooLarge)  # for good, because of the bytes


async def receive(request: web.Request, creation: Creation) -> web.StreamResponse:
    """Create the upload and write the bytes of the request: 201 with the offset that was reached.

    Raises the errors of the creation, and of a PUT or PATCH of the bytes.
    """
    services = request.app[NODE]
    incoming = parse_creation(request.headers, body_length(request), creation)
    caller, file_uuid = creation.command.caller, creation.command.file_uuid
    file_uuid = file_uuid if creation.is_keyed else _own_uuid(services)
    services.locks.require_place(caller.subject, file_uuid)
    seen_releases = services.locks.releases
    creation = creation.with_placement(file_uuid, services.node_id)
    if (created := await _created_at_once(request, services, creation, incoming)) is not None:
        return await creation.answer(created)
    upload = await tus_creation.begin(services.api.metadata, creation)
    note_progress()
    asked = UploadRequest(request, services, caller, upload, seen_releases)
    pending = PendingCreation(services, creation, incoming, upload)
    try:
        return await write_alone(asked, pending.write, forward=pending.pass_on)
    except _REFUSED:
        with suppress(FilestoreError):  # then it expires
            await tus.terminate(asked)
        raise
    except FilestoreError as error:
        return await pending.answer_offset(error)


async def _created_at_once(
    request: web.Request, services: NodeServices, creation: Creation, incoming: IncomingBytes
) -> UploadRecord | None:
    """Return the file, created by one change with small content that is durable before; None if impossible.

    Returns an empty upload if the content cannot be stored now. Raises if the bytes or the creation are
    rejected; nothing was created then.
    """
    command, length_bytes = creation.command, incoming.length_bytes or 0
    is_small = incoming.is_whole and length_bytes <= SMALL_CONTENT_BYTES
    if not (is_small and isinstance(command, CreateFile) and services.blobs.packed.takes_new()):
        return None
    call = PlaceCall(command.caller, command.file_uuid, command.bucket_id, length_bytes)
    try:
        place = await services.api.metadata.place(call)
    except FilestoreError:  # the creation reports that better, or was carried out before
        return None
    if services.node_id not in place.placement or services.disk.hangs():
        return None
    if not keeps_in_memory(request, length_bytes):
        return None
    # No lock is held here that another request could break off while the disk hangs.
    place_of = services.locks.writer(command.caller.subject, command.file_uuid)
    with place_of, services.disk.waited_for(request.transport):
        content = await small_body(request, services, incoming, [])
        found = hashlib.sha256(content).hexdigest()
        sha256 = agreed_sha256(command.expected_sha256, incoming.whole_sha256, found=found)
        metadata, kind = services.api.metadata, _kind_of(command)
        try:
            stored = await store_small(
                services, kind, place.placement, content, sha256=sha256, as_of=place.log_index
            )
            created = await tus_creation.begin(metadata, creation.with_content(stored))
        except FilestoreError as error:
            if error.status < 500:
                raise
            # The bytes are not at fault: the client sends them to the upload, unless that has ended well.
            return await tus_creation.begin(metadata, replace(creation, is_keyed=True))
    if created.placement:
        raise Unavailable("Another request with this key has started it. Ask again.", retry_after_s=1)
    if created.blob_sha256 != sha256:
        raise Conflict("Something else was created with this key.")
    services.metrics.uploads_completed.inc()
    return created


def _kind_of(command: CreateFile) -> str:
    if isinstance(command, CreateVm):
        return VM
    return PROJECT_FILE if isinstance(command, CreateProjectFile) else BACKUP


def parse_creation(headers: Mapping[str, str], length_bytes: int | None, creation: Creation) -> IncomingBytes:
    """Return what the headers of a creation say of its body; reject a body before anything is created.

    Raises PayloadTooLarge, InvalidRequest, ChecksumMismatch for digests that contradict each other,
    PreconditionFailed.
    """
    require_before_body(headers)
    command, checksums, whole_sha256 = creation.command, piece_checksums(headers), whole_digest(headers)
    limit_bytes = SIZE_BYTES_MAX if command.size_bytes is None else command.size_bytes
    if (length_bytes or 0) > limit_bytes:
        raise PayloadTooLarge(f"Content-Length: the upload is declared with {limit_bytes} bytes.")
    is_whole = length_bytes is not None and length_bytes == command.size_bytes
    if isinstance(command, CreateFile) and is_whole:
        whole_sha256 = agreed_sha256(whole_sha256, piece_digest(headers), command.expected_sha256)
        checksums = tuple(each for each in checksums if each.field != PIECE_FIELD)
    else:
        is_whole = False
    require_content(headers, "")
    return IncomingBytes(
        start=0,
        length_bytes=length_bytes,
        is_whole=is_whole,
        checksums=checksums,
        whole_sha256=whole_sha256,
        patch_offset=-1 if is_whole else 0,
    )


def _own_uuid(services: NodeServices) -> str:
    """Return an id of a new upload that belongs to this worker of the node, which has its bytes."""
    found = ""
    for _ in range(_OWN_TRIES_MAX):
        found = str(uuid_utils.uuid7())
        if services.siblings.owner(found) is None:
            break
    return found


@dataclass(slots=True)
class PendingCreation:
    """A creation whose bytes are arriving.

    `upload`: its last known state; `is_known`: whether this is the state after the bytes.
    """

    services: NodeServices
    creation: Creation
    incoming: IncomingBytes
    upload: UploadRecord
    is_known: bool = False

    async def write(self, session: UploadSession) -> web.StreamResponse:
        """Write the bytes on the node that holds the upload, and return the response.

        A request that is repeated with its key may find that the upload has ended, or has some bytes.
        """
        record, incoming = session.record, self.incoming
        try:
            if session.has_ended and not incoming.is_whole:
                return await self.creation.answer(completed_record(record))
            if record.offset_bytes and not incoming.is_whole:
                incoming = replace(COMPLETION, whole_sha256=incoming.whole_sha256)
            return await self.creation.answer(await write_incoming(session, incoming))
        finally:
            self.upload, self.is_known = session.record, True

    async def pass_on(self, request: web.Request, holder: HolderAddress) -> web.StreamResponse:
        """Return the response for what the holder does with the bytes. Raises its errors."""
        upload, incoming = self.upload, self.incoming
        is_put = incoming.is_whole and TUS_FIELD not in request.headers  # which a PUT ignores
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
            offset = incoming.length_bytes if is_put else int(answer.headers["Upload-Offset"])
        if offset == upload.size_bytes and not self.creation.is_partial:
            return await self.creation.answer(completed_record(upload))
        return await self.creation.answer(structs.replace(upload, offset_bytes=offset))

    async def answer_offset(self, error: FilestoreError) -> web.StreamResponse:
        """Return 201 with the offset to resume from, if the bytes were not stored through no fault of theirs.

        If that is no answer, raise the error with the address of the upload.
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

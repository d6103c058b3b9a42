"""What the handlers of content take of the node that they run in: what uploads take, and kept records."""

from typing import Protocol

from aiohttp import web

from coordinator.model.records import UploadRecord
from node.base.shared_work import SharedWork
from node.records.record_cache import RecordCache
from node.uploads.context import UploadContext


class ContentContext(UploadContext, Protocol):
    """One node."""

    @property
    def records(self) -> RecordCache: ...

    @property
    def concatenations(self) -> SharedWork[UploadRecord]: ...


CONTENT = web.AppKey[ContentContext]("content")

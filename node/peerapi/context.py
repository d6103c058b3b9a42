"""What the handlers of the peer port take of the node that they run in.

It is what uploads take, and copies in both directions.
"""

from typing import Protocol

from aiohttp import web

from node.peer.pulls import Pulls
from node.uploads.context import UploadContext
from node.uploads.upload_copies import UploadCopies


class PeerContext(UploadContext, Protocol):
    """One node."""

    @property
    def pulls(self) -> Pulls: ...

    @property
    def copies(self) -> UploadCopies: ...


PEER = web.AppKey[PeerContext]("peer")

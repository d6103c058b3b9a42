"""The client for asyncio: what there is in a cluster, in groups of operations."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from filestore_client.administration import (
    Audit,
    Buckets,
    Cluster,
    Grants,
    Jobs,
    JoinTokens,
    Nodes,
    Shares,
    Snapshots,
    Trash,
    Users,
)
from filestore_client.base.contexts import find_context
from filestore_client.base.errors import InvalidRequest
from filestore_client.base.records import User
from filestore_client.base.retry import DEADLINE_S
from filestore_client.base.token import Token, token_of
from filestore_client.base.transport import Transport
from filestore_client.files import Files
from filestore_client.kind_files import Images, KindFiles
from filestore_client.kinds import BACKUP, PROJECT
from filestore_client.people import Groups, Invitations, Sessions
from filestore_client.sign_in import Providers

T = TypeVar("T")


class AsyncClient:
    """A connection to a cluster through one or several of its nodes.

    Use as `async with AsyncClient(url, root_pem=..., token=...) as store`. `urls`: base URLs of nodes, the
    first is preferred, and the next is asked when one fails. `root_pem`: the root certificate of the cluster,
    the only one that is trusted. `token`: a user token, or the `Path` of a file that holds one and that is
    read again when the cluster rejects the token. `deadline_s`: give up after this many seconds without
    progress.

    Raises `filestore_client.base.errors`: InvalidRequest for a URL, root or token that cannot be one.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        root_pem: str,
        token: str | os.PathLike[str] | Token,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        nodes = [urls] if isinstance(urls, str) else list(urls)
        self.transport = Transport(nodes, root_pem=root_pem, token=token, deadline_s=deadline_s)
        self.files = Files(self.transport)
        self.projects = KindFiles(self.transport, PROJECT)
        self.images = Images(self.transport)
        self.backups = KindFiles(self.transport, BACKUP)
        self.buckets = Buckets(self.transport)
        self.trash = Trash(self.transport)
        self.grants = Grants(self.transport)
        self.shares = Shares(self.transport)
        self.users = Users(self.transport)
        self.groups = Groups(self.transport)
        self.providers = Providers(self.transport)
        self.sessions = Sessions(self.transport)
        self.invitations = Invitations(self.transport)
        self.join_tokens = JoinTokens(self.transport)
        self.jobs = Jobs(self.transport)
        self.snapshots = Snapshots(self.transport)
        self.nodes = Nodes(self.transport)
        self.cluster = Cluster(self.transport)
        self.audit = Audit(self.transport)

    @classmethod
    def from_environment(cls, *, deadline_s: float = DEADLINE_S) -> Self:
        """The cluster that the `filestore` command would use here; see `connection_from_environment`.

        Raises InvalidRequest when it is not known or cannot be read, NotFound for an unknown context.
        """
        return cls(**connection_from_environment(), deadline_s=deadline_s)

    async def __aenter__(self) -> Self:
        await self.transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transport.__aexit__(kind, error, trace)

    async def call(
        self,
        method: str,
        path: str,
        reply_type: type[T],
        *,
        body: Mapping[str, object] | None = None,
        repeats: bool | None = None,
    ) -> T:
        """Any operation of the API: its JSON answer as `reply_type`. See `Transport.call`."""
        return await self.transport.call(method, path, reply_type, body=body, repeats=repeats)

    async def whoami(self) -> User:
        """Return the user of the token."""
        return await self.users.whoami()


def connection_from_environment() -> dict[str, Any]:
    """Return `urls`, `root_pem` and `token` as the `filestore` command finds them.

    FILESTORE_URL, FILESTORE_CA and FILESTORE_TOKEN_FILE come first. Missing ones come from the context
    FILESTORE_CONTEXT, from ./.filestore/cluster.json, or from the current context, in this order. Raises
    InvalidRequest, NotFound.
    """
    names = ("FILESTORE_URL", "FILESTORE_CA", "FILESTORE_TOKEN_FILE")
    variables = dict(os.environ)
    urls, ca, token_file = (variables.get(name, "") for name in names)
    found = None if urls and ca and token_file else find_context(variables.get("FILESTORE_CONTEXT", ""))
    if found is not None:
        urls, ca, token_file = urls or " ".join(found.urls), ca or found.ca, token_file or found.token_file
    missing = [name for name, value in zip(names, (urls, ca, token_file), strict=True) if not value]
    if missing:
        raise InvalidRequest(f"{', '.join(missing)}: must be set, or sign in with `filestore login URL`.")
    try:
        return {
            "urls": urls.split(),
            "root_pem": Path(ca).expanduser().read_text("ascii"),
            "token": token_of(Path(token_file).expanduser()),
        }
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise InvalidRequest(f"The root certificate or the token cannot be read: {error}") from error

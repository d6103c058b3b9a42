"""The client for code that does not await: the same operations, each run in the loop of a thread.

Safe from several threads at once.
"""

import dis
import functools
import inspect
import io
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
    overload,
)

from filestore_client import administration, people, sign_in
from filestore_client.base.records import Backup, FileRecord, Kind, Project, User
from filestore_client.base.retry import DEADLINE_S
from filestore_client.base.token import Token
from filestore_client.client import AsyncClient, connection_from_environment
from filestore_client.files import Files
from filestore_client.kind_files import Images, KindFiles
from filestore_client.loop_thread import LoopThread, never_collect
from filestore_client.transfer.reading import AsyncReader
from filestore_client.transfer.writing import AsyncWriter

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)  # a function for operations of any file also accepts those of images
T = TypeVar("T")
P = ParamSpec("P")

BUFFER_BYTES = 1 << 20
_WITH_EXCEPT_START = dis.opmap.get("WITH_EXCEPT_START", -1)


class Blocking(Generic[A_co]):
    """Operations of one part of the API, done in the loop of a thread."""

    def __init__(self, inner: A_co, loop: LoopThread) -> None:
        self.inner, self.loop = inner, loop


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A], P], T]:
    """The method, for callers that do not await."""

    def call(self: Blocking[A], /, *arguments: P.args, **named: P.kwargs) -> T:
        return self.loop.run(method(self.inner, *arguments, **named))

    functools.update_wrapper(call, method)
    return call


def listing(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[A], P], Iterator[T]]:
    """The list, for callers that do not await."""

    def call(self: Blocking[A], /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        return self.loop.iterate(method(self.inner, *arguments, **named))

    functools.update_wrapper(call, method)
    items = get_args(get_type_hints(method)["return"])
    call.__annotations__ = {**method.__annotations__, "return": Iterator[items]}  # type: ignore[valid-type]
    return call


class _OpenFile(io.RawIOBase, Generic[A]):
    """An open file, in the process that opened it: its connections are no others'."""

    def __init__(self, inner: A, loop: LoopThread) -> None:
        super().__init__()
        self._inner, self._loop, self._pid = inner, loop, os.getpid()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises RuntimeError in a process that was forked since."""
        if not self._is_of_parent():
            return self._loop.run(work)
        work.close()
        raise RuntimeError("this file was opened before the process was forked: open it again")

    def _abandon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run it without waiting. In a forked process leave everything to the parent."""
        never_collect(self._inner) if self._is_of_parent() else self._loop.abandon(work)

    def _is_of_parent(self) -> bool:
        return self._pid != os.getpid()


class BlockingReader(_OpenFile[AsyncReader]):
    """Stored content as a file that is open for reading."""

    def __init__(self, inner: AsyncReader, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self.size_bytes = inner.size_bytes

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        return self._inner.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; the new position."""
        return self._inner.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Some of the next bytes; how many, 0 at the end. Raises FilestoreError."""
        view = memoryview(buffer).cast("B")
        part = self._run(self._inner.read(len(view)))
        view[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        """All that is left. Raises FilestoreError."""
        return self._run(self._inner.read())

    def close(self) -> None:
        """End what is under way."""
        if not self.closed:
            self._abandon(self._inner.close)
        super().close()


class BlockingWriter(_OpenFile[AsyncWriter]):
    """A new file that is open for writing; `record` once it was closed.

    If it is garbage-collected before `close` or the end of `with`, the upload is abandoned, unlike a file on
    disk. It is also abandoned if it is closed because an exception leaves a `with` statement of a wrapper
    (text, gzip) or of a library that opened it (pandas), as these do not pass the exception on.
    """

    def __init__(self, inner: AsyncWriter, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self._known_error = sys.exception()
        self._is_given_up = False

    @property
    def record(self) -> FileRecord | None:
        """The record of the file; None before it was closed."""
        return self._inner.record

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._inner.tell()

    def write(self, part: Any) -> int:
        """Take all of these bytes. Raises FilestoreError."""
        if self.closed:
            raise ValueError("the file is closed")
        if self._is_given_up:  # the last bytes of a wrapper that is collected
            return len(part)
        return self._run(self._inner.write(bytes(part)))

    def close(self) -> None:
        """End the upload: the file is available then. Raises FilestoreError."""
        if self.closed or self._is_given_up:
            super().close()
            return
        if sys.exception() is not self._known_error and is_with_left_by_exception():
            self.abort()
            return
        try:
            self._run(self._inner.close())
        finally:
            super().close()

    def abort(self) -> None:
        """Give the upload up."""
        try:
            self._run(self._inner.abort())
        finally:
            super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Half a file never becomes available."""
        if error is None:
            self.close()
        else:
            self.abort()

    def give_up(self) -> None:
        """Give the upload up without waiting, for finalizers: more bytes are dropped. Again is harmless."""
        if not self.closed and not self._is_given_up:
            self._is_given_up = True
            self._abandon(self._inner.abort)

    def _dealloc_warn(self, _wrapper: object) -> None:
        """Called by the wrappers of `io` before they close it because they are collected."""
        self.give_up()

    def __del__(self) -> None:
        self.give_up()
        self.close()


def is_with_left_by_exception() -> bool:
    """Return whether any caller is in the exit of a `with` statement that is left by an exception.

    Only the interpreter's instruction shows that: the `__exit__` of `io`, in C, has no frame.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _WITH_EXCEPT_START:
            return True
        frame = frame.f_back
    return False


class OpeningFiles(Blocking[Files]):
    """Files that are opened."""

    @overload
    def open(self, file: str, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...

    @overload
    def open(
        self, file: str, mode: Literal["wb"], *, kind: Kind = "backup", **fields: object
    ) -> BlockingWriter: ...

    def open(
        self, file: str, mode: str = "rb", *, kind: Kind = "backup", **fields: object
    ) -> io.BufferedReader | BlockingWriter:
        """A file to read or to write; see `filestore_client.files.Files.open`."""
        if mode == "rb":
            reader = self.loop.run(self.inner.open(file))
            return io.BufferedReader(BlockingReader(reader, self.loop), BUFFER_BYTES)
        if mode != "wb":
            raise ValueError(f"mode {mode!r} is neither 'rb' nor 'wb'")
        return BlockingWriter(self.loop.run(self.inner.open(file, "wb", kind=kind, **fields)), self.loop)


# ---- written by `python -m release.client` from here on ----


class BlockingProjects(Blocking[KindFiles[Project]]):
    """The records of one kind of file."""

    list = listing(KindFiles[Project].list)
    get = blocking(KindFiles[Project].get)
    update = blocking(KindFiles[Project].update)
    delete = blocking(KindFiles[Project].delete)


class BlockingImages(Blocking[Images]):
    """The VM images."""

    list = listing(Images.list)
    get = blocking(Images.get)
    update = blocking(Images.update)
    delete = blocking(Images.delete)
    find = blocking(Images.find)


class BlockingBackups(Blocking[KindFiles[Backup]]):
    """The records of one kind of file."""

    list = listing(KindFiles[Backup].list)
    get = blocking(KindFiles[Backup].get)
    update = blocking(KindFiles[Backup].update)
    delete = blocking(KindFiles[Backup].delete)


class BlockingFiles(OpeningFiles):
    """Files of all kinds together."""

    upload = blocking(Files.upload)
    upload_remembered = blocking(Files.upload_remembered)
    is_begun = blocking(Files.is_begun)
    download = blocking(Files.download)
    read = listing(Files.read)
    list = listing(Files.list)
    named = listing(Files.named)
    find = blocking(Files.find)
    in_bucket = listing(Files.in_bucket)
    folders = listing(Files.folders)
    get = blocking(Files.get)
    update = blocking(Files.update)
    delete = blocking(Files.delete)
    stat = blocking(Files.stat)
    manifest = blocking(Files.manifest)
    ticket = blocking(Files.ticket)


class BlockingBuckets(Blocking[administration.Buckets]):
    """Buckets."""

    list = listing(administration.Buckets.list)
    create = blocking(administration.Buckets.create)
    get = blocking(administration.Buckets.get)
    find = blocking(administration.Buckets.find)
    update = blocking(administration.Buckets.update)
    uploads = listing(administration.Buckets.uploads)
    delete = blocking(administration.Buckets.delete)


class BlockingTrash(Blocking[administration.Trash]):
    """Deleted files that can be restored, and files that cannot be deleted."""

    list = listing(administration.Trash.list)
    restore = blocking(administration.Trash.restore)
    delete = blocking(administration.Trash.delete)
    protect = blocking(administration.Trash.protect)


class BlockingGrants(Blocking[administration.Grants]):
    """Permissions on buckets and files."""

    list = listing(administration.Grants.list)
    add = blocking(administration.Grants.add)
    withdraw = blocking(administration.Grants.withdraw)


class BlockingShares(Blocking[administration.Shares]):
    """Public links to files."""

    list = listing(administration.Shares.list)
    create = blocking(administration.Shares.create)
    revoke = blocking(administration.Shares.revoke)


class BlockingUsers(Blocking[administration.Users]):
    """Users and their tokens. Of others for admins only."""

    list = listing(administration.Users.list)
    whoami = blocking(administration.Users.whoami)
    get = blocking(administration.Users.get)
    put = blocking(administration.Users.put)
    delete = blocking(administration.Users.delete)
    revoke = blocking(administration.Users.revoke)
    mint_token = blocking(administration.Users.mint_token)
    renew_token = blocking(administration.Users.renew_token)
    rotate_key = blocking(administration.Users.rotate_key)


class BlockingJoinTokens(Blocking[administration.JoinTokens]):
    """Tokens with which machines join as nodes. Admins only."""

    list = listing(administration.JoinTokens.list)
    create = blocking(administration.JoinTokens.create)
    delete = blocking(administration.JoinTokens.delete)


class BlockingJobs(Blocking[administration.Jobs]):
    """Jobs and their runs."""

    list = listing(administration.Jobs.list)
    runs = listing(administration.Jobs.runs)
    run = blocking(administration.Jobs.run)
    trigger = blocking(administration.Jobs.trigger)
    cancel = blocking(administration.Jobs.cancel)
    wait = blocking(administration.Jobs.wait)


class BlockingSnapshots(Blocking[administration.Snapshots]):
    """Snapshots of the metadata. Admins only."""

    list = listing(administration.Snapshots.list)
    files = listing(administration.Snapshots.files)
    restore_file = blocking(administration.Snapshots.restore_file)


class BlockingNodes(Blocking[administration.Nodes]):
    """The nodes of the cluster. Admins only."""

    list = listing(administration.Nodes.list)
    get = blocking(administration.Nodes.get)
    drain = blocking(administration.Nodes.drain)
    stop_draining = blocking(administration.Nodes.stop_draining)
    remove = blocking(administration.Nodes.remove)
    revoke = blocking(administration.Nodes.revoke)


class BlockingCluster(Blocking[administration.Cluster]):
    """The cluster as a whole."""

    status = blocking(administration.Cluster.status)
    damaged = listing(administration.Cluster.damaged)
    add_coordinator = blocking(administration.Cluster.add_coordinator)
    remove_coordinator = blocking(administration.Cluster.remove_coordinator)


class BlockingAudit(Blocking[administration.Audit]):
    """The audit log: who did what. Admins only."""

    list = listing(administration.Audit.list)


class BlockingGroups(Blocking[people.Groups]):
    """Groups of users. Admins only."""

    list = listing(people.Groups.list)
    get = blocking(people.Groups.get)
    put = blocking(people.Groups.put)
    delete = blocking(people.Groups.delete)
    members = listing(people.Groups.members)
    add = blocking(people.Groups.add)
    remove = blocking(people.Groups.remove)
    grants = listing(people.Groups.grants)


class BlockingSessions(Blocking[people.Sessions]):
    """Sessions of a user: a first token, and those that were renewed from it. Of others for admins only."""

    list = listing(people.Sessions.list)
    end = blocking(people.Sessions.end)
    end_all = blocking(people.Sessions.end_all)


class BlockingInvitations(Blocking[people.Invitations]):
    """Links with which users get their first token. Admins only."""

    list = listing(people.Invitations.list)
    create = blocking(people.Invitations.create)
    revoke = blocking(people.Invitations.revoke)


class BlockingProviders(Blocking[sign_in.Providers]):
    """Identity providers. Admins only, but for their names and signing in, which need no token."""

    names = blocking(sign_in.Providers.names)
    get = blocking(sign_in.Providers.get)
    put = blocking(sign_in.Providers.put)
    delete = blocking(sign_in.Providers.delete)
    test = blocking(sign_in.Providers.test)
    start = blocking(sign_in.Providers.start)
    finish = blocking(sign_in.Providers.finish)
    renew = blocking(sign_in.Providers.renew)
    end = blocking(sign_in.Providers.end)


# ---- to here ----
class Client:
    """The client for code that does not await; see AsyncClient. Use `with`, or `close` it.

    A process that was forked may go on with it: it gets a thread and connections of its own.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        root_pem: str,
        token: str | os.PathLike[str] | Token,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._inner = inner = AsyncClient(urls, root_pem=root_pem, token=token, deadline_s=deadline_s)
        self._loop = LoopThread(inner.__aenter__, functools.partial(inner.__aexit__, None, None, None))
        self.files = BlockingFiles(inner.files, self._loop)
        self.projects = BlockingProjects(inner.projects, self._loop)
        self.images = BlockingImages(inner.images, self._loop)
        self.backups = BlockingBackups(inner.backups, self._loop)
        self.buckets = BlockingBuckets(inner.buckets, self._loop)
        self.trash = BlockingTrash(inner.trash, self._loop)
        self.snapshots = BlockingSnapshots(inner.snapshots, self._loop)
        self.grants = BlockingGrants(inner.grants, self._loop)
        self.shares = BlockingShares(inner.shares, self._loop)
        self.users = BlockingUsers(inner.users, self._loop)
        self.groups = BlockingGroups(inner.groups, self._loop)
        self.providers = BlockingProviders(inner.providers, self._loop)
        self.sessions = BlockingSessions(inner.sessions, self._loop)
        self.invitations = BlockingInvitations(inner.invitations, self._loop)
        self.join_tokens = BlockingJoinTokens(inner.join_tokens, self._loop)
        self.jobs = BlockingJobs(inner.jobs, self._loop)
        self.nodes = BlockingNodes(inner.nodes, self._loop)
        self.cluster = BlockingCluster(inner.cluster, self._loop)
        self.audit = BlockingAudit(inner.audit, self._loop)

    @classmethod
    def from_environment(cls, *, deadline_s: float = DEADLINE_S) -> Self:
        """The cluster that the `filestore` command would use here; see AsyncClient."""
        return cls(**connection_from_environment(), deadline_s=deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        path: str,
        reply_type: type[T],
        *,
        body: Mapping[str, object] | None = None,
        repeats: bool | None = None,
    ) -> T:
        """Any operation of the API: its JSON answer as `reply_type`. See AsyncClient."""
        return self._loop.run(self._inner.call(method, path, reply_type, body=body, repeats=repeats))

    def whoami(self) -> User:
        """Return the user of the token."""
        return self.users.whoami()

    def close(self) -> None:
        """End the connections and the thread; a call that another thread waits for raises RuntimeError."""
        self._loop.close()

"""Processes of the product without the half second of loading it, which is half of what starting one costs.

A server loads the product once, and forks for each process that is asked of it. What it makes is the command
as it is, with arguments, environment, streams, working directory and exit code of its own. What Python or
libraries read when they begin cannot be given to a fork: then, and where the command of another version is
meant, the process is started anew.
"""

import atexit
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

ROOT: Final = Path(__file__).parents[2]
MESSAGE_BYTES_MAX: Final = 1 << 17
DESCRIPTORS_MAX: Final = 1024
STARTED_S_MAX: Final = 60.0
PR_SET_PDEATHSIG: Final = 1
READ_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "OPENSSL_")
_STATUS: Final = struct.Struct("i")


class Forked(subprocess.Popen[bytes]):
    """`filestore ARGUMENTS` as a fork; the options are those of Popen, beside `process_group=0` and `cwd`."""

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str], **options: Any) -> None:
        self._status = -1
        super().__init__(list(arguments), env=dict(env), **options)

    def _execute_child(self, args: list[str], *popen: Any) -> None:
        _, _, _, _, _, env, _, _, _, stdin, to_stdin, from_stdout, stdout, from_stderr, stderr, *_, group = (
            popen
        )
        self._status, told = os.pipe2(os.O_CLOEXEC)
        streams = [end if end >= 0 else own for end, own in ((stdin, 0), (stdout, 1), (stderr, 2))]
        request = {"arguments": args, "env": env, "cwd": str(Path.cwd()), "group": group}
        try:
            self.pid = _server().start(json.dumps(request, ensure_ascii=True).encode(), [*streams, told])
        finally:
            os.close(told)
            for end, ours in ((stdin, to_stdin), (stdout, from_stdout), (stderr, from_stderr)):
                if end >= 0 and ours >= 0:  # a pipe made for this process
                    os.close(end)
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._ended_within(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._status >= 0:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if poll.poll(None if timeout_s is None else 1000 * max(timeout_s, 0)):
                told = os.read(self._status, _STATUS.size)
                os.close(self._status)
                self._status = -1
                status = _STATUS.unpack(told)[0] if told else int(signal.SIGKILL)
                self.returncode = os.waitstatus_to_exitcode(status)
        return cast("int | None", self.returncode)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a fork of a process that began with our environment is as good as one that begins with this."""
    if not hasattr(os, "pidfd_open"):
        return False
    names = {name for name in {*environment, *_BEGAN_WITH} if name.startswith(READ_AT_START)}
    return all(environment.get(name) == _BEGAN_WITH.get(name) for name in names)


class _Server:
    """The process that forks. It ends with the one that uses it, and all that it forked with it."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(STARTED_S_MAX)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.forks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_BEGAN_WITH | {"SSL_CERT_FILE": os.devnull},
                cwd=ROOT,
                process_group=0,
            )
        atexit.register(self.close)

    def start(self, request: bytes, descriptors: Sequence[int]) -> int:
        """The process id of the new one. Raises OSError."""
        with self._lock:
            socket.send_fds(self._connection, [request], descriptors)
            return int(self._connection.recv(MESSAGE_BYTES_MAX))

    def close(self) -> None:
        """It ends when it reads the end."""
        self._connection.close()
        self._process.wait()


_BEGAN_WITH = dict(os.environ)
_servers: list[_Server] = []


def _server() -> _Server:
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def _load() -> None:
    from deploy.cli import ENTRIES

    for entry in ENTRIES.values():
        importlib.import_module(entry.path)
    for name in ("coordinator.server", "node.server", "deploy.base.failures", "uvloop"):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, (
        "a fork has one thread: nothing may start others at import"
    )


def _serve(connection: socket.socket) -> None:
    """Fork for each request. Returns in a fork that has become what was asked for, and at the end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in running:
                pid, told = running.pop(descriptor)
                poll.unregister(descriptor)
                with suppress(BrokenPipeError):
                    os.write(told, _STATUS.pack(os.waitpid(pid, 0)[1]))
                os.close(told)
                os.close(descriptor)
                continue
            request, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, 4)
            if not request:
                os._exit(0)
            if not (pid := os.fork()):
                connection.detach()
                return _become(json.loads(request), descriptors)
            *streams, told = descriptors
            for stream in streams:
                os.close(stream)
            running[watched := os.pidfd_open(pid)] = (pid, told)
            poll.register(watched, select.POLLIN)
            connection.send(str(pid).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    for at, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, at)
    os.closerange(3, DESCRIPTORS_MAX)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["arguments"]
    for at, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode = "w" if at else "r"
        new = open(at, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    _load()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        _serve(asked)
    from deploy.entry import main

    main()

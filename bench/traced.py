"""A process of the product that notes when it passes the places of POINTS: what `bench.hops` reads.

    HOPS_DIRECTORY=DIRECTORY python -m bench.traced coordinator run --data ...

The product knows nothing of this: its functions are wrapped before it begins. A note is one number of
CLOCK_MONOTONIC, which all processes of a machine share, and a name; they are kept in memory, and written when
the process ends, as lines in a file that is named by its pid.
"""

import functools
import importlib
import inspect
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTES_MAX = 1 << 20  # of the newest: minutes of one client

_notes: deque[tuple[int, str]] = deque(maxlen=NOTES_MAX)
_clock_ns = time.monotonic_ns
Label = Callable[[tuple[Any, ...], Any], str]  # of arguments and result; "" for what is not worth a note


def _frames(arguments: tuple[Any, ...], result: Any) -> str:
    """What kind of frame came in, by the first of a parcel."""
    del arguments
    frame = result[0] if result else None
    message = getattr(frame, "message", None)
    kind = message.kind.name if message is not None else type(frame).__name__
    return "" if kind.startswith("HEARTBEAT") else f"{kind} decoded"


def _parcel(arguments: tuple[Any, ...], result: Any) -> str:
    """What kind of frame goes out: its tag follows the head of its array (see `metadata.rpc.wire`)."""
    del result
    return f"{('', 'call', 'answer', 'Raft message')[arguments[0][0][1]]} handed to TLS"


def _sent(arguments: tuple[Any, ...], result: Any) -> str:
    del result
    kinds = {message.kind.name: message for message in arguments[1]}
    if "APPEND" in kinds:
        return "appends made" if kinds["APPEND"].entries else ""
    return "acknowledgement made" if "APPEND_REPLY" in kinds else ""


def _stepped(arguments: tuple[Any, ...], result: Any) -> str:
    del result
    message = arguments[1]
    return f"{message.kind.name} taken by Raft" if message.kind.name.startswith("APPEND") else ""


def _turn(arguments: tuple[Any, ...], result: Any) -> str:
    del arguments
    if result is None:
        return ""
    parts = {"entries to write": result.entries, "entries to apply": result.committed}
    found = [name for name, each in parts.items() if each]
    return f"turn: {' and '.join(found)}" if found else ""


def _named(text: str) -> Label:
    return lambda *_: text


# Module, function, what is noted before it, what after it. Those of `os` come first: others keep them.
POINTS: tuple[tuple[str, str, Label | None, Label | None], ...] = (
    ("os", "fdatasync", _named("sync begins"), _named("sync done")),
    ("os", "fsync", _named("sync begins"), _named("sync done")),
    ("web.connection", "_Connection.data_received", _named("bytes out of TLS"), None),
    ("web.connection", "Connections._edge", _named("request parsed"), _named("answer made")),
    ("metadata.rpc.view", "View.verify", None, _named("token verified")),
    ("metadata.rpc.client", "MetadataClient.propose", _named("command made"), _named("answer decoded")),
    ("metadata.rpc.wire", "encode_parcel", _parcel, None),
    ("metadata.rpc.wire", "decode", None, _frames),
    ("coordinator.service", "Service.handle", _named("call decoded"), _named("reply decoded")),
    ("coordinator.member.driver", "Driver.propose", _named("permitted"), None),
    ("coordinator.member.member", "RaftMember.begin", None, _turn),
    ("coordinator.member.driver", "Driver.step", None, _stepped),
    ("coordinator.rpc.raft_transport", "Transport.send", None, _sent),
    ("coordinator.storage.raft_log", "SegmentLog.append", _named("append to the log begins"), None),
    ("coordinator.member.member", "RaftMember.finish", _named("turn ends"), None),
    ("coordinator.member.member", "RaftMember.apply", _named("apply begins"), _named("apply done")),
)


def _wrapped(function: Callable[..., Any], before: Label | None, after: Label | None) -> Callable[..., Any]:
    """The same function, with notes. One that raises leaves none behind it."""

    def note(label: Label | None, arguments: tuple[Any, ...], result: Any) -> None:
        if label is not None and (text := label(arguments, result)):
            _notes.append((_clock_ns(), text))

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def noted(*arguments: Any, **named: Any) -> Any:
            note(before, arguments, None)
            result = await function(*arguments, **named)
            note(after, arguments, result)
            return result
    else:

        @functools.wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            note(before, arguments, None)
            result = function(*arguments, **named)
            note(after, arguments, result)
            return result

    return noted


def wrap() -> None:
    """Put a note before and behind each of POINTS."""
    for module, path, before, after in POINTS:
        owner: Any = importlib.import_module(module)
        *names, last = path.split(".")
        for name in names:
            owner = getattr(owner, name)
        setattr(owner, last, _wrapped(getattr(owner, last), before, after))


def main() -> None:
    """Be the command `filestore`, with notes."""
    wrap()
    from deploy import entry  # now that `os` is wrapped

    try:
        entry.main()
    finally:
        lines = [f"{at_ns} {text}\n" for at_ns, text in _notes]
        Path(os.environ["HOPS_DIRECTORY"], f"{os.getpid()}.notes").write_text("".join(lines))


if __name__ == "__main__":
    main()

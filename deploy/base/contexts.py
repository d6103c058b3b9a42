"""Changes the clusters that this user has signed in to: `config.toml` in the folder for configuration.

Options and the environment win over what is here. `filestore_client/base/contexts.py` reads it.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ca.errors import InvalidRequest
from ca.secretfiles import make_directory
from deploy.base.own_files import write_own
from filestore_client.base.contexts import Context, config_directory, read_contexts

SIGN_IN: Final = ".sign-in"  # the file that renews a token, if it came from a provider
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def save_context(name: str, urls: list[str], *, root_pem: str, token: str) -> Context:
    """Make a context, or replace the one of this name, and make it the current one.

    Raises InvalidRequest for a name that cannot be one, OSError.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is no name of a context: letters, digits, '.', '_' and '-' are.")
    with changing_files() as directory:
        ca, token_file = directory / f"{name}.ca.pem", directory / f"{name}.token"
        write_own(ca, root_pem.encode("ascii"), mode=0o644)
        write_own(token_file, token.encode("ascii") + b"\n")
        context = Context(urls=urls, ca=str(ca), token_file=str(token_file))
        _write(directory, name, read_contexts().contexts | {name: context})
    return context


def use_context(name: str) -> None:
    """Make a context the current one. Raises NotFound, InvalidRequest, OSError."""
    with changing_files() as directory:
        known = read_contexts()
        known.find(name)
        _write(directory, name, known.contexts)


def forget_context(name: str) -> None:
    """Remove a context, its token and its root. Raises NotFound, InvalidRequest, OSError."""
    read_contexts().find(name)  # before a directory is made
    with changing_files() as directory:
        known = read_contexts()
        context = known.find(name)
        left = {other: each for other, each in known.contexts.items() if other != name}
        _write(directory, "" if known.current == name else known.current, left)
        for path in (
            Path(context.token_file),
            Path(context.token_file).with_suffix(SIGN_IN),
            Path(context.ca),
        ):
            if path.parent == directory:  # what lies elsewhere is not ours
                path.unlink(missing_ok=True)


@contextmanager
def changing_files() -> Iterator[Path]:
    """Hold the lock of the configuration folder, for who reads a file, changes it and writes it.

    Raises OSError, InvalidRequest.
    """
    make_directory(config_directory())
    descriptor = os.open(config_directory() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield config_directory()
    finally:
        os.close(descriptor)


def _write(directory: Path, current: str, contexts: dict[str, Context]) -> None:
    lines = [f"current = {quoted(current)}", ""] if current else []
    for name, context in sorted(contexts.items()):
        lines += [
            f"[contexts.{quoted(name)}]",
            f"urls = [{', '.join(map(quoted, context.urls))}]",
            f"ca = {quoted(context.ca)}",
            f"token_file = {quoted(context.token_file)}",
            "",
        ]
    write_own(directory / "config.toml", "\n".join(lines).encode("utf-8"))


def quoted(text: str) -> str:
    """A basic string of TOML, which is written as one of JSON."""
    return msgspec.json.encode(text).decode("utf-8").replace("\x7f", "\\u007f")

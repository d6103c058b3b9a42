"""Clusters that this user has signed in to: `config.toml` in the platform's folder for configuration.

    current = "lab"

    [contexts.lab]
    urls = ["https://files.lab.example:7443"]
    ca = ".../filestore/lab.ca.pem"          # the root certificate that was pinned
    token_file = ".../filestore/lab.token"   # mode 0600

Options and the environment win over what is here.
"""

import re
import tomllib
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from ca.errors import InvalidRequest, NotFound
from ca.secretfiles import make_directory, write_durable, write_secret

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Context(msgspec.Struct, frozen=True):
    """One cluster: its nodes, and the files that hold whom to trust and who asks."""

    urls: list[str]
    ca: str
    token_file: str


class Contexts(msgspec.Struct, frozen=True):
    """All of them by name; `current` is "" when none is."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Raises NotFound when there is none of this name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotFound(f"You are not signed in to {name!r}. The known clusters are: {known}.")
        return self.contexts[name]


def directory() -> Path:
    """Return the directory of this user's configuration."""
    return platformdirs.user_config_path("filestore", appauthor=False)


def read_contexts() -> Contexts:
    """Read the contexts; none if there is no file. Raises InvalidRequest for an invalid file."""
    path = directory() / "config.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"Cannot use {path}: {error}") from error


def write_contexts(contexts: Contexts) -> None:
    """Replace them, in one rename. Raises OSError."""
    make_directory(directory())
    lines = [f"current = {quoted(contexts.current)}", ""] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        lines += [
            f"[contexts.{quoted(name)}]",
            f"urls = [{', '.join(map(quoted, context.urls))}]",
            f"ca = {quoted(context.ca)}",
            f"token_file = {quoted(context.token_file)}",
            "",
        ]
    write_durable(directory() / "config.toml", "\n".join(lines).encode("utf-8"), mode=0o600)


def save_context(name: str, urls: list[str], *, root_pem: str, token: str) -> Context:
    """Make a context, or replace the one of this name, and make it the current one.

    Raises InvalidRequest for a name that cannot be one, OSError.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is not a valid name of a context. Use letters, digits, '.', '_' and '-'."
        )
    make_directory(directory())
    ca, token_file = directory() / f"{name}.ca.pem", directory() / f"{name}.token"
    write_durable(ca, root_pem.encode("ascii"))
    write_secret(token_file, token.encode("ascii") + b"\n")
    known = read_contexts()
    context = Context(urls=urls, ca=str(ca), token_file=str(token_file))
    write_contexts(Contexts(current=name, contexts={**known.contexts, name: context}))
    return context


def forget_context(name: str) -> None:
    """Remove a context, its token and its root. Raises NotFound, InvalidRequest, OSError."""
    known = read_contexts()
    context = known.find(name)
    left = {other: each for other, each in known.contexts.items() if other != name}
    write_contexts(Contexts(current="" if known.current == name else known.current, contexts=left))
    for path in (context.token_file, context.ca):
        if Path(path).parent == directory():  # what lies elsewhere is not ours
            Path(path).unlink(missing_ok=True)


def quoted(text: str) -> str:
    """A basic string of TOML, which is written as one of JSON."""
    return msgspec.json.encode(text).decode("utf-8").replace("\x7f", "\\u007f")

"""One operation of the HTTP interface, described once.

Its route and its part of the OpenAPI document are both made from this. Each resource module has its own in
`OPERATIONS`, said above their handlers; `api.routes` mounts them, and `api.spec.openapi` describes them.
`api.bodies.fields` says how fields are described.

Tested by tests/api/test_openapi.py.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from ca.errors import (
    FilestoreError,
    Forbidden,
    InsufficientStorage,
    Internal,
    InvalidRequest,
    NotAcceptable,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    UriTooLong,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
H = TypeVar("H", bound=Handler)
Credential = Literal["user", "join token", "none"]
NOT_STORED: Final[Mapping[str, str]] = {"Cache-Control": "`no-store`."}  # headers of answers with a secret

_OF_EVERY = (InvalidRequest, Internal, Unavailable)
_OF_USERS = (Unauthorized, Forbidden, RateLimited)
_OF_BODIES = (InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query or a header. `type` is what msgspec makes a JSON Schema of."""

    name: str
    description: str
    _: KW_ONLY
    type: Any = str
    is_required: bool = False


def parameters_of(struct: type[Struct]) -> tuple[Parameter, ...]:
    """A parameter for each field of a Struct, with the description of its type."""
    return tuple(
        Parameter(each.encode_name, msgspec.json.schema(each.type)["description"], type=each.type)
        for each in msgspec.structs.fields(struct)
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: `body` in JSON, or content of `media_type`, or nothing.

    `headers` maps names to descriptions, in addition to the headers of every response.
    """

    description: str
    body: Any = None
    _: KW_ONLY
    body_else: Any = None  # what it may be instead, as the caller prefers
    media_type: str = ""
    media_type_else: str = ""  # what it may be instead, as the caller accepts
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: its route, and its part of the OpenAPI document.

    `name` is the operationId, `tag` its resource. Without a `description`, the handler's docstring is the
    description: it is written for clients, and published unchanged. `errors` are those in addition to the
    ones that follow from the other fields, see `all_errors`. `is_json`: whether the response is JSON, so that
    clients who do not accept JSON are rejected. `takes` is the media type of a body other than JSON, in
    addition to `body` if there is one. `changes`: whether it proposes a change, which a coordinator without
    free space rejects.
    """

    name: str
    tag: str
    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, Answer]
    body: type[Struct] | None = None
    is_body_required: bool = True
    takes: str = ""
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    credential: Credential = "user"
    errors: tuple[type[FilestoreError], ...] = ()
    is_json: bool = True
    changes: bool = False
    description: str = ""

    @property
    def all_errors(self) -> tuple[type[FilestoreError], ...]:
        """Every error that it may answer with, each once."""
        found: list[type[FilestoreError]] = [*_OF_EVERY]
        if self.credential == "user":
            found += _OF_USERS
        if self.credential == "join token":
            found += (Unauthorized, RateLimited)
        if self.body is not None or self.takes:
            found += _OF_BODIES
        if self.is_json:
            found.append(NotAcceptable)
        if "{" in self.path:
            found.append(NotFound)
        if "{" in self.path or self.query:
            found.append(UriTooLong)  # for a value without end
        if self.changes:
            found.append(InsufficientStorage)
        return tuple(dict.fromkeys([*found, *self.errors]))


class OperationTable(list[Operation]):
    """The operations of a resource, each said above its handler."""

    def __init__(self, tag: str, operations: Iterable[Operation] = ()) -> None:
        super().__init__(operations)
        self._tag = tag

    def add(
        self,
        route: str,
        name: str,
        summary: str,
        answer: Answer,
        *,
        status: int = 200,
        others: Mapping[int, Answer] | None = None,
        **rest: Any,
    ) -> Callable[[H], H]:
        """Add the operation of the handler below.

        `route`: `METHOD path`; `others`: responses in addition to `answer`; `rest`: further fields of
        Operation.
        """
        method, path = route.split(" ")
        answers = {status: answer, **(others or {})}
        said = {"name": name, "tag": self._tag, "summary": summary, "answers": answers, **rest}

        def with_handler(handler: H) -> H:
            self.append(Operation(method=method, path=path, handler=handler, **said))
            return handler

        return with_handler

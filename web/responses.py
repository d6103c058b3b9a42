"""The HTTP responses: JSON, errors as `{code, error, details}`, and the headers of every response.

Tested by tests/unit/web/test_request_body.py.
"""

import logging
import re
from collections.abc import Mapping
from email.utils import formatdate
from typing import Final

import msgspec
import uuid_utils
from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong

from ca import errors
from ca.errors import FilestoreError, InvalidRequest
from runtime.lifetime import out_of_descriptors
from runtime.logs import LastingTroubles, shown_path
from web.web_access import WebAccess

HEADERS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 8192  # of each field
TARGET_BYTES_MAX: Final = HEADER_BYTES_MAX - 1  # another number: by it the parser says what was too long
DETAILS_CHARS_MAX: Final = 500
PREPARED: Final = web.RequestKey("prepared", bool)  # the head of an answer has gone out
_REQUEST_ID: Final = web.RequestKey("request_id", str)
# In the words of the parser: a request line that is well-formed but for the method.
_UNKNOWN_METHOD: Final = re.compile(
    r"\n  b[\"'][A-Za-z0-9!#$%&'*+.^_`|~-]{1,64} [!-~]{1,9000} HTTP/1\.[01][\"']\n"
)
_SANE_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_log = logging.getLogger("filestore.http")
_TROUBLES = LastingTroubles(_log)


class ClientGone(ConnectionError):
    """The client went away in the middle of its request. The shell ends the connection without a word."""


def request_id(request: web.BaseRequest) -> str:
    """The caller's `X-Request-Id` if it is sane (1..128 of A-Z, a-z, 0-9, '.', '_', '-'), else a new UUID."""
    if _REQUEST_ID not in request:
        sent = request.headers.get("X-Request-Id", "")
        request[_REQUEST_ID] = sent if _SANE_REQUEST_ID.fullmatch(sent) else str(uuid_utils.uuid7())
    return request[_REQUEST_ID]


def json_response(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """`value` (a msgspec Struct, a dict, a list, text) as JSON, not to be kept unless `headers` say so."""
    body = msgspec.json.encode(value)
    all_headers = {"Cache-Control": "no-store"} | dict(headers or {})
    return web.Response(body=body, status=status, headers=all_headers, content_type="application/json")


def error_response(error: FilestoreError, request: web.BaseRequest) -> web.Response:
    """The JSON body `{code, error, details}` with the error's status and headers."""
    headers = headers_of_every_answer(request) | error.headers
    if isinstance(error, errors.Unauthorized):
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"  # RFC 9110, section 11.6.1
    response = json_response(error_body(error, request_id(request)), status=error.status, headers=headers)
    response.set_status(error.status, error.title)  # 460 has no reason phrase of its own
    return response


def bare_response(error: FilestoreError) -> bytes:
    """All of an answer, its head too, where there is no request: the connection ends with it."""
    new_id = str(uuid_utils.uuid7())
    body = msgspec.json.encode(error_body(error, new_id))
    head = (
        f"HTTP/1.1 {error.status} {error.title}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nServer: Filestore\r\n"
        f"Date: {formatdate(usegmt=True)}\r\nX-Content-Type-Options: nosniff\r\n"
        f"X-Request-Id: {new_id}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def error_body(error: FilestoreError, id_of_request: str) -> dict[str, str]:
    """`{code, error, details}`; a fault of ours shows the request id and nothing else."""
    details = error.details
    if isinstance(error, errors.Internal) and not error.lasts:  # which has no line for each request
        details = f"Internal error. The service's log has the details under request id {id_of_request}."
    details = _SURROGATE.sub("�", details)[:DETAILS_CHARS_MAX]
    return {"code": error.code, "error": error.title, "details": details}


def error_of(request: web.Request, problem: Exception) -> FilestoreError:
    """The error that the client is answered with. Raises ClientGone when the client has gone away."""
    if isinstance(problem, ClientGone) or request.transport is None:
        raise ClientGone("the client disconnected") from problem
    if isinstance(problem, FilestoreError):
        error = problem
    elif isinstance(problem, web.HTTPException):
        error = _from_http_exception(request, problem)
    elif isinstance(problem, OSError) and (exhausted := out_of_descriptors(problem)) is not None:
        error = exhausted
    else:
        _log.error("request failed", exc_info=problem, extra={"request_id": request_id(request)})
        error = errors.Internal("unexpected")
    if request.get(PREPARED) or error.status >= 500:
        if error.lasts:
            _TROUBLES.note("requests are not served", error.details, request_id=request_id(request))
        else:
            facts = {"request_id": request_id(request), "code": error.code, "details": error.details}
            _log.warning("request not served", extra=facts)
    return error


def _from_http_exception(request: web.Request, exception: web.HTTPException) -> FilestoreError:
    """An exception of aiohttp's own as an error of ours."""
    if isinstance(exception, web.HTTPNotFound):
        return errors.NotFound(f"No such endpoint: {shown_path(request.path, None)}")
    if isinstance(exception, web.HTTPMethodNotAllowed):
        allow = ", ".join(sorted(exception.allowed_methods | {hdrs.METH_OPTIONS}))
        return errors.MethodNotAllowed(f"This endpoint supports only {allow}.", headers={hdrs.ALLOW: allow})
    if exception.status < 500:
        return InvalidRequest(f"The request cannot be processed: {exception.reason}")
    return errors.Internal(exception.reason)


def from_malformed(problem: HttpProcessingError) -> FilestoreError:
    """The error for what the parser refused.

    The parser's own words repeat what the client sent, so they are not used.
    """
    if isinstance(problem, LineTooLong) and problem.args[1] == TARGET_BYTES_MAX:
        return errors.UriTooLong(f"The request target may have at most {TARGET_BYTES_MAX} bytes.")
    if isinstance(problem, BadHttpMethod) and _UNKNOWN_METHOD.search(problem.message):
        return errors.NotImplementedHere("The method is not supported.")
    if isinstance(problem, LineTooLong) or problem.message.startswith("Too many headers"):
        return InvalidRequest(
            f"A request may have at most {HEADERS_MAX} headers, of at most {HEADER_BYTES_MAX} bytes each."
        )
    return InvalidRequest("The request is not valid HTTP/1.1.")


def headers_of_every_answer(request: web.BaseRequest) -> dict[str, str]:
    """The headers that every answer has, with those for a page of another origin that asks."""
    product = "Filestore"  # without a version
    always = {hdrs.SERVER: product, "X-Request-Id": request_id(request), "X-Content-Type-Options": "nosniff"}
    access = getattr(request.protocol, "web", None)  # of a connection of ours
    if not isinstance(access, WebAccess):
        return always
    return always | access.cors.headers(request.method, request.headers)

"""Authenticate callers, count and audit failed credentials, and audit administrative actions.

The edge verifies the token and passes on a Caller. The state machine decides what the caller may do, in the
same step as the command or query itself.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import hdrs, web

from api.context import API
from api.spec.operation import Handler
from ca.errors import FilestoreError, RateLimited, Unauthorized, Unavailable
from metadata.model.records import Caller
from web.app import request_id
from web.rate_limits import TokenBuckets
from web.web_access import client_address

PRINCIPAL_UNKNOWN = "-"
_CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)


async def authenticate(request: web.Request, *, at_any_age: bool = False) -> Caller:
    """The caller that the request's one `Authorization: Bearer` header names.

    `at_any_age`: see `View.verify`. Raises Unauthorized (RateLimited after too many from one address), or
    Unavailable when this member's view of the cluster is too old to decide. A token anywhere else, in the
    query for one, counts as none.
    """
    try:
        token = bearer(request)
        claims = request.app[API].view.verify(token, at_any_age=at_any_age)
    except Unauthorized as error:
        raise _failed(request, error, PRINCIPAL_UNKNOWN) from error
    caller = Caller(claims.subject, claims.generation, token, claims.session_id)
    request[_CALLER] = caller
    return caller


def bearer(request: web.Request) -> str:
    """Return the bearer token of the one Authorization header. Raises Unauthorized."""
    headers = request.headers.getall(hdrs.AUTHORIZATION, [])
    if len(headers) != 1:
        raise Unauthorized(f"{len(headers)} Authorization headers")
    scheme, _, spaced = headers[0].partition(" ")
    credential = spaced.lstrip(" ")  # RFC 9110, section 11.4: as many as there are
    if scheme.lower() != "bearer" or not credential:  # RFC 9110, section 11.1: case does not matter
        raise Unauthorized("no bearer credential")
    return credential


def watched(handler: Handler) -> Handler:
    """`handler`, with the state machine's refusals (a dead generation, a disabled user) on record."""

    async def watching(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Unauthorized as error:
            caller = request.get(_CALLER)
            if caller is None:
                raise  # on record already
            raise _failed(request, error, caller.subject) from error

    return watching


@asynccontextmanager
async def audited(request: web.Request, action: str, *, principal: str, target: str) -> AsyncIterator[None]:
    """An administrative act: refused when it could not be recorded, recorded however it ends.

    Raises Unavailable when the audit log cannot be written: before the act or, if it broke since, after it.
    """
    audit = request.app[API].audit
    audit.check_writable()
    outcome = "internal"
    try:
        yield
        outcome = "ok"
    except FilestoreError as error:
        outcome = error.code
        raise
    finally:
        audit.record(
            action,
            principal=principal,
            object=target,
            outcome=outcome,
            request_id=request_id(request),
            client_address=client_address(request),
        )


def check_join_rate(request: web.Request) -> None:
    """Count an attempt to join. Raises RateLimited."""
    request.app[API].rates.joins.take(client_address(request))


def refuse_join(request: web.Request, error: Unauthorized) -> FilestoreError:
    """A bad join token, on record: the error to answer with."""
    return _failed(request, error, PRINCIPAL_UNKNOWN)


def record_failed_attempt(
    request: web.Request,
    error: FilestoreError,
    attempts: TokenBuckets,
    *,
    action: str,
    principal: str,
    target: str,
) -> FilestoreError:
    """Count and audit a failed attempt: the error to answer with.

    Beyond the rate of `attempts` from its address that is RateLimited, and the log grows no more.
    """
    wait_s = attempts.try_take(client_address(request))
    if wait_s > 0:
        return RateLimited("Too many failed attempts from this address.", retry_after_s=int(wait_s) + 1)
    try:
        request.app[API].audit.failed.record(
            action,
            principal=principal,
            object=target,
            outcome=error.code,
            request_id=request_id(request),
            client_address=client_address(request),
        )
    except Unavailable:
        return error  # a refusal needs no trace to be right
    return error


def _failed(request: web.Request, error: Unauthorized, principal: str) -> FilestoreError:
    """Record a failed authentication; the error to answer with.

    Without any credential the answer stays 401 beyond the rate too: the caller had nothing to guess with.
    """
    answer = record_failed_attempt(
        request,
        error,
        request.app[API].rates.failed_authentication,
        action="authenticate",
        principal=principal,
        target=f"{request.method} {_route_of(request)}",
    )
    if hdrs.AUTHORIZATION not in request.headers:
        return error
    # Beyond the rate as well: who waits and asks again needs another credential all the same.
    answer.headers.setdefault(hdrs.WWW_AUTHENTICATE, "Bearer")
    return answer


def _route_of(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else ""

"""`Client` has whatever `AsyncClient` has, for callers that do not await."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, get_origin, get_type_hints

import pytest

from ca.certificates import Authority
from filestore_client import AsyncClient, Client
from filestore_client.base.errors import InvalidRequest
from filestore_client.blocking import Blocking

URL = "https://127.0.0.1:1"
NOT_TWICE = {"from_environment"}  # makes a client, so each has its own


@pytest.fixture
def pair(peer_authority: Authority) -> Iterator[tuple[AsyncClient, Client]]:
    root_pem = peer_authority.root_pem
    with Client(URL, root_pem=root_pem, token="t") as client:
        yield AsyncClient(URL, root_pem=root_pem, token="t"), client


def public(thing: object) -> dict[str, Callable[..., Any]]:
    """Its public methods, by name."""
    return {
        name: method
        for name, method in inspect.getmembers(type(thing), inspect.isfunction)
        if not name.startswith("_") and name not in NOT_TWICE
    }


def resources(client: AsyncClient | Client) -> dict[str, object]:
    """The groups of operations of a client, by name."""
    return {
        name: thing
        for name, thing in vars(client).items()
        if not name.startswith("_") and name != "transport"
    }


def is_awaited(method: Callable[..., Any]) -> bool:
    """Whether a caller awaits what it answers, or iterates over it with `async for`."""
    hint = get_type_hints(method).get("return")
    return inspect.iscoroutinefunction(method) or get_origin(hint) is AsyncIterator


def test_every_group_of_operations_has_a_twin(pair: tuple[AsyncClient, Client]) -> None:
    asynchronous, blocking = pair
    assert set(resources(asynchronous)) == set(resources(blocking))
    assert len(resources(blocking)) > 10
    assert all(isinstance(twin, Blocking) for twin in resources(blocking).values())


def test_every_operation_has_a_twin_that_takes_the_same(pair: tuple[AsyncClient, Client]) -> None:
    asynchronous, blocking = pair
    twins = resources(blocking)
    things: list[tuple[str, object, object]] = [("client", asynchronous, blocking)]
    things += [(name, thing, twins[name]) for name, thing in resources(asynchronous).items()]
    count = 0
    for name, thing, twin in things:
        operations, found = public(thing), public(twin)
        assert set(operations) == set(found) - ({"close"} if twin is blocking else set()), name
        for operation, method in operations.items():
            assert is_awaited(method), f"{name}.{operation}"
            assert not inspect.iscoroutinefunction(found[operation]), f"{name}.{operation}"
            assert parameters(method) == parameters(found[operation]), f"{name}.{operation}"
            assert found[operation].__doc__, f"{name}.{operation}"
            count += 1
    assert count > 50


def parameters(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    named = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in named if each.name != "self"]


def test_twins_that_iterate_say_so(pair: tuple[AsyncClient, Client]) -> None:
    _, blocking = pair
    for name, twin in resources(blocking).items():
        for operation, method in public(twin).items():
            hint = get_type_hints(method)["return"]
            assert get_origin(hint) is not AsyncIterator, f"{name}.{operation}"
    assert get_origin(get_type_hints(type(blocking.files).list)["return"]) is Iterator


def test_client_of_the_environment_needs_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FILESTORE_URL", "FILESTORE_CA", "FILESTORE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for kind in (AsyncClient, Client):
        with pytest.raises(InvalidRequest, match="FILESTORE_URL, FILESTORE_CA, FILESTORE_TOKEN_FILE"):
            kind.from_environment()


@pytest.mark.parametrize("kind", [AsyncClient, Client])
@pytest.mark.parametrize(
    "wrong",
    [
        {"urls": []},
        {"urls": "http://192.0.2.1"},
        {"token": "two\nlines"},
        {"root_pem": ""},
        {"root_pem": "x"},
    ],
)
def test_what_cannot_be_a_connection_is_refused_when_it_is_made(
    kind: type[AsyncClient] | type[Client], wrong: dict[str, Any], peer_authority: Authority
) -> None:
    with pytest.raises(InvalidRequest):
        kind(**{"urls": URL, "root_pem": peer_authority.root_pem, "token": "t"} | wrong)

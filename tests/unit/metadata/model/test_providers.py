"""Providers: which configuration is one, and what becomes of the claims that they tell."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest
from ca.names import check_names, check_user_id
from metadata.model.providers import (
    Provider,
    candidate_names,
    check_provider,
    check_provider_url,
    groups_in,
    identity_in,
    user_name,
)

UNI = Provider(
    name="uni",
    label="University",
    issuer="https://login.uni.example/realms/lab",
    client_id="filestore",
    allowed_groups=["netlab"],
    admin_groups=["staff"],
)


def changed(**fields: Any) -> Provider:
    return msgspec.structs.replace(UNI, **fields)


def test_sound_configuration_is_accepted() -> None:
    check_provider(UNI, is_development=False)
    local = changed(issuer="http://127.0.0.1:8080")
    check_provider(local, is_development=True)
    assert local.client(is_command=True) == local.client(is_command=False) == "filestore"
    assert changed(command_client_id="c").client(is_command=True) == "c"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "Uni"}, "name"),
        ({"name": "local"}, "name"),
        ({"name": "a" * 33}, "name"),
        ({"name": "a:b"}, "name"),
        ({"issuer": "http://login.uni.example"}, "issuer"),
        ({"issuer": "http://127.0.0.1:8080"}, "issuer"),
        ({"issuer": ""}, "issuer"),
        ({"issuer": "https://"}, "issuer"),
        ({"issuer": "https://user@login.uni.example"}, "issuer"),
        ({"issuer": "https://login.uni.example/#x"}, "issuer"),
        ({"issuer": "https://login.uni.example/\r\nX: y"}, "issuer"),
        ({"issuer": "https://login.uni.example:99999"}, "issuer"),
        ({"issuer": "https://[::1"}, "issuer"),
        ({"issuer": "https://löwe.example"}, "issuer"),
        ({"issuer": "file:///etc/passwd"}, "issuer"),
        ({"client_id": ""}, "client_id"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["profile"]}, "scopes"),
        ({"scopes": ["openid", 'a"b']}, "scopes"),
        ({"scopes": ["openid", "a b"]}, "scopes"),
        ({"name_claim": ""}, "name_claim"),
        ({"groups_claim": ""}, "groups_claim"),
        ({"allowed_groups": []}, "allowed_groups"),
        ({"admin_groups": ["*"]}, "admin_groups"),
    ],
)
def test_unusable_configuration_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_provider(changed(**fields), is_development=False)
    assert raised.value.details.startswith(f"{named}: ")


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/", "http://localhost.evil.example", "http://127.0.0.1@evil.example", "ftp://127.0.0.1"],
)
def test_development_allows_http_on_loopback_alone(url: str) -> None:
    with pytest.raises(InvalidRequest):
        check_provider_url(url, "url", is_development=True)


@pytest.mark.parametrize(
    ("value", "groups"),
    [
        (["b", "a", "a"], ["a", "b"]),
        ("example.org", ["example.org"]),  # `hd` of Google
        (["/netlab", "/deep/er", "/"], ["/", "/deep/er", "netlab"]),
        ([1, None, ["x"], "", {"y": 1}], []),
        (None, []),
        ({"a": 1}, []),
    ],
)
def test_groups_are_texts_of_the_claim(value: Any, groups: list[str]) -> None:
    assert groups_in(UNI, {"groups": value}) == groups
    assert groups_in(changed(groups_claim="roles"), {"groups": value}) == []


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "alice"}, "uni:alice"),
        ({"preferred_username": "Zoë Müller"}, "uni:Zoe-Muller"),
        ({"preferred_username": "../../admin"}, "uni:admin"),
        ({"preferred_username": "a:b"}, "uni:a-b"),
        ({"preferred_username": "   ", "email": "bob@uni.example"}, "uni:bob@uni.example"),
        ({"preferred_username": ["x"]}, "uni:5c1d8c0a"),
        ({"preferred_username": "李"}, "uni:5c1d8c0a"),
    ],
)
def test_name_of_a_person_is_a_user_id_of_the_provider(claims: dict[str, Any], name: str) -> None:
    found = user_name(UNI, {"sub": "7f3a", **claims})
    if name.endswith("5c1d8c0a"):
        assert len(found) == len("uni:") + 16
        assert found != user_name(UNI, {"sub": "another", **claims})
    else:
        assert found == name


@given(st.text(), st.lists(st.text()))
def test_whatever_a_provider_tells_becomes_valid_names(name: str, groups: list[str]) -> None:
    try:
        identity = identity_in(UNI, {"sub": "7f3a", "preferred_username": name, "groups": groups})
    except InvalidRequest:
        return
    for user_id in candidate_names(identity.name):
        check_user_id(user_id)
    check_names(identity.groups, "groups")
    assert identity.name.startswith("uni:")


def test_groups_decide_who_signs_in_who_is_admin_and_what_is_taken() -> None:
    claims = {"sub": "7f3a", "preferred_username": "a", "groups": ["netlab", "staff", "chess", "with space"]}
    identity = identity_in(UNI, claims)
    assert (identity.is_allowed, identity.is_admin) == (True, True)
    assert identity.groups == ["chess", "netlab", "staff"]
    assert identity_in(changed(taken_groups=["net*"]), claims).groups == ["netlab"]
    assert not identity_in(changed(allowed_groups=["other"]), claims).is_allowed
    assert identity_in(changed(allowed_groups=["with space"]), claims).is_allowed
    assert identity_in(changed(allowed_groups=["*"]), {"sub": "7f3a"}).is_allowed


def test_more_groups_than_a_token_has_room_for_are_an_error() -> None:
    claims = {"sub": "7f3a", "groups": [f"group-{number}" for number in range(65)]}
    with pytest.raises(InvalidRequest, match="taken_groups"):
        identity_in(UNI, claims)
    assert len(identity_in(changed(taken_groups=["group-1*"]), claims).groups) == 11

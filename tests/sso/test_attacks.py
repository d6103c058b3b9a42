"""Attacks on signing in, at a cluster with a real provider beside one that lies: what answers each."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cluster.harness import Answer, Cluster
from tests.hostile_provider import CODE, HostileProvider, new_key
from tests.hostile_provider import SECRET as HOSTILE_SECRET
from tests.sso.conftest import redirects, setting, wait_for
from tests.sso.person import Person
from tests.sso.real_provider import SECRET, RealProvider

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@dataclass
class SignIn:
    """A sign-in of the console that has begun, and what the provider answered to it."""

    cluster: Cluster
    name: str
    started: dict[str, Any]
    answer: dict[str, str]

    def finish(self, **changes: str) -> Answer:
        body = {
            "attempt": self.started["attempt"],
            "state": self.started["state"],
            "code": self.answer.get("code", ""),
            "issuer": self.answer.get("iss", ""),
        } | changes
        return self.cluster.post(f"/auth/providers/{self.name}/token", body, token=None, stranger=True)


def start(cluster: Cluster, name: str = "uni") -> dict[str, Any]:
    body = {"flow": "console", "origin": cluster.nodes[0].url}
    answer = cluster.post(f"/auth/providers/{name}/sign-in", body, token=None)
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def signing_in(cluster: Cluster, name: str = "uni", person: str = "alice") -> SignIn:
    """Up to what the provider has sent back with the browser."""
    started = start(cluster, name)
    async with Person(person) as visitor:
        back = await visitor.visit(started["authorization_url"], until=cluster.nodes[0].url)
    return SignIn(cluster, name, started, answer_in(back))


def answer_in(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


@pytest.fixture(scope="module")
def twin(
    cluster: Cluster, provider: RealProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealProvider]:
    """Another real provider, which the cluster knows as twin."""
    directory = tmp_path_factory.mktemp("twin")
    with RealProvider(directory, redirects=redirects(cluster, "twin"), names=["twin"]) as started:
        done = cluster.filestore(*setting(started, "twin"), stdin=SECRET.encode())
        assert done.returncode == 0, done.stderr
        yield started
        assert cluster.filestore("sso", "rm", "twin").returncode == 0
        wait_for(cluster, "uni")


@pytest.fixture
async def liar(cluster: Cluster, provider: RealProvider) -> AsyncIterator[HostileProvider]:
    """A provider that lies, which the cluster knows as liar."""
    async with HostileProvider() as started:
        body = {
            "issuer": started.issuer,
            "client_id": "filestore",
            "client_secret": HOSTILE_SECRET,
            "allowed_groups": ["netlab"],
        }
        answer = cluster.request("PUT", "/auth/providers/liar", body=body)
        assert answer.status == 200, answer.body
        cluster.remember(HOSTILE_SECRET)
        yield started
        assert cluster.request("DELETE", "/auth/providers/liar").status == 200


async def lied(cluster: Cluster, liar: HostileProvider) -> Answer:
    """Sign in with what the liar tells. It answers in this loop, so requests are made in threads."""
    started = await asyncio.to_thread(start, cluster, "liar")
    liar.note(started["authorization_url"])
    sign_in = SignIn(cluster, "liar", started, {"code": CODE, "iss": liar.issuer})
    return await asyncio.to_thread(sign_in.finish)


async def test_person_signs_in_as_a_user_of_the_provider(cluster: Cluster, provider: RealProvider) -> None:
    answer = (await signing_in(cluster)).finish()
    assert answer.status == 200, answer.body
    assert (answer.json["user_id"], answer.json["groups"]) == ("uni:alice", ["netlab"])
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"nonce": "another"}, "its nonce differs"),
        ({"exp": 1_000_000}, "expired"),
        ({"iat": 4_000_000_000, "exp": 4_000_000_600}, "not valid yet"),
        ({"iss": "https://evil.example"}, "from another issuer"),
        ({"aud": "another"}, "for another audience"),
        ({"aud": ["another", "filestore"], "azp": "another"}, "for another authorized party"),
    ],
)
async def test_token_that_lies_is_rejected(
    cluster: Cluster, liar: HostileProvider, claims: dict[str, Any], why: str
) -> None:
    liar.claims = claims
    answer = await lied(cluster, liar)
    assert (answer.status, why in answer.json["details"]) == (403, True), answer.body


async def test_token_of_a_key_of_its_own_is_rejected_and_a_replaced_key_is_fetched(
    cluster: Cluster, liar: HostileProvider
) -> None:
    assert (await lied(cluster, liar)).status == 200
    liar.key = new_key()
    assert (await lied(cluster, liar)).status == 403
    liar.kid, liar.published = "k2", {"k2": liar.key}
    assert (await lied(cluster, liar)).status == 200


async def test_keys_that_a_real_provider_replaced_are_fetched(
    cluster: Cluster, provider: RealProvider
) -> None:
    assert (await signing_in(cluster)).finish().status == 200
    provider.replace_keys()
    provider.stop()
    provider.start()
    assert (await signing_in(cluster)).finish().status == 200


async def test_replayed_code_gives_no_second_token(cluster: Cluster, provider: RealProvider) -> None:
    sign_in = await signing_in(cluster)
    assert sign_in.finish().status == 200
    again = sign_in.finish()
    assert (again.status, "token" in again.json) == (403, False)


async def test_code_of_another_sign_in_is_rejected(cluster: Cluster, provider: RealProvider) -> None:
    """What an attacker does with a stolen code, or who makes somebody finish the sign-in of the attacker."""
    victim, attacker = await signing_in(cluster), await signing_in(cluster, person="bob")
    assert attacker.finish(code=victim.answer["code"]).status == 403  # PKCE
    assert victim.finish(state=attacker.started["state"]).status == 403
    assert victim.finish(state="").status == 403


async def test_mixed_up_providers_get_no_code_of_each_other(
    cluster: Cluster, provider: RealProvider, twin: RealProvider
) -> None:
    sign_in = await signing_in(cluster, "uni")
    issued = len(twin.issued()) if (twin._issued.exists()) else 0
    other = SignIn(cluster, "twin", start(cluster, "twin"), sign_in.answer)
    assert other.finish().status == 403  # the answer names uni
    assert other.finish(issuer="").status == 403  # twin names itself always
    assert other.finish(issuer=twin.issuer).status == 403  # twin has not given this code
    crossed = SignIn(cluster, "twin", sign_in.started, sign_in.answer)
    assert crossed.finish().status == 403  # an attempt of another provider
    assert (len(twin.issued()) if twin._issued.exists() else 0) == issued
    assert (await signing_in(cluster, "twin")).finish().json["user_id"] == "twin:alice"  # nobody of uni


async def test_code_of_another_client_is_rejected(cluster: Cluster, provider: RealProvider) -> None:
    started = start(cluster)
    url = started["authorization_url"].replace("client_id=filestore&", "client_id=another&")
    async with Person("alice") as visitor:
        back = await visitor.visit(url, until=cluster.nodes[0].url)
    assert SignIn(cluster, "uni", started, answer_in(back)).finish().status == 403


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "//evil.example",
        "javascript:alert(1)",
        "",
    ],
)
def test_cluster_leads_back_to_its_own_addresses_alone(
    cluster: Cluster, provider: RealProvider, origin: str
) -> None:
    body = {"flow": "console", "origin": origin}
    answer = cluster.post("/auth/providers/uni/sign-in", body, token=None)
    assert (answer.status, answer.json["details"].startswith("origin: ")) == (400, True)


@pytest.mark.parametrize(
    "query",
    [
        "code=a&state=b&iss=c",
        "code=a%0d%0aLocation:%20https://evil.example&state=b",
        "next=https://evil.example&url=//evil.example",
        "code=%23/buckets&state=%3Cscript%3E",
        "",
    ],
)
def test_way_back_stays_on_the_console(cluster: Cluster, provider: RealProvider, query: str) -> None:
    answer = cluster.get(f"{cluster.nodes[0].url}/console/sign-in/uni?{query}", token=None)
    assert answer.status == 302
    location = answer.headers["location"]
    assert location.startswith("/console/#/signed-in/uni?")
    assert "evil.example" not in location or "Location%3A" in location
    assert not any(character in location for character in "\r\n<> ")
    assert cluster.get(f"{cluster.nodes[0].url}/console/sign-in/..%2fevil?code=a", token=None).status == 404


async def test_provider_refuses_a_redirect_that_is_not_registered(
    cluster: Cluster, provider: RealProvider
) -> None:
    started = start(cluster)
    url = started["authorization_url"].replace("%2Fconsole%2Fsign-in%2Funi", "%2Fconsole%2Fsign-in%2Ftwin")
    async with Person("alice") as visitor:
        with pytest.raises(AssertionError, match="invalid_redirect_uri"):
            await visitor.visit(url, until=cluster.nodes[0].url)


def test_failed_sign_ins_are_on_record_and_slow_down(
    cluster: Cluster, provider: RealProvider, tmp_path: Path
) -> None:
    started = start(cluster)
    sign_in = SignIn(cluster, "uni", started, {"code": "wrong", "iss": provider.issuer})
    assert sign_in.finish().status == 403
    shown = cluster.filestore("audit", "--action", "sign_in", "--limit", "50").stdout.decode()
    assert "provider uni: The provider accepts this code or session no longer." in shown
    body = {
        "attempt": started["attempt"],
        "state": started["state"],
        "code": "wrong",
        "issuer": provider.issuer,
    }
    node = cluster.nodes[2]  # which no other test asks
    path = "/auth/providers/uni/token"
    statuses = {cluster.post(path, body, token=None, node=node).status for _ in range(40)}
    assert 429 in statuses

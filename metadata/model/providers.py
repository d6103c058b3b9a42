"""PersonIdentity providers with which people sign in: their configuration, and what they say of a person.

Shared by the API, the leader and the state machine. Pure.
"""

import fnmatch
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

from ca.errors import InvalidRequest, Unavailable
from ca.names import NAMES_MAX, is_name
from runtime.bounds import Label, Names, Pem, Text

PROVIDERS_MAX: Final = 16
SCOPES_DEFAULT: Final = ("openid", "profile", "email")
NAME_CLAIM_DEFAULT: Final = "preferred_username"
GROUPS_CLAIM_DEFAULT: Final = "groups"
TOKEN_SECONDS_DEFAULT: Final = 3600
TOKEN_SECONDS_MIN: Final = 300
TOKEN_SECONDS_MAX: Final = 43_200  # as that of tokens which an admin makes without saying for how long
SECRET_CHARS_MAX: Final = 1024
EVERYBODY: Final = "*"  # in place of the groups that may sign in
TAKEN_CHARS_MAX: Final = 1900  # of groups with their quotes and commas: the room in a token
ANOTHER_SUFFIX_MAX: Final = 99
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_RESERVED: Final = frozenset({"local"})  # the source of memberships that administrators give
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749, 3.3
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._@-]+")
_PERSON_CHARS_MAX: Final = 80
_Seconds = Annotated[int, Meta(ge=TOKEN_SECONDS_MIN, le=TOKEN_SECONDS_MAX)]


class ProviderUnavailable(Unavailable):
    """The provider does not answer the leader, or not as a provider does. Another coordinator is no help."""


class Provider(Struct, frozen=True, kw_only=True):
    """The configuration of a provider, without its secrets.

    `command_client_id`: the client of the command, "" if it is the same. `allowed_groups`: who may sign in,
    EVERYBODY for all. `taken_groups`: patterns of the groups that become groups of this cluster, none for
    all. `ca_pem`: the authority of its certificate, "" for those that the machine trusts.
    """

    name: Text
    label: Label
    issuer: Text
    client_id: Text
    command_client_id: Text = ""
    scopes: Names = field(default_factory=lambda: list(SCOPES_DEFAULT))
    name_claim: Text = NAME_CLAIM_DEFAULT
    groups_claim: Text = GROUPS_CLAIM_DEFAULT
    allowed_groups: Names = []
    admin_groups: Names = []
    taken_groups: Names = []
    token_seconds: _Seconds = TOKEN_SECONDS_DEFAULT
    ca_pem: Pem = ""

    def client(self, *, is_command: bool) -> str:
        """Return the client id of the console, or that of the command."""
        return self.command_client_id if is_command and self.command_client_id else self.client_id

    def purpose(self, *, is_command: bool) -> str:
        """Return what the secret of a client is sealed for: it can be used with no other issuer or client."""
        return f"client secret {self.issuer} {self.client(is_command=is_command)}"


class ProviderRecord(Struct, frozen=True, kw_only=True):
    """A provider as administrators see it: whether there are secrets, and when it was changed."""

    provider: Provider
    has_secret: bool
    has_command_secret: bool
    updated_at_ms: int


class ProviderName(Struct, frozen=True):
    """A provider as the sign-in page shows it."""

    name: str
    label: str


class PersonIdentity(Struct, frozen=True, kw_only=True):
    """A person as a provider has described it in a verified ID token.

    `name` is the wanted user id, `groups` those that become groups here.
    """

    provider: Text
    issuer: Text
    subject: Text
    name: Text
    groups: Names
    is_admin: bool
    is_allowed: bool


def check_provider(provider: Provider, *, is_development: bool) -> None:
    """Raise InvalidRequest, naming the field, for what cannot be the configuration of a provider."""
    if not _NAME.fullmatch(provider.name) or provider.name in _RESERVED:
        raise InvalidRequest("name: 1 to 32 of a-z 0-9 -, and not local, are required")
    check_provider_url(provider.issuer, "issuer", is_development=is_development)
    if not provider.client_id:
        raise InvalidRequest("client_id: is required")
    if "openid" not in provider.scopes or not all(map(_SCOPE.fullmatch, provider.scopes)):
        raise InvalidRequest("scopes: names of scopes are required, openid among them")
    for claim in ("name_claim", "groups_claim"):
        if not getattr(provider, claim):
            raise InvalidRequest(f"{claim}: is required")
    if not provider.allowed_groups:
        raise InvalidRequest(f"allowed_groups: at least one is required; {EVERYBODY} lets everybody sign in")
    if EVERYBODY in provider.admin_groups:
        raise InvalidRequest("admin_groups: name each group")


def check_provider_url(url: object, field: str, *, is_development: bool) -> str:
    """Return an https URL, http only for loopback in a development cluster. Raises InvalidRequest."""
    problem = f"{field}: an https URL without user name and fragment is required"
    if not isinstance(url, str) or not url.isascii() or len(url) > 1024 or any(c <= " " for c in url):
        raise InvalidRequest(problem)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidRequest(problem) from error
    is_local = is_development and parts.scheme == "http" and host in LOOPBACK
    if not host or (parts.scheme != "https" and not is_local) or parts.fragment or "@" in parts.netloc:
        raise InvalidRequest(problem)
    return url


def identity_in(provider: Provider, claims: Mapping[str, object]) -> PersonIdentity:
    """Return the person whom verified claims describe. Raises InvalidRequest for too many groups."""
    groups = groups_in(provider, claims)
    allowed = provider.allowed_groups
    return PersonIdentity(
        provider=provider.name,
        issuer=provider.issuer,
        subject=str(claims["sub"]),
        name=user_name(provider, claims),
        groups=_taken(provider, groups),
        is_admin=not set(provider.admin_groups).isdisjoint(groups),
        is_allowed=EVERYBODY in allowed or not set(allowed).isdisjoint(groups),
    )


def groups_in(provider: Provider, claims: Mapping[str, object]) -> list[str]:
    """Return the groups in the claims. A claim of one text is one group; /NAME (of Keycloak) is NAME."""
    value = claims.get(provider.groups_claim)
    found: Iterable[object] = value if isinstance(value, list) else [value]
    names = [each for each in found if isinstance(each, str) and each]
    return sorted({each[1:] if each.rfind("/") == 0 and len(each) > 1 else each for each in names})


def user_name(provider: Provider, claims: Mapping[str, object]) -> str:
    """Return the user id that a new person gets, `PROVIDER:NAME`, unless it is in use.

    Letters lose their accents, and other characters become `-`. A person without a usable name is called by a
    digest of the subject.
    """
    for claim in (provider.name_claim, "email"):
        value = claims.get(claim)
        if isinstance(value, str):
            plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode()
            if name := _UNFIT.sub("-", plain)[:_PERSON_CHARS_MAX].strip("-."):
                return f"{provider.name}:{name}"
    digest = hashlib.sha256(f"{provider.issuer} {claims['sub']}".encode()).hexdigest()
    return f"{provider.name}:{digest[:16]}"


def candidate_names(name: str) -> Iterable[str]:
    """Yield the user ids that a person can get, the wanted one first."""
    yield name
    yield from (f"{name}-{number}" for number in range(2, ANOTHER_SUFFIX_MAX + 1))


def _taken(provider: Provider, groups: Sequence[str]) -> list[str]:
    patterns = provider.taken_groups or ["*"]
    taken = [
        each
        for each in groups
        if is_name(each) and any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns)
    ]
    if len(taken) > NAMES_MAX or sum(len(each) + 3 for each in taken) > TAKEN_CHARS_MAX:
        raise InvalidRequest(
            f"taken_groups: the provider names {len(taken)} groups, more than a token has room for; an"
            " administrator can choose some of them with `filestore sso set --take-group`"
        )
    return taken

"""Bodies of identity providers, and of signing in with them.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Count,
    Deleted,
    Groups,
    Label,
    Port,
    Request,
    Roles,
    Text,
    Timestamp,
    UpdatedAt,
    UserId,
)
from ca.names import NAMES_MAX
from metadata.model.providers import (
    EVERYBODY,
    GROUPS_CLAIM_DEFAULT,
    NAME_CLAIM_DEFAULT,
    SCOPES_DEFAULT,
    SECRET_CHARS_MAX,
    TOKEN_SECONDS_DEFAULT,
    TOKEN_SECONDS_MAX,
    TOKEN_SECONDS_MIN,
)
from metadata.protocol.sign_in_calls import CODE_CHARS_MAX, SEALED_CHARS_MAX, Flow
from runtime.bounds import PEM_CHARS_MAX, TEXT_CHARS_MAX

ProviderLabel = Annotated[Label, Meta(description="What people choose.", examples=["University"])]
ProviderNameText = Annotated[
    str,
    Meta(
        description="The name of the provider.",
        examples=["uni"],
        extra_json_schema={"pattern": "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"},
    ),
]
Issuer = Annotated[
    str,
    Meta(
        max_length=TEXT_CHARS_MAX,
        description="The issuer, as the provider writes it in its ID tokens.",
        examples=["https://login.uni.example/realms/lab"],
    ),
]
ClientId = Annotated[
    str,
    Meta(
        max_length=TEXT_CHARS_MAX,
        description="The client that the provider knows this cluster as.",
        examples=["filestore"],
    ),
]
CommandClientId = Annotated[
    str,
    Meta(
        max_length=TEXT_CHARS_MAX,
        description='The client of the command; "" if it is the same.',
        examples=["filestore-command"],
    ),
]
_Names = Annotated[list[Text], Meta(max_length=NAMES_MAX)]
Scopes = Annotated[_Names, Meta(description="The scopes that are requested.", examples=[[*SCOPES_DEFAULT]])]
_Claim = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
NameClaim = Annotated[
    _Claim, Meta(description="The claim that becomes the user's name.", examples=[NAME_CLAIM_DEFAULT])
]
GroupsClaim = Annotated[
    _Claim, Meta(description="The claim that lists the groups.", examples=[GROUPS_CLAIM_DEFAULT])
]
AllowedGroups = Annotated[
    _Names,
    Meta(description=f"The groups that may sign in; `{EVERYBODY}` for everybody.", examples=[["netlab"]]),
]
AdminGroups = Annotated[
    _Names, Meta(description="The groups whose members get the role `admin`.", examples=[["netlab-staff"]])
]
TakenGroups = Annotated[
    _Names,
    Meta(
        description="Patterns of the provider's groups that become groups here; none for all of them.",
        examples=[["netlab*"]],
    ),
]
TokenSeconds = Annotated[
    int,
    Meta(
        ge=TOKEN_SECONDS_MIN,
        le=TOKEN_SECONDS_MAX,
        description="Lifetime of a token. It is renewed before, while the provider's session lasts.",
        examples=[TOKEN_SECONDS_DEFAULT],
    ),
]
CaPem = Annotated[
    str,
    Meta(
        max_length=PEM_CHARS_MAX,
        description=(
            "The only authorities that may have issued the provider's certificate, in PEM. If empty: those"
            " that the coordinators' machines trust."
        ),
        examples=["-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"],
    ),
]
ClientSecret = Annotated[
    str,
    Meta(
        max_length=SECRET_CHARS_MAX,
        description='The secret of the client. "" for a public client; absent to keep the present secret.',
        examples=["kM4vQ0sV"],
    ),
]
Attempt = Annotated[
    str,
    Meta(
        max_length=SEALED_CHARS_MAX,
        description="The sign-in that was begun, sealed: the client keeps it until it is finished.",
        examples=["AVkQ2b"],
    ),
]
State = Annotated[
    str,
    Meta(
        max_length=TEXT_CHARS_MAX,
        description=(
            "What the provider must return with the code. The client compares it with that of the sign-in"
            " that it began."
        ),
        examples=["b1Zx0a"],
    ),
]
Renewal = Annotated[
    str,
    Meta(
        max_length=SEALED_CHARS_MAX,
        description='What renews the token, sealed; "" if the provider allows no renewal.',
        examples=["AVkQ2b"],
    ),
]


class PutProviderBody(Request, frozen=True, kw_only=True):
    """A provider. Absent fields keep their values, or get the default for a new provider."""

    label: ProviderLabel | None = None
    issuer: Issuer | None = None
    client_id: ClientId | None = None
    client_secret: ClientSecret | UnsetType = UNSET
    command_client_id: CommandClientId | UnsetType = UNSET
    command_client_secret: ClientSecret | UnsetType = UNSET
    scopes: Scopes | None = None
    name_claim: NameClaim | None = None
    groups_claim: GroupsClaim | None = None
    allowed_groups: AllowedGroups | None = None
    admin_groups: AdminGroups | None = None
    taken_groups: TakenGroups | None = None
    token_seconds: TokenSeconds | None = None
    ca_pem: CaPem | UnsetType = UNSET


class ProviderBody(Struct, frozen=True, kw_only=True):
    """A provider. Its secrets are never shown."""

    name: ProviderNameText
    label: ProviderLabel
    issuer: Issuer
    client_id: ClientId
    has_secret: Annotated[bool, Meta(description="Whether the client has a secret.", examples=[True])]
    command_client_id: CommandClientId
    has_command_secret: Annotated[
        bool, Meta(description="Whether the client of the command has a secret.", examples=[False])
    ]
    scopes: Scopes
    name_claim: NameClaim
    groups_claim: GroupsClaim
    allowed_groups: AllowedGroups
    admin_groups: AdminGroups
    taken_groups: TakenGroups
    token_seconds: TokenSeconds
    ca_pem: CaPem
    redirect_uris: Annotated[
        list[Text],
        Meta(
            description=(
                "What the provider must know as redirect URIs: for the console at each of its addresses, and"
                " for the command, which is given a port by the system."
            ),
            examples=[["https://files.lab.example/console/sign-in/uni", "http://127.0.0.1/sign-in/uni"]],
        ),
    ]
    updated_at: UpdatedAt


class ProviderNameBody(Struct, frozen=True, kw_only=True):
    """A provider that people can sign in with."""

    name: ProviderNameText
    label: ProviderLabel


class ProviderNameList(Struct, frozen=True, kw_only=True):
    """The providers, by name."""

    count: Count
    providers: Annotated[list[ProviderNameBody], Meta(description="The providers.")]


class DeletedProvider(Struct, frozen=True, kw_only=True):
    """The provider is removed. Its users stay."""

    deleted: Deleted
    name: ProviderNameText


class ProviderStepBody(Struct, frozen=True, kw_only=True):
    """One step of a test."""

    step: Annotated[str, Meta(description="What was tested.", examples=["keys"])]
    outcome: Annotated[
        Literal["ok", "failed", "note"],
        Meta(description="`note`: something to know, which is no failure.", examples=["ok"]),
    ]
    details: Annotated[str, Meta(description="What was found.", examples=["2 keys can sign ID tokens"])]


class TestedProvider(Struct, frozen=True, kw_only=True):
    """The steps of a test by the leading coordinator."""

    __test__ = False
    steps: Annotated[list[ProviderStepBody], Meta(description="The steps.")]


class StartSignInBody(Request, frozen=True, kw_only=True):
    """How the person comes back: to the console, to a port of this machine, or not at all (`device`)."""

    flow: Annotated[Flow, Meta(description="Who signs in, and how.", examples=["console"])]
    origin: Annotated[
        str,
        Meta(
            max_length=TEXT_CHARS_MAX,
            description="The origin of the console, for the flow `console`.",
            examples=["https://files.lab.example"],
        ),
    ] = ""
    port: Annotated[Port, Meta(description="The loopback port, for the flow `command`.")] | None = None


class StartedSignIn(Struct, frozen=True, kw_only=True):
    """A sign-in that has begun, and the page at which the person signs in."""

    authorization_url: Annotated[
        str,
        Meta(
            description="The provider's page, which the person opens.",
            examples=["https://login.uni.example/authorize?client_id=filestore"],
        ),
    ]
    attempt: Attempt
    state: State
    user_code: Annotated[
        str, Meta(description="What the person enters on that page (flow `device`).", examples=["WDJB-MJHT"])
    ]
    complete_url: Annotated[
        str,
        Meta(
            description='That page with the code filled in, "" if there is none (flow `device`).',
            examples=["https://login.uni.example/device?user_code=WDJB-MJHT"],
        ),
    ]
    interval_seconds: Annotated[
        int, Meta(ge=0, description="How long to wait between two questions (flow `device`).", examples=[5])
    ]
    expires_at: Annotated[Timestamp, Meta(description="Until when the sign-in can be finished.")]


class FinishSignInBody(Request, frozen=True, kw_only=True):
    """The answer of the provider. In the flow `device`: only the attempt and its state."""

    attempt: Attempt
    state: State
    code: Annotated[
        str,
        Meta(max_length=CODE_CHARS_MAX, description="The code of the provider.", examples=["SplxlOBe"]),
    ] = ""
    issuer: Annotated[
        str,
        Meta(
            max_length=TEXT_CHARS_MAX,
            description="The parameter `iss` of the provider's answer, if it has one (RFC 9207).",
            examples=["https://login.uni.example/realms/lab"],
        ),
    ] = ""


class SignedIn(Struct, frozen=True, kw_only=True):
    """A token of the person, shown once, and what renews it."""

    token: Annotated[
        str,
        Meta(
            description="A JWT. Send it as `Authorization: Bearer TOKEN`.",
            examples=["eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"],
        ),
    ]
    user_id: UserId
    expires_at: Annotated[Timestamp, Meta(description="When the token expires.")]
    roles: Roles
    groups: Groups
    renewal: Renewal
    renew_at: Annotated[Timestamp, Meta(description="When the client should renew the token.")]


class PendingSignIn(Struct, frozen=True, kw_only=True):
    """The person has not confirmed the code yet."""

    pending: Annotated[
        bool, Meta(description="Always true.", examples=[True], extra_json_schema={"const": True})
    ]


class RenewSignInBody(Request, frozen=True, kw_only=True):
    """The renewal that came with the present token."""

    renewal: Renewal


class EndedSignIn(Struct, frozen=True, kw_only=True):
    """The provider has forgotten the session. The token stays valid until it expires."""

    user_id: UserId

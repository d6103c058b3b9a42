"""Generated requests against a running cluster; what breaks the document is collected, not raised.

Held against the document: every status, content type, header and body. A 5xx fails, but for 507, which is the
truth about a file that is declared too large for any disk. A request that breaks its schema must be refused.
"""

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from requests.adapters import HTTPAdapter
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.config import SchemathesisConfig
from schemathesis.core import NotSet
from schemathesis.core.failures import FailureGroup
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from tests.contract.targets import Targets

REQUEST_TIMEOUT_S = 60.0
FINDINGS_MAX = 20  # of one operation: the rest would tell the same
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# What would end the run for everybody else.
EXCLUDED = frozenset(
    {
        "add_coordinator",  # generated addresses would become members
        "transfer_leader",
        "drain_node",
        "stop_draining_node",
        "move_node",  # another address of a node would stay
        "remove_node",
        "revoke_node",
        "put_provider",  # whose issuer would be asked when somebody signs in
        "rotate_token_key",  # without a time of grace the tokens of the run would end
    }
)


OFFSET_TYPE = "application/offset+octet-stream"
schemathesis.serializer.alias(OFFSET_TYPE, "application/octet-stream")


# Where a value that breaks the schema is no fault: it finds nothing.
LENIENT = frozenset(
    {
        "tus_options",  # tells the same of every path
        "tus_options_project_files",
        "tus_options_vms",
        "tus_options_backups",
    }
)


@dataclass(slots=True)
class Report:
    """What came of a run: answers by operation and status, and what was wrong."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many were sent."""
        return self.answers.total()

    def statuses(self) -> dict[int, int]:
        """How many answers had which status."""
        counted: Counter[int] = Counter()
        for (_, status), number in self.answers.items():
            counted[status] += number
        return dict(sorted(counted.items()))


def session_of(ca: Path, token: str, source: str) -> requests.Session:
    """Trusts `ca` and nothing else, whatever the environment says; comes from an address of its own."""

    class FromSource(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options, source_address=(source, 0))

    session = requests.Session()
    session.trust_env = False  # else REQUESTS_CA_BUNDLE would win over `verify`
    session.verify = str(ca)
    session.headers["Authorization"] = f"Bearer {token}"
    session.mount("https://", FromSource())
    return session


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with answers that may have no field beyond those described.

    And without credentials, which are ours to send: broken ones have tests of their own, and are counted.
    """
    made = copy.deepcopy(document)
    del made["components"]["securitySchemes"]
    for methods in made["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    for schema in made["components"]["schemas"].values():
        if schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
    return made


def operations_of(document: dict[str, Any]) -> Iterator[Any]:
    """Every operation that may be tried."""
    config = SchemathesisConfig.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx", 507]}}}
    )
    schema = schemathesis.openapi.from_dict(strict(document), config=config)
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result.err()
        operation = result.ok()
        if operation.definition.raw["operationId"] not in EXCLUDED:
            yield operation


def try_operation(
    operation: Any,
    *,
    url: str,
    session: requests.Session,
    targets: Targets,
    report: Report,
    seed_number: int,
    examples: int,
) -> None:
    """Send `examples` requests to one operation: half of them good ones, half of them broken."""
    name = operation.definition.raw["operationId"]
    found: list[str] = []

    def attempt(case: Any, aim: int) -> None:
        if len(found) >= FINDINGS_MAX:
            return
        must_be_refused = is_broken(case)  # later all bytes that are put in count as broken
        if aim:
            aim_at(case, name, targets, prefers_record=aim == 1)
        response = case.call(
            base_url=url,
            session=session,
            timeout=REQUEST_TIMEOUT_S,
            allow_redirects=False,
            verify=session.verify,  # else the library asks for its own
        )
        report.answers[name, response.status_code] += 1
        if problem := problem_of(case, response, must_be_refused=must_be_refused):
            found.append(f"{name}: {case.as_curl_command().replace(secret_of(session), '***')}\n{problem}")

    modes = [GenerationMode.POSITIVE]
    takes_anything = operation.path_parameters or operation.query or operation.headers or operation.body
    if takes_anything and name not in LENIENT:
        modes.append(GenerationMode.NEGATIVE)
    for mode in modes:
        run = given(operation.as_strategy(generation_mode=mode), st.integers(0, 3))(attempt)
        options = settings(
            max_examples=max(examples // len(modes), 1),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        with contextlib.suppress(Unsatisfiable):  # nothing that this operation takes can be broken
            seed(seed_number)(options(run))()
    report.findings += found


def aim_at(case: Any, name: str, targets: Targets, *, prefers_record: bool) -> None:
    """Let a request find something, unless finding nothing is what it is about."""
    is_broken_at = case.meta.is_negative_at
    if case.path_parameters and not is_broken_at(ParameterLocation.PATH):
        case.path_parameters.update(targets.path_parameters(case.operation.path, case.method))
    if not is_broken_at(ParameterLocation.BODY):
        case.body = targets.body(name, case.body)
    is_creation = name.startswith("create_") and case.media_type == OFFSET_TYPE
    if is_creation and not any(is_broken_at(place) for place in ParameterLocation):
        if prefers_record:  # and says nothing else, so that it may be granted
            case.headers.clear()
            case.headers["Prefer"] = "return=representation"
        case.headers.update(targets.creation_headers(case.operation.path, case.body))


def is_broken(case: Any) -> bool:
    """Whether a request breaks its schema. The generator also counts a body left out that may be."""
    left_out = {ParameterLocation.BODY} if isinstance(case.body, NotSet) else set()
    return any(case.meta.is_negative_at(place) for place in set(ParameterLocation) - left_out)


def problem_of(case: Any, response: Any, *, must_be_refused: bool) -> str:
    """What is wrong with an answer, "" for nothing."""
    if response.status_code >= 500 and response.status_code != 507:
        return f"{response.status_code} {response.content[:500]!r}"
    checks = [*CHECKS, negative_data_rejection] if must_be_refused else CHECKS
    try:
        case.validate_response(response, checks=checks)
    except FailureGroup as group:
        return "\n".join(str(each) for each in group.exceptions)
    return ""


def secret_of(session: requests.Session) -> str:
    return str(session.headers["Authorization"]).partition(" ")[2]

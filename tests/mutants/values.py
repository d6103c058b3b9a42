"""Deliberate bugs in what requests may say: a bad value is taken, or refused without its name."""

from typing import Final

from tests.mutants.mutant import Mutant

_TABLE: Final = "tests/api/test_bad_values.py::test_"

VALUES = (
    Mutant.of(
        "unknown field of a body passed over",
        "api/bodies/fields",
        "class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):",
        "class Request(Struct, frozen=True, kw_only=True):",
        f"{_TABLE}fields_of_bodies",
    ),
    Mutant.of(
        "folder above its bucket taken",
        "api/bodies/checks",
        'if part in ("", ".", ".."):',
        'if part in ("", "."):',
        f"{_TABLE}fields_of_bodies",
    ),
    Mutant.of(
        "content type that is none taken",
        "api/bodies/checks",
        "    if _MEDIA_TYPE.fullmatch(text) is None:",
        "    if not text:",
        f"{_TABLE}fields_of_bodies",
    ),
    Mutant.of(
        "flag with any value taken",
        "api/pages",
        'if value not in ("", "0", "1"):',
        "if len(value) > 9:",
        f"{_TABLE}parameters_of_queries",
    ),
    Mutant.of(
        "parameter that comes twice taken",
        "api/pages",
        "    if len(values) > 1:",
        "    if len(values) > 2:",
        f"{_TABLE}parameters_of_queries",
    ),
)

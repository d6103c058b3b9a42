"""JSON bodies: parsed strictly, checked against a type, refused with the name of the field first."""

import functools
import json
import re
import typing
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar

import msgspec

from ca.errors import InvalidRequest

PARTS_BYTES_MAX: Final = 128 << 10  # of a body, without its long texts: parsing this much takes 30 ms at most
JSON_INTEGER_DIGITS_MAX: Final = 20  # 2^64 has 20; longer ones become a number that every range refuses
NUMBER_CHARS_MAX: Final = 64  # of one that may be an integer written with a fraction
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # builds nothing of what is in them
T = TypeVar("T")


def decode_json(data: bytes, body_type: type[T]) -> T:
    """JSON text as a `body_type`, strictly; no body at all stands for `{}`.

    An optional field may be null or "", which mean absent, but for null where its default is UNSET. Duplicate
    keys, unknown fields, wrong types, deep nesting, NaN, numbers out of range, lone surrogates:
    InvalidRequest, whose details begin with the field.
    """
    if len(data) > PARTS_BYTES_MAX:
        _require_few_parts(data, body_type)
    value = _parse_json(data) if data else {}
    if isinstance(value, str):  # whose surrogates were not checked yet
        raise InvalidRequest(_explain("Expected `object`, got `str`", body_type))
    return convert_fields(value, body_type)


def convert_fields(value: Any, body_type: type[T]) -> T:
    """Convert parsed JSON to a `body_type`. Errors are those of `decode_json`."""
    if isinstance(value, dict):
        for name, absent in _optional_fields(body_type):  # type: ignore[arg-type]  # a type is hashable
            if value.get(name, 0) in absent:
                del value[name]
    try:
        return msgspec.convert(value, body_type, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_explain(str(error), body_type)) from None


@functools.cache
def _optional_fields(body_type: type) -> tuple[tuple[str, tuple[str | None, ...]], ...]:
    """The names of its optional fields, each with the values that mean absent.

    null is not among them for a field whose default is UNSET: there it has a meaning of its own.
    """
    return tuple(
        (known.encode_name, ("",) if known.default is msgspec.UNSET else (None, ""))
        for known in msgspec.structs.fields(body_type)
        if not known.required
    )


def _require_few_parts(data: bytes, body_type: type) -> None:
    """Raise InvalidRequest for a body that would take long to parse, which blocks the event loop.

    Only texts make our bodies long: a MiB of small objects would take a fifth of a second.
    """
    try:
        fields = _fields(data)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_explain(str(error), body_type)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("The body is not JSON.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    parts = (memoryview(value) for value in fields.values())
    if sum(map(len, fields)) + sum(len(part) for part in parts if part[0] != ord('"')) > PARTS_BYTES_MAX:
        raise InvalidRequest(f"The body has more than {PARTS_BYTES_MAX} bytes outside of its texts.")


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_of,
            parse_constant=Decimal,
            parse_int=_bounded_integer,
            parse_float=_number,
        )
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error.msg} at character {error.pos}.") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise InvalidRequest(f"{key[:64]}: appears more than once")
        texts = [key, *(value if isinstance(value, list) else [value])]
        if any(isinstance(text, str) and _SURROGATE.search(text) for text in texts):
            raise InvalidRequest(f"{key[:64]}: contains a lone surrogate, which is not valid text")
        made[key] = value
    return made


def _bounded_integer(digits: str) -> int:
    """The integer, or a number beyond every bound in place of one with too many digits.

    Converting thousands of digits takes quadratic time, which strangers must not be able to cause.
    """
    if len(digits) <= JSON_INTEGER_DIGITS_MAX:
        return int(digits)
    bound: int = 10**JSON_INTEGER_DIGITS_MAX
    return -bound if digits.startswith("-") else bound


def _number(text: str) -> int | float:
    """A number with a fraction or an exponent: an integer if it is one, as JSON Schema has it (1.0, 1e3)."""
    if len(text) <= NUMBER_CHARS_MAX:
        with suppress(ArithmeticError):  # such as an exponent of twenty digits
            exact = Decimal(text)
            if exact.adjusted() < JSON_INTEGER_DIGITS_MAX and exact == exact.to_integral_value():
                return int(exact)
    return float(text)


_KINDS: Final = {
    "int": "an integer",
    "str": "a string",
    "bool": "a boolean",
    "float": "a number",
    "array": "an array",
    "object": "an object",
    "decimal": "NaN or Infinity",
}
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*?)`", re.DOTALL)
_NOT_AMONG: Final = re.compile(r"Invalid enum value .* - at `\$\.?(.*)`", re.DOTALL)
_EXPECTED: Final = re.compile(
    r"Expected `([^`]+?)(?: \| null)?`(?:, got `(.*?)`)?(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL
)


def _explain(message: str, body_type: type) -> str:
    """A message of msgspec (0.20 and later) in the words of JSON; it begins with the name of the field."""
    if match := _FIELD.match(message):
        return f"{match[2][:64]}: {'is required' if match[1].startswith('missing') else 'unknown field'}"
    if match := _NOT_AMONG.fullmatch(message):
        return f"{match[1]}: expected one of {', '.join(_choices(body_type, match[1]))}"
    if match := _EXPECTED.fullmatch(message):
        got = f", got {_KINDS.get(match[2], match[2])}" if match[2] else ""
        return f"{match[4] or 'the body'}: expected {_KINDS.get(match[1], match[1])}{match[3]}{got}"
    return message


def _choices(body_type: type, name: str) -> list[str]:
    """The values of a field that is a Literal, alone or in a union with None."""
    hint = typing.get_type_hints(body_type).get(name)
    literals = [part for part in (hint, *typing.get_args(hint)) if typing.get_origin(part) is Literal]
    return [str(value) for literal in literals for value in typing.get_args(literal)]

"""JSON Schemas (2020-12) of bodies, answers and parameters, made from their types, and examples of each.

msgspec makes the schemas; what it cannot know is put right here. A request's optional field may be null or
"" too. An answer has all its fields, but for those that may be UNSET. No I/O here.

Tested by tests/api/test_openapi.py.
"""

import typing
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct, UnsetType

from api.bodies.fields import Request

REF_TEMPLATE: Final = "#/components/schemas/{name}"
_ABSENT: Final = (None, "")  # what an optional field of a request may be to count as left out
_SPOKEN: Final = ("description", "examples", "default")
Schema = dict[str, Any]


class Schemas:
    """The schemas of some types, with all that these refer to."""

    def __init__(self, types: Iterable[Any]) -> None:
        """`types`: Structs and lists of them, and annotated simple types for parameters."""
        self._types = [_listed(each) or each for each in types]
        structs = list(dict.fromkeys(each for each in self._types if _is_struct(each)))
        _, made = msgspec.json.schema_components(structs, ref_template=REF_TEMPLATE)
        nested = {struct.__name__: struct for root in structs for struct in _structs_in(root)}
        self.components: dict[str, Schema] = {
            name: _finished(nested[name], schema) for name, schema in sorted(made.items())
        }

    def of(self, kind: Any) -> Schema:
        """The schema of one type; a Struct's is a reference into `components`."""
        if _is_struct(kind):
            return {"$ref": REF_TEMPLATE.format(name=kind.__name__)}
        if (listed := _listed(kind)) is not None:
            return {"type": "array", "items": self.of(listed)}
        return _hoisted(msgspec.json.schema(kind))

    def example(self, kind: Any) -> Any:
        """A whole example, put together from those of the fields.

        In a request, fields whose default is "" are left out, and other defaults are shown.
        """
        return self._example(self.of(kind))

    def _example(self, schema: Schema) -> Any:
        if "$ref" in schema:
            return self._example_of_object(self.components[schema["$ref"].rpartition("/")[2]])
        if schema.get("default"):
            return schema["default"]
        if "examples" in schema:
            return schema["examples"][0]
        if schema.get("type") == "array":
            return [self._example(schema["items"])]
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            return self._example(schema["anyOf"][0])
        return False if schema.get("type") == "boolean" else None

    def _example_of_object(self, schema: Schema) -> dict[str, Any]:
        return {
            name: self._example(field)
            for name, field in schema["properties"].items()
            if field.get("default") != ""
        }


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _listed(kind: Any) -> type[Struct] | None:
    """The Struct that a type is a list of; None if it is no such list."""
    found = typing.get_args(kind)[0] if typing.get_origin(kind) is list else None
    return found if _is_struct(found) else None


def _structs_in(kind: Any) -> Iterable[type[Struct]]:
    """A Struct and those in its fields, at any depth."""
    if _is_struct(kind):
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from _structs_in(hint)
    for part in typing.get_args(kind):
        yield from _structs_in(part)


def _finished(struct: type[Struct], schema: Schema) -> Schema:
    """The schema of a Struct as the interface has it."""
    made = {name: value for name, value in schema.items() if name not in ("title", "required")}
    made["description"] = " ".join(str(made.get("description", "")).split())
    is_request = issubclass(struct, Request)
    hints = typing.get_type_hints(struct)
    properties, required = {}, []
    for field in msgspec.structs.fields(struct):
        name = field.encode_name
        described = _hoisted(schema["properties"][name])
        is_optional = not field.required and is_request
        properties[name] = _with_absence(described) if is_optional else _without_default(described)
        if field.required or not (is_request or UnsetType in typing.get_args(hints[field.name])):
            required.append(name)
    made["properties"] = properties
    if required:
        made["required"] = required
    return made


def _hoisted(schema: Schema) -> Schema:
    """The schema without null, which no answer has, and with descriptions and examples at the top."""
    if "anyOf" not in schema:
        return dict(schema)
    branches = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
    if len(branches) > 1:
        return schema | {"anyOf": branches}
    hoisted: Schema = {**branches[0], **{name: schema[name] for name in _SPOKEN if name in schema}}
    return hoisted


def _without_default(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name != "default"}


def _with_absence(schema: Schema) -> Schema:
    """The schema of a field of a request, which may be null or "" as well."""
    spoken: Schema = {name: schema[name] for name in _SPOKEN if schema.get(name) is not None}
    rest = {name: value for name, value in schema.items() if name not in _SPOKEN}
    return {"anyOf": [rest, {"enum": list(_ABSENT)}], **spoken}

"""A JSON schema as one Python function that says whether a document is surely valid.

jsonschema names what is wrong, but takes seconds for a report of 512 ranks. This knows the keywords that our own
schema uses and answers "not surely" for everything else, so that jsonschema has the last word on every refusal.
Called by the report package's `validate` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]

_SILENT = {"$schema", "$id", "$defs", "title", "description"}
_KNOWN = {
    "$ref", "type", "const", "enum", "minimum", "exclusiveMinimum", "required", "properties", "items", "minItems",
    "additionalProperties",
}
# Exact classes: a bool is no integer here, and what jsonschema also lets pass (2.0 as an integer) is left to it.
_CLASSES = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "object": (dict,), "array": (list,),
}


def compile_schema(schema: dict[str, Any]) -> Check:
    return _compile(schema, schema.get("$defs", {}))


def _compile(schema: dict[str, Any], definitions: dict[str, Any]) -> Check:
    if schema.keys() - _SILENT - _KNOWN:
        return _never
    if "$ref" in schema:
        return _compile(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    if "const" in schema or "enum" in schema:
        return _one_of(schema.get("enum", [schema.get("const")]))
    names = schema.get("type", [])
    classes = [one for name in ([names] if isinstance(names, str) else names) for one in _CLASSES[name]]
    if classes == [dict]:
        return _object(schema, definitions)
    if classes == [list]:
        return _array(schema, definitions)
    if not classes or {dict, list} & set(classes):
        return _never
    return _scalar(tuple(classes), schema)


def _never(_value: Any) -> bool:
    return False


def _one_of(values: list[Any]) -> Check:
    allowed = {(type(value), value) for value in values}
    return lambda value: value.__hash__ is not None and (type(value), value) in allowed


def _scalar(classes: tuple[type, ...], schema: dict[str, Any]) -> Check:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    if least is not None:
        return lambda value: type(value) in classes and value >= least
    if above is not None:
        return lambda value: type(value) in classes and value > above
    return lambda value: type(value) in classes


def _object(schema: dict[str, Any], definitions: dict[str, Any]) -> Check:
    required = frozenset(schema.get("required", ()))
    checks = {name: _compile(part, definitions) for name, part in schema.get("properties", {}).items()}
    closed = schema.get("additionalProperties", True) is not True

    def check(value: Any) -> bool:
        if type(value) is not dict or not required <= value.keys() or (closed and value.keys() - checks.keys()):
            return False
        return all(checks[name](item) for name, item in value.items() if name in checks)

    return check


def _array(schema: dict[str, Any], definitions: dict[str, Any]) -> Check:
    fewest = schema.get("minItems", 0)
    item = _compile(schema["items"], definitions) if "items" in schema else None

    def check(value: Any) -> bool:
        return type(value) is list and len(value) >= fewest and (item is None or all(map(item, value)))

    return check

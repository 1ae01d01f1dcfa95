"""Dataclasses as JSON: their values, and the JSON schema of these.

The docstring of a dataclass, those below its fields and those of its properties are the descriptions. All properties
are required; the object of a dataclass has no others, that of a ``TypedDict`` may have some.
``Annotated[type, Keywords(minimum=0)]`` replaces or adds keywords of the schema.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NotRequired, get_args, get_origin

from testbed.core.fields import json_values

__all__ = ["JsonForm", "Keywords", "Schema"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Final = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_ATTRIBUTE: Final = re.compile(r"([a-z_, `]+): (.+)")

Schema = dict[str, Any]
Names = Mapping[type, tuple[str, ...]]


class Keywords:
    """Keywords of a JSON schema, as metadata of a type."""

    def __init__(self, **values: Any) -> None:
        self.values = values


@dataclasses.dataclass(frozen=True)
class JsonForm:
    """How JSON objects differ from the dataclasses that they are made of.

    Attributes:
        derived: properties of a class that its object has, too.
        omitted: fields that its object lacks.
        optional: properties that may be absent.
        extensible: classes whose objects may have other properties.
        written: classes that are written by a function, and as what type.
    """

    derived: Names = dataclasses.field(default_factory=dict)
    omitted: Names = dataclasses.field(default_factory=dict)
    optional: Names = dataclasses.field(default_factory=dict)
    extensible: frozenset[type] = frozenset()
    written: Mapping[type, tuple[Callable[[Any], Mapping[str, object]], Any]] = dataclasses.field(default_factory=dict)

    def values(self, value: object) -> Any:
        """Return plain JSON values; a number that is not finite is null."""
        return json_values(value, self._properties)

    def _properties(self, value: Any) -> Mapping[str, object]:
        class_ = type(value)
        if class_ in self.written:
            write, _ = self.written[class_]
            properties = {**write(value)}
        else:
            names = (*(field.name for field in dataclasses.fields(value)), *self.derived.get(class_, ()))
            properties = {name: getattr(value, name) for name in names}
        for name in self.omitted.get(class_, ()):
            properties.pop(name, None)
        return properties

    def document(self, type_: type, title: str, description: str) -> Schema:
        """Return the schema of a whole document."""
        return {"$schema": _DIALECT, **self.schema(type_), "title": title, "description": description}

    def schema(self, type_: Any) -> Schema:
        """Return the schema of a type."""
        if isinstance(type_, type) and type_ in self.written and self.written[type_][1] is not type_:
            return self.schema(self.written[type_][1])
        origin, arguments = get_origin(type_), get_args(type_)
        if origin is Annotated:
            return self._annotated(arguments[0], arguments[1:])
        if origin is NotRequired:
            return self.schema(arguments[0])
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin is tuple and arguments[-1] is not Ellipsis:
            return self._tuple(arguments)
        if origin is tuple or (origin is not None and issubclass(origin, list)):
            return {"type": "array", "items": self.schema(arguments[0])}
        if origin is not None and issubclass(origin, Mapping):
            values = self.schema(arguments[1])
            return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
        if type_ in _SCALARS:
            return {"type": _SCALARS[type_]}
        if dataclasses.is_dataclass(type_):
            return self._dataclass(typing.cast(type, type_))
        if typing.is_typeddict(type_):
            return self._typed_dict(type_)
        if isinstance(type_, type) and issubclass(type_, tuple):  # a named tuple
            return self._tuple(tuple(typing.get_type_hints(type_, include_extras=True).values()))
        return {}

    def _tuple(self, members: tuple[Any, ...]) -> Schema:
        items = self.schema(typing.Union[members])  # noqa: UP007 (of a tuple of types)
        return {"type": "array", "items": items, "minItems": len(members), "maxItems": len(members)}

    def _annotated(self, type_: Any, metadata: tuple[object, ...]) -> Schema:
        schema = self.schema(type_)
        for keywords in metadata:
            if isinstance(keywords, Keywords):
                schema |= keywords.values
        return schema

    def _union(self, members: tuple[Any, ...]) -> Schema:
        schemas = [self.schema(member) for member in members]
        if all(isinstance(schema.get("type"), str) for schema in schemas):
            # Keywords of an object, array or number say nothing about null.
            return {key: value for schema in schemas for key, value in schema.items()} | {
                "type": [schema["type"] for schema in schemas]
            }
        return {"anyOf": schemas}

    def _dataclass(self, class_: type) -> Schema:
        hints = typing.get_type_hints(class_, include_extras=True)
        fields = [field for field in dataclasses.fields(class_) if field.name not in self.omitted.get(class_, ())]
        properties = {field.name: self.schema(hints[field.name]) for field in fields}
        for name in self.derived.get(class_, ()):
            getter: Callable[..., Any] = inspect.getattr_static(class_, name).fget
            properties[name] = self.schema(typing.get_type_hints(getter, include_extras=True)["return"])
        for name, description in _descriptions(class_).items():
            if name in properties:
                properties[name] = {**properties[name], "description": description}
        required = [name for name in properties if name not in self.optional.get(class_, ())]
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        if class_ not in self.extensible:
            schema["additionalProperties"] = False
        summary = _summary(class_)
        return {**schema, "description": summary} if summary else schema

    def _typed_dict(self, class_: Any) -> Schema:
        hints = typing.get_type_hints(class_, include_extras=True)
        descriptions = _descriptions(class_)
        required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
        properties = {
            name: {**self.schema(hint), **({"description": descriptions[name]} if name in descriptions else {})}
            for name, hint in hints.items()
        }
        return {"type": "object", "properties": properties, "required": required}


def _summary(class_: type) -> str:
    """Return the docstring without its section of attributes; empty where the class has none of its own."""
    docstring = inspect.getdoc(class_) or ""
    return "" if docstring.startswith(f"{class_.__name__}(") else docstring.partition("\n\nAttributes:")[0]


@functools.cache
def _descriptions(class_: type) -> Mapping[str, str]:
    """Return the docstrings below a class's fields, and those of its properties."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(class_))).body
    assert isinstance(body, ast.ClassDef)
    descriptions = {}
    for field, docstring in zip(body.body, body.body[1:], strict=False):
        match field, docstring:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                descriptions[name] = inspect.cleandoc(text).replace("\n", " ")
    for member in body.body:
        if isinstance(member, ast.FunctionDef) and (docs := ast.get_docstring(member)):
            descriptions[member.name] = docs.replace("\n", " ")
    return {**dict(_attributes(inspect.getdoc(class_) or "")), **descriptions}


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names and descriptions of a section ``Attributes:``, each name of ``a, b: text``."""
    _, _, section = docstring.partition("Attributes:\n")
    for entry in re.split(r"\n(?! {5,})", section.rstrip()):
        if match := _ATTRIBUTE.fullmatch(" ".join(entry.split())):
            yield from ((name.strip("` "), match[2]) for name in match[1].split(","))

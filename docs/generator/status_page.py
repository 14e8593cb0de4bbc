"""The members of the status page's JSON, for status-page.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from stream_svt.monitor.released import DatasetView
from stream_svt.web import WorkerStatus
from stream_svt.web.overview import DatasetNow


def structures(struct: type, name: str = "", meaning: str = "") -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield a structure by its dotted name and what it means, with the meaning of its members; then its parts."""
    told, members, parts = get_type_hints(struct, include_extras=True), {}, []
    for field in msgspec.structs.fields(struct):
        kind, text = told[field.name], ""
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)
            text = meta.description
        inner = _structs(kind)
        parts += [(part, f"{name}.{field.encode_name}".strip("."), text) for part in inner]
        if not inner:
            members[field.encode_name] = text
    yield name, meaning, members
    for part in parts:
        yield from structures(*part)


def _structs(kind: Any) -> list[type]:  # noqa: ANN401  whatever may be a type hint
    """Return the structures inside a type: of a list, or of something optional."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in get_args(kind) for found in _structs(part)]


def _listed(struct: type) -> str:
    lines = []
    for name, meaning, members in structures(struct):
        told = ", ".join(f"`{member}` ({_inside(text)})" for member, text in members.items())
        lines.append(f"- `{name}`, {_inside(meaning)}: {told}." if name else f"- {told}.")
    return "\n".join(lines)


def _inside(text: str) -> str:
    """Return a sentence as it reads inside another one."""
    return (text if text.startswith("Unix") else text[0].lower() + text[1:]).rstrip(".")


def _added() -> str:
    """Return what a dataset of the overview has beyond that of the status."""
    [(_, _, members), *_] = structures(DatasetNow)
    return ", ".join(
        f"`{member}` ({_inside(text)})"
        for member, text in members.items()
        if member not in DatasetView.__struct_fields__
    )


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "status-members": lambda: _listed(WorkerStatus),
    "overview-datasets": lambda: f"{_added()}.",
}

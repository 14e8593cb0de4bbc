"""The members of the status page's JSON, for status-page.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from docs.generator.markdown import table
from stream_svt.service.web.status_snapshot import DatasetNow
from stream_svt.service.web.worker_document import Status


def members(struct: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every member with what it means; those of parts behind a dot."""
    told = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind = told[field.name]
        text = ""
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)
            text = meta.description
        name = f"{prefix}{field.encode_name}"
        yield f"`{name}`", text
        for part in _structs(kind):
            yield from members(part, f"{name}.")


def _structs(kind: Any) -> list[type]:  # noqa: ANN401  whatever may be a type hint
    """Return the structures inside a type: of a list, or of something optional."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in get_args(kind) for found in _structs(part)]


def _table(struct: type) -> str:
    return table(["member", "meaning"], members(struct))


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "status-members": lambda: _table(Status),
    "overview-datasets": lambda: _table(DatasetNow),
}

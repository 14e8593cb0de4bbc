"""Handle alerts in a Faust agent.

KAFKA=127.0.0.1:9092 ALERTS=retail.alerts python examples/faust_agent.py worker -l warn --without-web

Faust reads uncommitted records and delivers at least once, so the agent skips copies by their id. Faust's log has what
an agent prints.
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import os
from collections import OrderedDict

import faust
import msgspec
from faust.types import StreamT

from stream_svt import Alert
from stream_svt.monitor.released import decode

app = faust.App(
    "alert-desk",  # also its consumer group
    broker=f"kafka://{os.environ.get('KAFKA', '127.0.0.1:9092')}",
    store="memory://",
    topic_disable_leader=True,  # no topic of its own
    topic_allow_declare=False,  # and the alert topic belongs to the service
)
alerts = app.topic(os.environ["ALERTS"], value_serializer="raw")
seen: OrderedDict[str, None] = OrderedDict()


@app.agent(alerts)  # type: ignore[untyped-decorator]  # faust is taken as Any
async def page_somebody(records: StreamT[bytes | None]) -> None:
    """Print each alert once."""
    async for record in records:
        try:
            event = decode(record or b"")
        except msgspec.DecodeError:
            print("skipped a record that is not an event", flush=True)  # an exception would end the agent
            continue
        data = event.data
        if not isinstance(data, Alert) or event.id in seen:
            continue
        seen[event.id] = None
        if len(seen) > 10_000:
            seen.popitem(last=False)
        sure = "not certified" if data.bound is None else f"at least {data.bound:g}"
        print(f"{data.dataset!r} {data.series!r}: gap {data.gap:g}, {sure}", flush=True)


if __name__ == "__main__":
    app.main()

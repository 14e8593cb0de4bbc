"""Run a worker as a service of a Faust app, with an agent on its typed alerts in the same app.

export CONFIG=monitors.yaml KAFKA=127.0.0.1:9092 ALERTS=retail.alerts
python examples/embed_faust.py worker -l warn --without-web

First `stream-svt apply -c monitors.yaml --create-topics`. The worker reads and writes with clients of its own: Faust's
consumer and agents neither delay it nor touch its positions.
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import os
from collections import OrderedDict

import faust
import msgspec
from faust.types import StreamT

import stream_svt
from stream_svt.monitor.released import decode

app = faust.App(
    "retail-desk",  # also the consumer group of its agents: not the application's name
    broker=f"kafka://{os.environ.get('KAFKA', '127.0.0.1:9092')}",
    store="memory://",
    topic_disable_leader=True,  # no topic of its own
    topic_allow_declare=False,  # and the alert topic belongs to the worker
)
alerts = app.topic(os.environ["ALERTS"], value_serializer="raw")
seen: OrderedDict[str, None] = OrderedDict()


@app.service
class Monitoring(faust.Service):  # type: ignore[misc]  # faust is taken as Any
    """Runs the worker while the app runs; its error ends the app."""

    async def on_start(self) -> None:
        """Begin to join the group; Faust can stop the app meanwhile."""
        self.worker = stream_svt.Worker(os.environ["CONFIG"])
        await self.worker.start()

    async def on_stop(self) -> None:
        """Publish what is charged, and leave the group."""
        await self.worker.stop()
        print("left the group", flush=True)

    @faust.Service.task  # type: ignore[untyped-decorator]  # likewise
    async def _watch(self) -> None:
        await self.worker.ready()
        print(f"ready with shards {[line.shard for line in self.worker.status.shards]}", flush=True)
        await self.worker.wait()


@app.agent(alerts)  # type: ignore[untyped-decorator]  # likewise
async def page_somebody(records: StreamT[bytes | None]) -> None:
    """Print each alert once: Faust reads uncommitted records and delivers at least once."""
    async for record in records:
        try:
            event = decode(record or b"")
        except msgspec.DecodeError:
            continue  # an exception would end the agent
        data = event.data
        if not isinstance(data, stream_svt.Alert) or event.id in seen:
            continue
        seen[event.id] = None
        if len(seen) > 10_000:
            seen.popitem(last=False)
        print(f"{data.dataset!r} {data.series!r}: gap {data.gap:g}", flush=True)


if __name__ == "__main__":
    app.main()

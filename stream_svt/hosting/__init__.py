"""Hosts of a worker: a Faust process, or any asyncio program."""

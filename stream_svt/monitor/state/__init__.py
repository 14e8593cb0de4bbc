"""State of the monitors of a shard: accounts, runs, mutes and queues, in memory and as bytes."""

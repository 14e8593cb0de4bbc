"""The commit protocol: the order of writes, as coroutines that do I/O through ports only.

Nothing here depends on Kafka, time or randomness. The service runs these coroutines on real brokers, the simulator on a
modelled log, where it can crash them after every effect.
"""

"""The commit protocol: what is written in which order, as coroutines that do I/O through ports only.

Nothing here depends on Kafka, time or randomness. The service runs these coroutines on real brokers, the simulator on a
modelled log, where it can crash them after every effect.
"""

"""Private monitoring on real data, live, in a minute.

Three processes: a Kafka broker, the service, and this one, which sends the queries and shows what is released.
The screen reads the alert topic (committed records only) and the status API; true counts appear on it only
where it says so.
"""

"""Private monitoring on real data, live, in a minute.

Three processes: a Kafka broker, the service, and this one, which sends the queries and shows the released events. The
screen reads the alert topic (committed records only) and the status API; figures from true counts are marked on it.
"""

"""Private monitoring on real data, live: a Kafka broker, the service, queries, and a screen of released events."""

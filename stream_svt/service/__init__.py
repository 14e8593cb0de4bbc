"""The monitors as a service: configuration, Kafka, the journal, shards, web pages and control."""

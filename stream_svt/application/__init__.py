"""An application on Kafka: its configuration, topics, keys, and the facts that its released events show."""

"""Kafka through aiokafka: clients with deadlines, logins with tokens, and every change to the client library."""

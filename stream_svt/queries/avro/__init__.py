"""Avro query records, their schemas, and the registry of these."""

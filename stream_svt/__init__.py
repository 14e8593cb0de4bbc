"""Sparse Vector alerts on Kafka streams under differential privacy."""

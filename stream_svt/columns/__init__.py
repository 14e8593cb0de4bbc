"""Arrays that serve several rooms: texts, bytes, decimals, hash tables, and batches of queries."""

"""From records of query topics, in every format, to batches of queries."""

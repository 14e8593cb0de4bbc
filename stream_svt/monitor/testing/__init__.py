"""From a batch of queries to crossings: one pass, retries of bottoms, and sweeps over sets."""

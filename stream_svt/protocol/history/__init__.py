"""Released events of a shard from its begin: their audit, the rest of its budgets, and the check against rollbacks."""

"""Exact privacy accounting of datasets: units of privacy loss, zCDP prices and ledgers."""

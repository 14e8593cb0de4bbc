"""The counter, a process of the trusted zone: reads raw topics, and writes their counts by the clock."""

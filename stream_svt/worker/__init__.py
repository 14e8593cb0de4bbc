"""A worker: joins the group, runs shards, reads, commits and publishes; decides nothing about privacy."""

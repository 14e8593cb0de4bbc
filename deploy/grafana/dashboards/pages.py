"""The dashboards' names in links; a bookmark holds one, so none ever changes."""

FLEET = "stream-svt-fleet"
DATASET = "stream-svt-dataset"
SERVICE = "stream-svt-service"
FORWARDING = "stream-svt-forwarding"
SOURCES = "stream-svt-sources"

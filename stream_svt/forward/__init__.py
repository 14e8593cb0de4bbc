"""Alerts onward: from the alert topic to Alertmanager and webhooks, at least once, in order for each dataset.

Reads released events only and decides nothing about privacy: whoever receives what it sends could have read the
alert topic.
"""

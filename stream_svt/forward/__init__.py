"""The forwarder posts alerts to Alertmanager and webhooks, at least once, in order for each dataset.

It reads only released events: a receiver learns no more than a reader of the alert topic.
"""

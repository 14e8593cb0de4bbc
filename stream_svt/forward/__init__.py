"""The forwarder posts alerts to Alertmanager and webhooks, at least once, in order for each dataset.

It reads released events only: a receiver learns nothing that a reader of the alert topic does not know.
"""

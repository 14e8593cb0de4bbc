"""Dashboards of Grafana as code: what each shows stands in its module, what they share in `parts`.

``python -m deploy.grafana.dashboards`` writes them to ``deploy/grafana/generated``, from where Grafana takes them.
"""

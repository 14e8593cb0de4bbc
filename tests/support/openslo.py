"""OpenSLO documents about the sources of `WEB`."""

from __future__ import annotations

SLO = """\
apiVersion: openslo/v1
kind: SLI
metadata: {name: good-answers}
spec:
  ratioMetric:
    counter: false
    bad:
      metricSource: {type: stream-svt, spec: {measure: errors, source: requests}}
    total:
      metricSource: {type: stream-svt, spec: {source: requests, measure: visitors}}
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: checkout, displayName: Checkout, labels: {team: [shop, pay]}}
spec:
  description: Most visitors see no error.
  service: shop
  indicatorRef: good-answers
  timeWindow: [{duration: 4w, isRolling: true}]
  budgetingMethod: Occurrences
  objectives:
    - target: 0.999
  alertPolicies:
    - alertPolicyRef: fast-burn
---
apiVersion: openslo/v1
kind: AlertPolicy
metadata: {name: fast-burn}
spec:
  alertWhenBreaching: true
  alertWhenResolved: false
  conditions:
    - conditionRef: burns
  notificationTargets: [{targetRef: on-call}]
---
apiVersion: openslo/v1
kind: AlertCondition
metadata: {name: burns}
spec:
  severity: page
  condition:
    kind: burnrate
    op: gte
    threshold: 14.4
    lookbackWindow: 6h
    alertAfter: 90m
"""

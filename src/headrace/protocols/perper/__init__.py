"""Perper Fabric: Apache Ignite's thin client protocol for the data, a gRPC service for waiting and notification.

`ignite/` and `fabric/` are the two halves on the wire. What both share lies beside them: `records` (the two record
types the fabric reads), `registry` (binary types), `caches` (caches as tables and streams of the hub), `state`
(executions, listeners and the wake-ups that hang on them).
"""

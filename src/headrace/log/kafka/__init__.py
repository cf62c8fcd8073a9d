"""The log on Apache Kafka: the journal of a hub in a partition of a topic, instead of in files.

A *cell* is one partition of the topic `PREFIX.journal`. It holds the journal frames of all its streams, tables, cursors
and producers. Whoever reads it applies one rule (`rule.py`) that says which messages count, so that two hubs that both
believe to own the cell cannot both be right. Only this package imports the Kafka client, and only when it is used.
"""

"""The Wallaroo connector protocol: TCP sources with credits, in both of its dialects."""

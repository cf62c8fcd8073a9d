"""The five protocols, and Arrow Flight, each a translation into the verbs of the hub."""

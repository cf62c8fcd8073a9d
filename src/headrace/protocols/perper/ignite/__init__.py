"""The Ignite half of Perper Fabric: thin client protocol 1.2 to 1.7."""

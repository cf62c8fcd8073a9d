"""Several hubs in front of one log on Kafka: who owns it, who stands by, and how any of them leads to it."""

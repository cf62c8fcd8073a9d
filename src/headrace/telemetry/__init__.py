"""What a hub says about itself: metrics, log lines and traces."""

"""`headrace demo`: a hub with something going on, to look at."""

"""Files of the published coordinator: their layout, and what stands in them."""

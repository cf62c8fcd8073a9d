"""Reading streams in Spark: the data source, its offsets, and what a task does."""

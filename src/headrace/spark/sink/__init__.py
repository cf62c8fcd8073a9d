"""Writing DataFrames to streams from Spark, exactly once."""

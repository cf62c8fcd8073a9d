"""The hub's side of Spark: planning of reads, staging of writes, and the pipelines it runs. No PySpark here."""

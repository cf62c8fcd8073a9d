"""Where Spark looks for the format "headrace" by itself: it imports every package whose name begins with `pyspark_`.

So `spark.readStream.format("headrace")` works in any session, also one of `spark-pipelines` or `spark-submit`, without
anything to register. Where the Java engine is on Spark's class path, Spark takes that.
"""

from headrace.spark.source.data_source import HeadraceDataSource


class DefaultSource(HeadraceDataSource):
    """The name by which Spark finds it."""


__all__ = ["DefaultSource"]

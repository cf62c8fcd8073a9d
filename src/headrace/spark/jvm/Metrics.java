package headrace.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What Spark's UI shows of a scan besides its rows. Only constants and values: safe for all threads. */
public final class Metrics {
  static final String MAPPED_RECORDS = "mappedRecords";
  static final String SENT_RECORDS = "sentRecords";
  static final String BYTES = "recordBytes";

  private Metrics() {}

  /** Records read from mapped files. Spark makes one by its name. */
  public static final class MappedRecords extends CustomSumMetric {
    @Override
    public String name() {
      return MAPPED_RECORDS;
    }

    @Override
    public String description() {
      return "records read from mapped segments";
    }
  }

  /** Records that the hub sent. Spark makes one by its name. */
  public static final class SentRecords extends CustomSumMetric {
    @Override
    public String name() {
      return SENT_RECORDS;
    }

    @Override
    public String description() {
      return "records sent by the hub";
    }
  }

  /** The bytes of those records. Spark makes one by its name. */
  public static final class RecordBytes extends CustomSumMetric {
    @Override
    public String name() {
      return BYTES;
    }

    @Override
    public String description() {
      return "bytes of the records, all columns that are stored or were sent";
    }
  }

  static CustomMetric[] all() {
    return new CustomMetric[] {new MappedRecords(), new SentRecords(), new RecordBytes()};
  }

  static CustomTaskMetric value(String name, long value) {
    return new CustomTaskMetric() {
      @Override
      public String name() {
        return name;
      }

      @Override
      public long value() {
        return value;
      }
    };
  }
}

package headrace.spark;

import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/**
 * How rows of a DataFrame become records: which column is what. Immutable, so safe for all threads. A column that is
 * not there is null in every record.
 */
final class Record {
  private static final List<String> ACCEPTED = List.of("payload", "id", "event_time", "type", "key");
  private static final long DAY_US = 86_400_000_000L;
  private final StructType schema;
  private final int payload;
  private final int id;
  private final int eventTime;
  private final int type;
  private final int key;
  private final int stream;

  /** Refuses a DataFrame that cannot be records. `streamColumn` may be null. */
  Record(StructType schema, String streamColumn) {
    this.schema = schema;
    Set<String> names = Set.of(schema.fieldNames());
    String all = String.join(", ", schema.fieldNames());
    if (!names.contains("payload")) {
      throw new BadOption("payload", all,
          "a column `payload`; headrace.spark.to_records(df) packs all columns as JSON");
    }
    if (streamColumn != null && !names.contains(streamColumn)) {
      throw new BadOption("streamColumn", streamColumn, "one of the columns " + all);
    }
    List<String> unknown = Stream.of(schema.fieldNames()).filter(name -> !name.equals(streamColumn)
        && !List.of(SourceOptions.ALL_COLUMNS.fieldNames()).contains(name)).toList();
    if (!unknown.isEmpty()) {
      throw new BadOption("columns", String.join(", ", unknown), "only " + String.join(", ", ACCEPTED)
          + " (the source's own columns are dropped); select them or use headrace.spark.to_records(df)");
    }
    payload = column("payload", BinaryType.class, StringType.class);
    key = column("key", BinaryType.class, StringType.class);
    type = column("type", StringType.class);
    eventTime = column("event_time", TimestampType.class, TimestampNTZType.class, DateType.class);
    id = column("id", LongType.class, IntegerType.class, ShortType.class, ByteType.class);
    stream = streamColumn == null ? -1 : column(streamColumn, StringType.class);
  }

  private int column(String name, Class<?>... taken) {
    for (int number = 0; number < schema.length(); number++) {
      StructField field = schema.fields()[number];
      if (field.name().equals(name)) {
        DataType type = field.dataType();
        if (Stream.of(taken).noneMatch(kind -> kind.isInstance(type))) {
          throw new BadOption("columns", field.toDDL(), "a column `" + name + "` of another type: cast it to "
              + (taken[0] == BinaryType.class ? "BINARY" : taken[0] == LongType.class ? "BIGINT"
                  : taken[0] == StringType.class ? "STRING" : "TIMESTAMP"));
        }
        return number;
      }
    }
    return -1;
  }

  byte[] payload(InternalRow row) {
    if (row.isNullAt(payload)) {
      throw new IllegalArgumentException(
          "column 'payload' is null in a row; a record needs a payload, if only an empty one");
    }
    return bytes(row, payload);
  }

  byte[] key(InternalRow row) {
    return key < 0 || row.isNullAt(key) ? null : bytes(row, key);
  }

  byte[] type(InternalRow row) {
    return type < 0 || row.isNullAt(type) ? null : row.getUTF8String(type).getBytes();
  }

  boolean hasEventTime(InternalRow row) {
    return eventTime >= 0 && !row.isNullAt(eventTime);
  }

  long eventTimeUs(InternalRow row) {
    boolean isDate = schema.fields()[eventTime].dataType() instanceof DateType;
    return isDate ? row.getInt(eventTime) * DAY_US : row.getLong(eventTime);
  }

  boolean hasId(InternalRow row) {
    return id >= 0 && !row.isNullAt(id);
  }

  long id(InternalRow row) {
    DataType kind = schema.fields()[id].dataType();
    if (kind instanceof LongType) {
      return row.getLong(id);
    }
    if (kind instanceof IntegerType) {
      return row.getInt(id);
    }
    return kind instanceof ShortType ? row.getShort(id) : row.getByte(id);
  }

  /** The stream that a row says it goes to; only with `streamColumn`. */
  String stream(InternalRow row) {
    if (row.isNullAt(stream)) {
      throw new IllegalArgumentException("column '" + schema.fieldNames()[stream]
          + "' says which stream a row goes to, and it is null in a row");
    }
    return row.getUTF8String(stream).toString();
  }

  private byte[] bytes(InternalRow row, int column) {
    return schema.fields()[column].dataType() instanceof StringType
        ? row.getUTF8String(column).getBytes() : row.getBinary(column);
  }
}

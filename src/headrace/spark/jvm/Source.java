package headrace.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The format `headrace`. Where an option asks for what only the Python source can do, it is handed over to that. For
 * the planner's thread.
 */
public final class Source implements SessionConfigSupport, DataSourceRegister {
  private static final String PYTHON = "headrace-python";
  private PythonDataSourceV2 python;

  @Override
  public String shortName() {
    return "headrace";
  }

  /** Settings of a session that begin with `spark.datasource.headrace.` are options of every source and sink. */
  @Override
  public String keyPrefix() {
    return "headrace";
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    if (needsPython(options)) {
      return python().inferSchema(options);
    }
    SourceOptions.of(options);  // a mistake is said here, before anything runs
    return SourceOptions.columns(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
    return needsPython(options) ? python().getTable(schema, partitioning, properties) : new Streams(schema, options);
  }

  /** `decode` is Python's; so is a batch write with a name, which is compared row by row by a hash that Java lacks. */
  private static boolean needsPython(CaseInsensitiveStringMap options) {
    String engine = options.getOrDefault("engine", "java");
    if (!engine.equals("java") && !engine.equals("python")) {
      throw new BadOption("engine", engine, "java or python");
    }
    boolean isNamedBatchWrite = options.containsKey("query") && !options.containsKey("checkpointLocation");
    boolean isDecoded = !options.getOrDefault("decode", "raw").equals("raw");
    boolean isPython = engine.equals("python") || isDecoded || isNamedBatchWrite;
    if (isPython && options.containsKey("delivery")) {
      throw new BadOption("delivery", options.get("delivery"), "engine=java");
    }
    return isPython;
  }

  private PythonDataSourceV2 python() {
    if (python == null) {
      python = new PythonDataSourceV2();
      python.setShortName(PYTHON);
    }
    return python;
  }

  /** Streams as a table. Immutable, so safe for all threads. */
  @SuppressWarnings("deprecation")  // `schema` is what all versions of Spark know
  private record Streams(StructType schema, CaseInsensitiveStringMap options) implements SupportsRead, SupportsWrite {
    @Override
    public String name() {
      return "headrace " + options.getOrDefault("stream", "");
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE,
          TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap reading) {
      SourceOptions.check(schema);
      return new Scanning(SourceOptions.of(with(reading)), schema);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Sink(SinkOptions.of(info, with(info.options())));
    }

    /** These options go before those of the table; a streaming write is told only its own, without the session's. */
    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap given) {
      Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
      given.forEach((name, value) -> {
        all.keySet().removeIf(name::equalsIgnoreCase);
        all.put(name, value);
      });
      return new CaseInsensitiveStringMap(all);
    }
  }
}

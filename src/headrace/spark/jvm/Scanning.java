package headrace.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A read as Spark plans it: which columns and filters, then what is read by whom. For the planner's thread. */
final class Scanning implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
  private final SourceOptions options;
  private final Pushdown filters = new Pushdown();
  private StructType schema;
  private Predicate[] pushed = {};

  Scanning(SourceOptions options, StructType schema) {
    this.options = options;
    this.schema = schema;
  }

  @Override
  public void pruneColumns(StructType required) {
    schema = required;
  }

  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    if (!options.pushdown()) {
      return predicates;
    }
    List<Predicate> taken = new ArrayList<>();
    List<Predicate> left = new ArrayList<>();
    for (Predicate predicate : predicates) {
      (filters.take(predicate) ? taken : left).add(predicate);
    }
    pushed = taken.toArray(new Predicate[0]);
    return left.toArray(new Predicate[0]);
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed;
  }

  @Override
  public Scan build() {
    return new Planned(options, schema, filters);
  }

  /** A read that is planned. The token is no part of what it says of itself. */
  private record Planned(SourceOptions options, StructType schema, Pushdown filters) implements Scan, Batch {
    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      return "headrace " + String.join(",", options.streams());
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return Metrics.all();
    }

    @Override
    public Batch toBatch() {
      return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new StreamScan(options, new Wanted(options.hub(), schema, options.types(), options.failOnDataLoss()));
    }

    @Override
    public InputPartition[] planInputPartitions() {
      try {
        Planner planner = new Planner(options);
        return planner.pieces(planner.bounded(filters));
      } catch (IOException error) {
        throw new UncheckedIOException(error.getMessage(), error);
      }
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new Readers(new Wanted(options.hub(), schema, filters.types(options.types()), options.failOnDataLoss()));
    }
  }

  /** Makes the readers of tasks: columnar for pieces, row by row for the live end of a partition. */
  record Readers(Wanted wanted) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return partition instanceof Piece;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new LiveReader(wanted, (LiveReader.Start) partition);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new PieceReader(wanted, (Piece) partition);
    }
  }
}

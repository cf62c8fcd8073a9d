package headrace.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** A write as Spark plans it. For the planner's thread. */
final class Sink implements SupportsTruncate, SupportsStreamingUpdateAsAppend {
  private final SinkOptions options;

  Sink(SinkOptions options) {
    this.options = options;
  }

  @Override
  public WriteBuilder truncate() {
    throw BadOption.because("a stream only grows: use mode \"append\", or output mode append or update");
  }

  @Override
  public Write build() {
    return new Write() {
      @Override
      public String description() {
        return "headrace " + (options.stream() == null ? options.streamColumn() : options.stream());
      }

      @Override
      public BatchWrite toBatch() {
        if (options.delivery() != null) {
          throw new BadOption("delivery", options.delivery(), "a streaming query");
        }
        return new OneAppend(options, "write/" + UUID.randomUUID().toString().replace("-", ""));
      }

      @Override
      public StreamingWrite toStreaming() {
        return new StreamSink(options);
      }
    };
  }

  /** `df.write`: one atomic append, under a name that nobody uses again. */
  private record OneAppend(SinkOptions options, String name) implements BatchWrite {
    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      return new Stagers(options, name);
    }

    /** The driver names the attempts that count; others are never looked at. */
    @Override
    public boolean useCommitCoordinator() {
      return false;
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      try {
        StagedCommit.ofWrite(options, messages);
      } catch (IOException error) {
        throw new UncheckedIOException(error.getMessage(), error);
      }
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      StagedCommit.abort(options, 0, messages);
    }
  }

  private record Stagers(SinkOptions options, String name) implements DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int part, long task) {
      return new Stager(options, new Stager.Part(name, name, 0, part, task, 0, 0, 0));
    }
  }
}

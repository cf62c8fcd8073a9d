package headrace.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/**
 * The sink of a streaming query: staged rows in micro-batches, appends in real-time mode, which it learns of from
 * `Extensions` before each batch. For the thread of one query.
 */
final class StreamSink implements StreamingWrite {
  private static final long SLOTS_WAIT_MS = 30_000;
  private static final long SLOTS_LOOK_MS = 200;
  private static final Map<String, Integer> TASKS = new HashMap<>();
  private final SinkOptions options;
  private Plan plan;
  private boolean isStaged = true;
  private boolean wasSaid;

  StreamSink(SinkOptions options) {
    this.options = options;
  }

  /** The plan of the batch to come, in real-time mode. */
  void plan(Plan seen) {
    plan = seen;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    if (plan == null) {
      if (options.delivery() != null && !options.delivery().equals("staged")) {
        throw BadOption.because("delivery=" + options.delivery() + " needs real-time mode, and "
            + "spark.sql.extensions=headrace.spark.Extensions, which headrace.spark.session() sets");
      }
      return new Writers(options, null, null, false);
    }
    String delivery = plan.delivery(options.delivery());
    int others = tasksOfOthers();
    plan.checkSlots(slots(plan.tasks() + others), others);
    boolean isSpread = isSpread();
    if (delivery.equals("direct") && !wasSaid) {
      wasSaid = true;
      System.err.println("headrace: query " + options.query() + " delivers at least once: after a failure the results "
          + "since its last batch come again. Give each row its `key`, and fold by it");
    }
    isStaged = false;
    return new Writers(options, delivery, begin(delivery, isSpread), isSpread);
  }

  /**
   * The hub puts this run in charge, so that any other is refused from now on, and notes where the results of each
   * source partition end. The answer is the run.
   */
  private String begin(String delivery, boolean isSpread) {
    SparkContext context = SparkSession.active().sparkContext();
    String run = context.getLocalProperty("spark.jobGroup.id");
    ObjectNode request = Hub.request().put("query", options.query()).put("run", run)
        .put("batch", Long.parseLong(context.getLocalProperty("streaming.sql.batchId")));
    if (!isSpread) {
      request.put("stream", options.stream());
    }
    ArrayNode sources = request.putArray("sources");
    if (delivery.equals("once")) {
      plan.starts().forEach(start -> start.write(sources.addObject(), options.hub().access().address()));
    }
    try {
      options.hub().call("spark.begin", request);
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
    return run;
  }

  /** How many slots the other real-time queries of this process hold: they do not let go of them. */
  private int tasksOfOthers() {
    SparkSession session = SparkSession.active();
    String query = session.sparkContext().getLocalProperty("sql.streaming.queryId");
    Set<String> active = session.sharedState().activeStreamingQueries().keySet().stream().map(UUID::toString)
        .collect(Collectors.toSet());
    synchronized (TASKS) {
      TASKS.keySet().retainAll(active);
      TASKS.remove(query);
      int others = TASKS.values().stream().mapToInt(Integer::intValue).sum();
      TASKS.put(query, plan.tasks());
      return others;
    }
  }

  /** How many tasks can run at once. Executors of a cluster may still be on their way. */
  private static int slots(int needed) {
    SparkContext context = SparkSession.active().sparkContext();
    long deadline = System.nanoTime() + (context.isLocal() ? 0 : SLOTS_WAIT_MS * 1_000_000L);
    while (true) {
      int slots = context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile());
      if (slots >= needed || System.nanoTime() >= deadline) {
        return slots;
      }
      try {
        Thread.sleep(SLOTS_LOOK_MS);
      } catch (InterruptedException interrupt) {
        Thread.currentThread().interrupt();
        return slots;
      }
    }
  }

  /** Whether results go to several places, and not to the one partition of one stream, which is made if need be. */
  private boolean isSpread() {
    if (options.stream() == null) {
      return true;
    }
    try {
      List<Hub.Stream> found = options.hub().describe(List.of(options.stream()));
      if (found.isEmpty() && options.partitions() == 1) {
        ObjectNode request = Hub.request().put("stream", options.stream()).put("partitions", 1);
        options.hub().call("stream.create", request.put("exist_ok", true));
        found = options.hub().describe(List.of(options.stream()));
      }
      return found.isEmpty() || found.get(0).partitions() != 1;
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
  }

  /** Staged rows count by the attempt that the driver names, and appends are fenced: nobody need be asked first. */
  @Override
  public boolean useCommitCoordinator() {
    return false;
  }

  @Override
  public void commit(long batch, WriterCommitMessage[] messages) {
    if (isStaged) {
      try {
        StagedCommit.ofBatch(options, batch, messages);
      } catch (IOException error) {
        throw new UncheckedIOException(error.getMessage(), error);
      }
    }
  }

  @Override
  public void abort(long batch, WriterCommitMessage[] messages) {
    StagedCommit.abort(options, batch, messages);
  }

  /** Makes the writers of tasks; `delivery` and `run` are null for staged rows. */
  private record Writers(SinkOptions options, String delivery, String run, boolean isSpread)
      implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int part, long task, long batch) {
      if (delivery != null) {
        return new Appender(options, run, delivery.equals("once"), isSpread);
      }
      String group = TaskContext.get().getLocalProperty("spark.jobGroup.id");
      String name = group == null ? "run" : group;
      return new Stager(options, new Stager.Part(options.query(), name, batch, part, task, 0, 0, 0));
    }
  }
}

package headrace.spark;

import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The live end of a partition, row by row, for real-time mode. For the thread of one task.
 *
 * <p>Invariant: `next` is the index behind the last record that was handed out. When Spark asks for a record, all rows
 * of the records before it have passed the sink: this is where the sink of the same task may send them.
 *
 * <p>What was fetched but not handed out belongs to the next batch: the open call waits for it, for a while, and is
 * used again only if it stands exactly where that batch starts.
 */
final class LiveReader implements SupportsRealTimeRead<InternalRow> {
  private static final long KEPT_MS = 30_000;
  private static final long LOOK_MS = 100;
  private static final ConcurrentHashMap<String, Follow> KEPT = new ConcurrentHashMap<>();
  private final Wanted wanted;
  private final Start start;
  private final List<String> stored;
  private final UTF8String stream;
  private final Set<UTF8String> types;
  private final Hub.Patience patience;
  private Follow follow;
  private ColumnarBatch batch;
  private boolean[] isWanted;
  private InternalRow row;
  private long first;
  private long next;
  private Appender sink;
  private boolean isOpen;
  private long retryAtNs;

  /** A partition and an index in it: where a task starts, or how far it has come. */
  record Start(String stream, int partition, long index) implements InputPartition, PartitionOffset {}

  /** A call that follows a partition; `row` is the next one of `frame`. For one task at a time. */
  private static final class Follow {
    final Call call;
    final long begun;
    Frame frame;
    int row;
    long next;

    Follow(Call call, long next) {
      this.call = call;
      this.next = next;
      this.begun = next;
    }

    boolean hasRow() {
      return frame != null && row < frame.rows;
    }
  }

  LiveReader(Wanted wanted, Start start) {
    this.wanted = wanted;
    this.start = start;
    this.stored = wanted.stored();
    this.stream = UTF8String.fromString(start.stream());
    this.types = wanted.typesAsStored();
    this.patience = new Hub.Patience(wanted.hub());
    this.next = start.index();
  }

  /** Spark 4.2 knows only this form, and 4.3 the other too: hence no `Override`, and one jar for both. */
  public RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
    return nextWithTimeout(timeoutMs);
  }

  public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
    long untilNs = System.nanoTime() + timeoutMs * 1_000_000L;
    open();
    if (sink != null) {
      sink.boundary(next, follow == null || !follow.hasRow() && follow.call.isEmpty());
    }
    while (!isAtRow()) {
      long leftMs = (untilNs - System.nanoTime()) / 1_000_000L;
      if (!fetch(Math.max(0, Math.min(leftMs, LOOK_MS))) && leftMs <= 0) {
        return RecordStatus.newStatusWithoutArrivalTime(false);
      }
      if (sink != null && (follow == null || !follow.hasRow())) {
        sink.boundary(next, true);  // what the hub said of the last results is heard while no record comes
      }
    }
    row = batch.getRow(follow.row++);
    next = ++follow.next;
    return RecordStatus.newStatusWithoutArrivalTime(true);
  }

  /** Whether a record of a type that is asked for is at hand; others are passed over. */
  private boolean isAtRow() {
    while (follow != null && follow.hasRow()) {
      if (isWanted == null || isWanted[follow.row]) {
        return true;
      }
      follow.row++;
      next = ++follow.next;
    }
    return false;
  }

  /** At the first record: the sink of this task, if it is ours, knows which records it has the results of. */
  private void open() throws IOException {
    if (isOpen) {
      return;
    }
    isOpen = true;
    sink = Appender.ofThisTask();
    if (sink != null) {
      next = Math.max(next, sink.attach(start.stream(), start.partition(), () -> next));
    }
    first = next;
    Follow kept = KEPT.remove(key());
    if (kept != null && (kept.next != next || kept.call.isOver())) {
      kept.call.cancel();
    } else if (kept != null) {
      use(kept);
    }
  }

  private void use(Follow known) {
    follow = known;
    if (known.frame != null) {
      show(known.frame);
    }
  }

  private void show(Frame frame) {
    batch = frame.columns(wanted.schema(), stream, start.partition(), 0, frame.rows);
    isWanted = wanted.types() == null ? null : frame.isOfTypes(types);
  }

  private String key() {
    TaskContext task = TaskContext.get();
    String query = task == null ? "" : task.getLocalProperty("sql.streaming.queryId");
    return query + " " + wanted.hub().access() + " " + start.stream() + " " + start.partition() + " " + stored;
  }

  /** Wait for the next batch of records; whether one came. A hub that is away is asked again from time to time. */
  private boolean fetch(long timeoutMs) throws IOException {
    if (follow == null && !connect(timeoutMs)) {
      return false;
    }
    byte[] message = follow.call.next(timeoutMs);
    if (message == null) {
      if (follow.call.isOver()) {
        HubError error = follow.call.error();
        follow.call.cancel();
        follow = null;
        await(error == null ? HubError.unreachable("the hub ended " + start.stream()) : error);
      }
      return false;
    }
    Frame frame = Frame.of(message, stored);
    if (frame == null || frame.rows == 0) {
      return false;
    }
    patience.renew();
    check(frame);
    follow.frame = frame;
    follow.row = 0;
    show(frame);
    return true;
  }

  private void check(Frame frame) throws HubError {
    long first = frame.index(0);
    if (first > follow.next) {
      String why = "the hub did not return them";
      HubError loss = HubError.lost(start.stream(), start.partition(), follow.next, first - 1, why);
      if (wanted.failOnDataLoss() || follow.next != follow.begun) {
        throw loss;
      }
      System.err.println("headrace: " + loss.getMessage());
      follow.next = first;
    }
    if (first != follow.next || frame.firstGap() != frame.rows) {
      throw HubError.lost(start.stream(), start.partition(), follow.next, frame.index(frame.rows - 1),
          "the hub returned others");
    }
  }

  /** Open the call, unless the hub was away a moment ago. */
  private boolean connect(long timeoutMs) throws IOException {
    long waitMs = (retryAtNs - System.nanoTime()) / 1_000_000L;
    if (waitMs > 0) {
      Hub.sleep(Math.min(waitMs, timeoutMs));
      if (waitMs > timeoutMs) {
        return false;
      }
    }
    try {
      Call call = wanted.hub().read(start.stream(), start.partition(), next, -1, stored, null);
      try {
        checkEnd();
      } catch (IOException error) {
        call.cancel();
        throw error;
      }
      use(new Follow(call, next));
      return true;
    } catch (HubError error) {
      await(error);
      return false;
    }
  }

  /**
   * A hub that was away may come back with an older copy of its data. Whoever follows it waits for the stream to get
   * here, and never sees what it is given until then.
   */
  private void checkEnd() throws IOException {
    if (next == first) {
      return;
    }
    for (Hub.Stream now : new Hub(wanted.hub().access(), 0).describe(List.of(start.stream()))) {
      if (start.partition() < now.partitions() && now.next()[start.partition()] < next) {
        throw HubError.unreachable("stream '" + start.stream() + "' partition " + start.partition() + " ends at "
            + now.next()[start.partition()] + " now, and records up to " + next + " were read: the hub has another "
            + "data directory, or an older copy of its own");
      }
    }
  }

  private void await(HubError error) throws IOException {
    retryAtNs = System.nanoTime() + patience.pauseMs(error) * 1_000_000L;
  }

  @Override
  public PartitionOffset getOffset() {
    return new Start(start.stream(), start.partition(), next);
  }

  @Override
  public boolean next() {
    throw new UnsupportedOperationException("real-time mode asks with a timeout");
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public void close() {
    if (follow == null) {
      return;
    }
    TaskContext task = TaskContext.get();
    if (follow.call.isOver() || task == null || task.isFailed() || task.isInterrupted()) {
      follow.call.cancel();
      return;
    }
    String key = key();
    Follow kept = follow;
    Follow old = KEPT.put(key, kept);
    if (old != null) {
      old.call.cancel();
    }
    Grpc.later(() -> {
      if (KEPT.remove(key, kept)) {
        kept.call.cancel();
      }
    }, KEPT_MS);
  }
}

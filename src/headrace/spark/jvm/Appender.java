package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.function.BooleanSupplier;
import java.util.function.LongSupplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * A task of a real-time query: its rows are appended as they come. Used by the thread of the task and, for
 * acknowledgements, by the network's; both under its lock.
 *
 * <p>With `once` the hub keeps, as the last sequence s of a producer, how far the results of a source partition are
 * stored. Invariant: the stream holds the results of every record below s that has any, and of none at or above it.
 * Rows leave only between two records, in one append with `sequence` = the next index of the source and `after` = s as
 * this task knows it; the hub stores both or neither, and refuses (`fenced`) when its s is another.
 *
 * <p>Rows leave at once when the reader has nothing more at hand and nothing is under way; otherwise together with the
 * next acknowledgement, or when they are many. So a lone record leaves at once, and under load an append holds what
 * came during one sync.
 */
final class Appender implements DataWriter<InternalRow> {
  private static final long FULL_BYTES = 1 << 20;
  private static final long WAITING_BYTES_MAX = 8 << 20;
  private static final int UNDER_WAY_MAX = 4;
  private static final ThreadLocal<Appender> OF_THIS_TASK = new ThreadLocal<>();
  private final SinkOptions options;
  private final Record record;
  private final String run;
  private final Deque<Sent> underWay = new ArrayDeque<>();
  private Rows rows;
  private int sealed;
  private Call call;
  private HubError failure;
  private String producer;
  private LongSupplier position;
  private long stored = -1;
  private long sequence;

  /** An append on its way. */
  private record Sent(byte[] message, long sequence, long after) {}

  /** All that the driver need know: everything is stored. */
  private record Done() implements WriterCommitMessage {}

  /** `run`: in whose name results are stored once; null where they may come again. */
  Appender(SinkOptions options, String run) {
    this.options = options;
    this.record = options.record();
    this.run = run;
    this.rows = new Rows(record);
    OF_THIS_TASK.set(this);
  }

  /** The appender of the task that this thread runs; null when its sink is another. */
  static Appender ofThisTask() {
    return OF_THIS_TASK.get();
  }

  /**
   * The reader of this task says whom it reads, and how to ask for its position. The answer is the index up to which
   * results are stored, -1 where that is not known.
   */
  synchronized long attach(String stream, int partition, LongSupplier reading) throws IOException {
    position = reading;
    if (run != null) {
      producer = "spark/" + options.query() + "/" + run + "/" + stream + "/" + partition;
      stored = options.hub().producer(options.stream(), 0, producer);
      sequence = stored;
      if (stored < 0) {
        throw new HubError("fenced", "query " + options.query() + ": run " + run
            + " was replaced by another, or its results were forgotten. Only one driver may run a query");
      }
    }
    return stored;
  }

  /** All rows of records below `next` have been written. `isIdle`: the reader is about to wait. */
  void boundary(long next, boolean isIdle) throws IOException {
    synchronized (this) {
      sequence = next;
      sealed = rows.count();
      boolean isFull = rows.bytes() > FULL_BYTES && underWay.size() < UNDER_WAY_MAX;
      if (sealed > 0 && (isIdle && underWay.isEmpty() || isFull)) {
        send();
      }
    }
    await(() -> rows.bytes() <= WAITING_BYTES_MAX);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    synchronized (this) {
      rows.add(row, record.key(row));
      if (position != null) {
        return;
      }
      sealed = rows.count();  // no reader in this task: every row is a boundary
      if (underWay.isEmpty() || rows.bytes() > FULL_BYTES && underWay.size() < UNDER_WAY_MAX) {
        send();
      }
    }
    await(() -> rows.bytes() <= WAITING_BYTES_MAX);
  }

  /** Wait until something is so. The thread of the task calls this without the lock. */
  private void await(BooleanSupplier isSo) throws IOException {
    while (true) {
      synchronized (this) {
        if (failure == null) {
          if (isSo.getAsBoolean()) {
            return;
          }
          pause();
          continue;
        }
      }
      recover();
    }
  }

  private void pause() throws IOException {
    try {
      wait();
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while waiting for the hub");
    }
  }

  /** Append all rows, which are sealed. Without a connection they wait for the thread of the task to make one. */
  private void send() {
    Sent sent = new Sent(rows.message(metadata()), sequence, stored);
    underWay.add(sent);
    stored = sequence;
    rows = new Rows(record);
    sealed = 0;
    if (call == null && failure == null) {
      failure = HubError.unreachable("there is no connection yet");
    }
    if (failure == null) {
      call.send(sent.message, false);
    }
  }

  private byte[] metadata() {
    if (producer == null) {
      return null;
    }
    ObjectNode numbers = Hub.request().put("producer", producer).put("sequence", sequence).put("after", stored);
    return numbers.toString().getBytes(StandardCharsets.UTF_8);
  }

  /** In the network's thread: an acknowledgement, or the end. */
  private synchronized void took(Call from, byte[] message) {
    if (from != call) {
      return;
    }
    try {
      if (message == Call.END) {
        failure = from.error() == null ? HubError.unreachable("the hub ended the append") : from.error();
      } else {
        acknowledged(Proto.field(message, 1));
      }
    } catch (IOException malformed) {
      failure = new HubError("malformed", malformed.getMessage());
    }
    notifyAll();
  }

  private void acknowledged(byte[] metadata) throws IOException {
    if (metadata == null) {
      return;
    }
    JsonNode answer = Hub.JSON.readTree(metadata);
    JsonNode error = answer.path("error");
    if (error.hasNonNull("code")) {
      failure = new HubError(error.get("code").asText(), error.path("message").asText());
      return;
    }
    underWay.poll();
    if (underWay.isEmpty() && sealed > 0 && sealed == rows.count()) {
      send();
    }
  }

  /**
   * Connect again, and send again what the hub does not have. Throws what cannot pass, such as `fenced`. Without the
   * lock: the network's thread must never wait for a thread that waits for it.
   */
  private void recover() throws IOException {
    Hub.Patience patience = new Hub.Patience(options.hub());
    boolean isFirst = detach() == null;
    while (true) {
      HubError last = failureNow();
      if (!isFirst || !last.mayPass()) {
        patience.pause(last);
      }
      isFirst = false;
      try {
        long atHub = producer == null ? -1 : options.hub().producer(options.stream(), 0, producer);
        Call[] opened = new Call[1];
        opened[0] = options.hub().put(options.stream(), 0, Rows.SCHEMA, message -> took(opened[0], message));
        if (resume(opened[0], atHub)) {
          return;
        }
      } catch (HubError error) {
        detach();
        synchronized (this) {
          failure = error;
        }
      }
    }
  }

  private synchronized HubError failureNow() {
    return failure;
  }

  /** Let the connection go; the one that there was. */
  private synchronized Call detach() {
    Call old = call;
    call = null;
    if (old != null) {
      old.cancel();
    }
    return old;
  }

  private synchronized boolean resume(Call opened, long atHub) throws HubError {
    call = opened;
    if (producer != null) {
      dropStored(atHub);
    }
    failure = opened.isOver() ? HubError.unreachable("the hub ended the append") : null;
    if (failure == null) {
      underWay.forEach(sent -> opened.send(sent.message, false));
    }
    return failure == null;
  }

  /** What is under way and stored need not be sent again; what others stored means that they are in charge. */
  private void dropStored(long atHub) throws HubError {
    long known = underWay.isEmpty() ? stored : underWay.peek().after;
    while (known != atHub && !underWay.isEmpty()) {
      known = underWay.poll().sequence;
    }
    if (known != atHub) {
      throw new HubError("fenced", "producer " + producer + " is at sequence " + atHub + " and not at " + known
          + ": another run of this query stores its results. Only one driver may run a query");
    }
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    synchronized (this) {
      if (position != null) {
        sequence = position.getAsLong();
      }
      sealed = rows.count();
      if (sealed > 0) {
        send();
      }
    }
    await(underWay::isEmpty);
    synchronized (this) {
      if (call != null) {
        call.end();
        call = null;
      }
    }
    return new Done();
  }

  @Override
  public void abort() {
    detach();
  }

  @Override
  public void close() {
    if (OF_THIS_TASK.get() == this) {
      OF_THIS_TASK.remove();
    }
  }
}

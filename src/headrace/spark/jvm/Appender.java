package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
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
  private final boolean isOnce;
  private final Spread.Places places;
  private final Spread.Place only;
  private final Deque<Sent> underWay = new ArrayDeque<>();
  private Spread rows;
  private int sealed;
  private Call call;
  private HubError failure;
  private String producer;
  private String source;
  private int sourcePartition;
  private LongSupplier position;
  private long stored = -1;
  private long sequence;

  /** An append on its way. */
  private record Sent(byte[] message, long sequence, long after) {}

  /** All that the driver need know: everything is stored. */
  private record Done() implements WriterCommitMessage {}

  /** `run`: in whose name results are stored. `isSpread`: to several places, and not to one partition of one stream. */
  Appender(SinkOptions options, String run, boolean isOnce, boolean isSpread) {
    this.options = options;
    this.record = options.record();
    this.run = run;
    this.isOnce = isOnce;
    this.places = new Spread.Places(options, record);
    this.only = isSpread ? null : new Spread.Place(options.stream(), 0);
    this.rows = new Spread(record);
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
    source = stream;
    sourcePartition = partition;
    if (isOnce) {
      producer = "spark/" + options.query() + "/" + run + "/" + stream + "/" + partition;
      stored = storedAtHub();
      sequence = stored;
      if (stored < 0) {
        throw new HubError("fenced", "query " + options.query() + ": run " + run
            + " was replaced by another, or its results were forgotten. Only one driver may run a query");
      }
    }
    return stored;
  }

  /** Where the results end, as the hub has them; -1 where it has none in this name. */
  private long storedAtHub() throws IOException {
    if (only != null) {
      return options.hub().producer(options.stream(), 0, producer);
    }
    JsonNode sequence = options.hub().call("spark.append", spreadRequest(), new byte[0]).get("sequence");
    return sequence.isNull() ? -1 : sequence.asLong();
  }

  /** What every `spark.append` of this task says. */
  private ObjectNode spreadRequest() {
    ObjectNode request = Hub.request().put("query", options.query()).put("run", run)
        .put("partitions", options.partitions());
    return isOnce ? request.put("source", source).put("partition", sourcePartition) : request;
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
    Spread.Place place = only != null ? only : places.of(row);  // without the lock: it may ask the hub
    synchronized (this) {
      rows.add(place, row);
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
  private void send() throws IOException {
    Sent sent = new Sent(message(), sequence, stored);
    underWay.add(sent);
    stored = sequence;
    rows = new Spread(record);
    sealed = 0;
    if (call == null && failure == null) {
      failure = HubError.unreachable("there is no connection yet");
    }
    if (failure == null) {
      call.send(sent.message, false);
    }
  }

  private byte[] message() throws IOException {
    if (only == null) {
      ObjectNode request = spreadRequest();
      return Hub.rowsMessage(isOnce ? request.put("sequence", sequence).put("after", stored) : request, rows.stream());
    }
    ObjectNode numbers = Hub.request().put("producer", producer).put("sequence", sequence).put("after", stored);
    return rows.only().message(producer == null ? null : numbers.toString().getBytes(StandardCharsets.UTF_8));
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
        long atHub = producer == null ? -1 : storedAtHub();
        Call[] opened = new Call[1];
        Consumer<byte[]> listener = message -> took(opened[0], message);
        opened[0] = only == null ? options.hub().putInto("spark.append", listener)
            : options.hub().put(options.stream(), 0, listener);
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

package headrace.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A bounded range, columnar: sealed segments that this machine can open are mapped, everything else, the live tail
 * above all, comes over Flight. For one thread.
 *
 * <p>Invariant: `position` is the next index to hand out; every index of the range is handed out once and in order, or
 * the task fails and names the gap. Mapped files are held until the task ends: rows may point into them until then.
 */
final class PieceReader implements PartitionReader<ColumnarBatch> {
  private static final long SILENCE_MS_MAX = 300_000;
  private final Wanted wanted;
  private final Range range;
  private final List<Hub.SegmentFile> files;
  private final List<String> stored;
  private final Set<UTF8String> types;
  private final UTF8String stream;
  private final Hub.Patience patience;
  private final List<Segment> mapped = new ArrayList<>();
  private long position;
  private int file;
  private Segment segment;
  private int batch;
  private Call call;
  private long callEnd;
  private ColumnarBatch current;
  private long mappedRecords;
  private long sentRecords;
  private long bytes;

  PieceReader(Wanted wanted, Piece piece) {
    this.wanted = wanted;
    this.range = piece.range();
    this.files = piece.files();
    this.stored = wanted.stored();
    this.stream = UTF8String.fromString(range.stream());
    this.patience = new Hub.Patience(wanted.hub());
    this.position = range.start();
    this.types = wanted.typesAsStored();
  }

  @Override
  public boolean next() throws IOException {
    current = null;
    while (current == null && position < range.end()) {
      if (segment != null) {
        nextMapped();
      } else if (call != null) {
        nextSent();
      } else {
        choose();
      }
    }
    return current != null;
  }

  @Override
  public ColumnarBatch get() {
    return current;
  }

  /** Where to go on: in the file that holds the position, if it can be opened here, or at the hub. */
  private void choose() throws IOException {
    while (file < files.size() && files.get(file).next() <= position) {
      file++;
    }
    Hub.SegmentFile next = file < files.size() ? files.get(file) : null;
    callEnd = next == null ? range.end() : Math.min(range.end(), next.first());
    if (next != null && next.first() <= position) {
      try {
        segment = new Segment(next, range.stream(), range.partition());
        mapped.add(segment);
        batch = 0;
        skipOtherTypes(next);
        return;
      } catch (IOException notHere) {  // another machine, or sealed anew since: the hub has it all the same
        callEnd = Math.min(range.end(), next.next());
      }
    }
    openCall();
  }

  /** A file whose manifest says that it holds none of the types is not looked into. */
  private void skipOtherTypes(Hub.SegmentFile next) {
    Set<String> held = segment.manifest.types();
    if (types != null && held != null && held.stream().map(UTF8String::fromString).noneMatch(types::contains)) {
      segment = null;
      position = Math.min(range.end(), next.next());
    }
  }

  private void nextMapped() throws IOException {
    List<Manifest.Batch> batches = segment.manifest.batches();
    while (batch < batches.size() && batches.get(batch).first() + batches.get(batch).count() <= position) {
      batch++;
    }
    if (batch == batches.size()) {
      segment = null;
      return;
    }
    Manifest.Batch next = batches.get(batch);
    Frame frame;
    try {
      frame = segment.frame(batch++);
    } catch (IOException damage) {
      throw HubError.damaged(range.stream(), range.partition(), next.first(), next.first() + next.count() - 1,
          files.get(file).path());
    }
    int start = (int) (position - next.first());
    int end = (int) Math.min(next.count(), range.end() - next.first());
    if (start < 0 || frame.index(start) != position || frame.index(end - 1) != position + end - start - 1) {
      throw lost(position, next.first() + next.count() - 1);
    }
    position += end - start;
    mappedRecords += end - start;
    bytes += frame.bytes * (end - start) / frame.rows;
    handOut(frame, start, end);
  }

  private void openCall() throws IOException {
    try {
      call = wanted.hub().read(range.stream(), range.partition(), position, callEnd, stored, typesAtHub());
    } catch (HubError error) {
      patience.pause(error);
    }
  }

  /** The hub filters where it may also tell what is missing; otherwise the gap must be seen here. */
  private List<String> typesAtHub() {
    return wanted.failOnDataLoss() ? wanted.types() : null;
  }

  private void nextSent() throws IOException {
    byte[] message = call.next(SILENCE_MS_MAX);
    if (message == null) {
      ended();
      return;
    }
    Frame frame = Frame.of(message, stored);
    if (frame == null || frame.rows == 0) {
      return;
    }
    patience.renew();
    long last = frame.index(frame.rows - 1);
    if (typesAtHub() == null && wanted.failOnDataLoss()) {
      if (frame.index(0) != position) {
        throw lost(position, frame.index(0) - 1);
      }
      int gap = frame.firstGap();
      if (gap < frame.rows) {
        throw lost(position + gap, frame.index(gap) - 1);
      }
    }
    position = last + 1;
    sentRecords += frame.rows;
    bytes += frame.bytes;
    handOut(frame, 0, frame.rows);
  }

  private void ended() throws IOException {
    HubError error = call.isOver() ? call.error() : HubError.unreachable("nothing came for " + SILENCE_MS_MAX + " ms");
    call.cancel();
    call = null;
    if (error == null) {
      if (position < callEnd && typesAtHub() == null && wanted.failOnDataLoss()) {
        throw lost(position, callEnd - 1);
      }
      position = callEnd;
    } else if (error.code.equals("trimmed")) {
      throw HubError.lost(range.stream(), range.partition(), position, callEnd - 1, error.getMessage());
    } else {
      patience.pause(error);
    }
  }

  private HubError lost(long first, long last) {
    return HubError.lost(range.stream(), range.partition(), first, last, "the hub did not return them");
  }

  private void handOut(Frame frame, int start, int end) {
    ColumnarBatch all = frame.columns(wanted.schema(), stream, range.partition(), start, end);
    if (types == null || segment == null && typesAtHub() != null) {
      current = all;
      return;
    }
    boolean[] isWanted = frame.isOfTypes(types);
    int[] rows = IntStream.range(0, end - start).filter(row -> isWanted[start + row]).toArray();
    ColumnVector[] columns = new ColumnVector[all.numCols()];
    for (int number = 0; number < columns.length; number++) {
      columns[number] = new Column.Chosen(all.column(number), rows);
    }
    current = rows.length == 0 ? null : new ColumnarBatch(columns, rows.length);
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[] {
      Metrics.value(Metrics.MAPPED_RECORDS, mappedRecords), Metrics.value(Metrics.SENT_RECORDS, sentRecords),
      Metrics.value(Metrics.BYTES, bytes)
    };
  }

  @Override
  public void close() {
    if (call != null) {
      call.cancel();
    }
    mapped.clear();
  }
}

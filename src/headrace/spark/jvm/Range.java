package headrace.spark;

import java.io.Serializable;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.List;

/** Records `start` up to, not including, `end` of one stream partition. Immutable, so safe for all threads. */
record Range(String stream, int partition, long start, long end) implements Serializable {
  long count() {
    return end - start;
  }

  /** Cut ranges into about `tasks` equal pieces of at least `recordsMin` records, keeping their order. */
  static List<Range> split(List<Range> ranges, int tasks, long recordsMin) {
    long total = ranges.stream().mapToLong(Range::count).sum();
    long size = Math.max(Math.max(1, recordsMin), ceilDiv(total, Math.max(1, tasks)));
    List<Range> pieces = new ArrayList<>();
    for (Range range : ranges) {
      long count = Math.max(1, ceilDiv(range.count(), size));
      for (long number = 0; number < count; number++) {
        pieces.add(new Range(range.stream, range.partition, range.start + part(range.count(), number, count),
            range.start + part(range.count(), number + 1, count)));
      }
    }
    return pieces;
  }

  /** The ranges cut so that all of them together have at most `recordsMax` records; -1 for no limit. */
  static List<Range> shared(List<Range> goals, long recordsMax) {
    long backlog = goals.stream().mapToLong(Range::count).sum();
    if (recordsMax < 0 || backlog <= recordsMax) {
      return goals;
    }
    List<Range> shares = new ArrayList<>();
    long left = recordsMax;
    for (Range goal : goals) {
      long end = goal.start + part(goal.count(), recordsMax, backlog);
      Range share = new Range(goal.stream, goal.partition, goal.start, end);
      shares.add(share);
      left -= share.count();
    }
    for (int number = 0; number < shares.size(); number++) {
      Range share = shares.get(number);
      long extra = Math.min(left, goals.get(number).end - share.end);
      shares.set(number, new Range(share.stream, share.partition, share.start, share.end + extra));
      left -= extra;
    }
    return shares;
  }

  /** `count * number / of`, rounded down, without running over. */
  private static long part(long count, long number, long of) {
    return Math.multiplyHigh(count, number) == 0 && count * number >= 0
        ? count * number / of
        : BigInteger.valueOf(count).multiply(BigInteger.valueOf(number))
            .divide(BigInteger.valueOf(of)).longValueExact();
  }

  private static long ceilDiv(long count, long by) {
    return (count + by - 1) / by;
  }
}

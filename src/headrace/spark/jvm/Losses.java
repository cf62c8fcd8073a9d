package headrace.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Records that a query still had to read and that are gone. For one thread. */
final class Losses {
  private final List<HubError> found = new ArrayList<>();

  /** What may be missing of a stream that was deleted and created again: indexes go on where the old one ended. */
  void recreated(Hub.Stream state, Position.OfStream known) {
    for (int partition = 0; partition < Math.min(known.next().length, state.partitions()); partition++) {
      long first = state.first()[partition];
      if (first > known.next()[partition]) {
        found.add(HubError.lost(state.name(), partition, known.next()[partition], first - 1,
            "the stream was deleted and created again"));
      }
    }
  }

  /** Records that were read and that the hub does not have; the same again. */
  List<Range> vanished(List<Range> missing) {
    missing.forEach(range -> lose(range, range.end(), "they were read before, and the stream ends at " + range.start()
        + " now: the hub has another data directory, or an older copy of its own"));
    return missing;
  }

  /** The ranges as far as the hub still has them; what is missing is noted. */
  List<Range> clip(List<Range> ranges, List<Hub.Stream> states) {
    Map<String, Hub.Stream> byName = new HashMap<>();
    states.forEach(state -> byName.put(state.name(), state));
    List<Range> kept = new ArrayList<>();
    for (Range asked : ranges) {
      Hub.Stream state = byName.get(asked.stream());
      if (state == null || asked.partition() >= state.partitions()) {
        lose(asked, asked.end(), "the stream was deleted");
        continue;
      }
      long first = state.first()[asked.partition()];
      if (first > asked.start()) {
        lose(asked, Math.min(first, asked.end()), "the first index kept is " + first);
      }
      long start = Math.max(first, asked.start());
      if (asked.end() > start) {
        kept.add(new Range(asked.stream(), asked.partition(), start, asked.end()));
      }
    }
    return kept;
  }

  private void lose(Range asked, long end, String why) {
    found.add(HubError.lost(asked.stream(), asked.partition(), asked.start(), end - 1, why));
  }

  /** A loss is an error, unless the user said that it is not; then it is still said. */
  void complain(boolean isFatal) throws HubError {
    for (HubError loss : found) {
      if (isFatal) {
        throw loss;
      }
      System.err.println("headrace: " + loss.getMessage());
    }
    found.clear();
  }
}

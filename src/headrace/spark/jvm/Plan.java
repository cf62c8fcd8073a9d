package headrace.spark;

import java.util.List;

/**
 * What `Extensions` saw of a real-time plan: how many sources, the operators that may hold records back, whether it
 * keeps state, how many tasks run at once, and where it begins to read those sources that are ours. Immutable, so safe
 * for all threads.
 */
record Plan(int sources, List<String> holding, boolean hasState, int tasks, List<Ranges> starts) {
  /** How results are delivered: what was asked for, if this plan allows it, or what suits it. */
  String delivery(String asked) {
    if ("staged".equals(asked)) {
      throw BadOption.because("delivery=staged needs micro-batches: in real-time mode results leave before a batch "
          + "ends. Leave the option out");
    }
    String chosen = asked != null ? asked : hasState ? "direct" : "once";
    if (chosen.equals("once")) {
      checkOneByOne();
    }
    return chosen;
  }

  private void checkOneByOne() {
    if (sources != 1) {
      throw BadOption.because("delivery=once needs a query with one source; this one has " + sources
          + ". Use delivery=direct (at least once) or micro-batches (exactly once)");
    }
    if (starts.isEmpty()) {
      throw BadOption.because("delivery=once needs a source of format headrace: of no other is it known which records "
          + "have results. Use delivery=direct (at least once) or micro-batches");
    }
    if (!holding.isEmpty()) {
      throw BadOption.because("delivery=once needs a plan through which records pass one by one, and "
          + String.join(", ", holding) + " may hold them back. Use delivery=direct (at least once) or micro-batches "
          + "(exactly once)");
    }
  }

  /** Refuse to start where some partitions would never get a task, and so never be read. */
  void checkSlots(int slots, int others) {
    if (tasks + others > slots) {
      String held = others == 0 ? "" : ", other real-time queries hold " + others;
      throw BadOption.because("real-time mode runs all tasks of a query at once: this one has " + tasks + held
          + ", and there are " + slots + " slots. Use more cores (--master), or read fewer partitions");
    }
  }
}

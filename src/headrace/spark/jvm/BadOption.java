package headrace.spark;

/** An option, a DataFrame or a plan that cannot be meant. Immutable, so safe for all threads. */
final class BadOption extends IllegalArgumentException {
  private static final long serialVersionUID = 1L;

  BadOption(String option, String value, String expected) {
    super("BadOption: option '" + option + "' is " + (value == null ? "not given" : "'" + value + "'") + "; expected "
        + expected);
  }

  private BadOption(String text) {
    super("BadOption: " + text);
  }

  /** A mistake that is not in one option. */
  static BadOption because(String text) {
    return new BadOption(text);
  }
}

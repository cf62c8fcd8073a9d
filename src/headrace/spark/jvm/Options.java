package headrace.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Reading options: each is checked where the user can see the mistake. Only functions: safe for all threads. */
final class Options {
  private Options() {}

  static List<String> words(String text) {
    List<String> words = new ArrayList<>();
    for (String word : (text == null ? "" : text).split(",")) {
      if (!word.isBlank()) {
        words.add(word.strip());
      }
    }
    return words;
  }

  static boolean flag(Map<String, String> options, String name) {
    String value = options.getOrDefault(name, "true");
    if (!value.equals("true") && !value.equals("false")) {
      throw new BadOption(name, value, "one of true, false");
    }
    return value.equals("true");
  }

  static double number(Map<String, String> options, String name, double otherwise) {
    String text = options.get(name);
    try {
      double value = text == null ? otherwise : Double.parseDouble(text);
      if (value >= 0) {
        return value;
      }
    } catch (NumberFormatException notANumber) {
      throw new BadOption(name, text, "a number");
    }
    throw new BadOption(name, text, "a number that is not negative");
  }

  /** At least 1; `otherwise` when it is not given. */
  static long count(Map<String, String> options, String name, long otherwise) {
    String text = options.get(name);
    long value = text == null ? otherwise : index(name, text);
    if (text != null && value < 1) {
      throw new BadOption(name, text, "at least 1");
    }
    return value;
  }

  static long index(String name, String text) {
    try {
      long value = Long.parseLong(text.strip());
      if (value >= 0) {
        return value;
      }
    } catch (NumberFormatException notANumber) {
      // said below
    }
    throw new BadOption(name, text, "a whole number that is not negative");
  }

  /** The hub that options lead to, and how long it is waited for. */
  static Hub hub(Map<String, String> options) {
    return new Hub(Access.of(options), (long) (1000 * number(options, "hubWaitSeconds", Hub.WAIT_MS_DEFAULT / 1000.0)));
  }

  /** The option `stream`, or the path of `load` and `save`; null when neither is given. */
  static String stream(Map<String, String> options) {
    String stream = options.get("stream");
    String given = stream == null || stream.isEmpty() ? options.get("path") : stream;
    return given == null || given.isEmpty() ? null : given;
  }
}

package headrace.spark;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Map;

/**
 * Where a hub is, and what it asks of those who come: a token, and in `ca` the text of certificates, since tasks run on
 * machines that lack the file. Immutable, so safe for all threads. Neither is ever shown by `toString`.
 */
record Access(String address, String token, String ca) implements Serializable {
  private static final String ADDRESS_DEFAULT = "127.0.0.1:7070";
  private static final String PEM_BEGINS = "-----BEGIN";

  /**
   * From the options of a source or sink; otherwise from the session (`default.hub` and so on, which `equip()` sets);
   * otherwise from the environment. A token of the session goes to the session's hub and to no other.
   */
  static Access of(Map<String, String> options) {
    String common = options.get("default.hub");
    String hub = or(options.get("hub"), or(common, or(System.getenv("HEADRACE_HUB"), ADDRESS_DEFAULT)));
    boolean own = hub.equals(common);
    String token = options.containsKey("token") || !own ? options.get("token") : options.get("default.token");
    String ca = options.containsKey("ca") || !own ? options.get("ca") : options.get("default.ca");
    String authority = certificates(or(ca, System.getenv("HEADRACE_CA")));
    return new Access(hub, or(token, System.getenv("HEADRACE_TOKEN")), authority);
  }

  private static String or(String given, String otherwise) {
    return given == null || given.isEmpty() ? otherwise : given;
  }

  private static String certificates(String given) {
    if (given == null || given.isEmpty() || given.stripLeading().startsWith(PEM_BEGINS)) {
      return given;
    }
    try {
      return Files.readString(Path.of(given));
    } catch (IOException | InvalidPathException error) {
      throw new BadOption("ca", given, "a file with certificates in PEM (" + error + ")");
    }
  }

  boolean isTls() {
    return address.startsWith("grpc+tls://");
  }

  /** `host:port`, without what says how to speak to it. */
  String authority() {
    return address.substring(address.indexOf("://") < 0 ? 0 : address.indexOf("://") + 3);
  }

  String host() {
    String host = authority().substring(0, colon());
    return host.startsWith("[") && host.endsWith("]") ? host.substring(1, host.length() - 1) : host;
  }

  int port() {
    try {
      return Integer.parseInt(authority().substring(colon() + 1));
    } catch (NumberFormatException error) {
      throw new BadOption("hub", address, "host:port, or grpc+tls://host:port");
    }
  }

  private int colon() {
    int colon = authority().lastIndexOf(':');
    if (colon <= 0) {
      throw new BadOption("hub", address, "host:port, or grpc+tls://host:port");
    }
    return colon;
  }

  @Override
  public String toString() {
    return address;
  }
}

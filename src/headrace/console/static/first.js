// A new hub: the command that sends a first record, for each protocol, with this hub's own addresses.

import { call } from "./api.js";
import { command, curl } from "./dialogs.js";
import { h } from "./dom.js";

const STREAM = "hello";

const python = (...lines) => `python - <<'END'\n${lines.join("\n")}\nEND`;
const asynchronous = (imports, ...body) =>
  python("import asyncio", ...imports, "async def main():", ...body.map((line) => `    ${line}`), "asyncio.run(main())");

// A long line of curl in several, so that it can be read.
const cut = (text) => text.replaceAll(/ (http|--json)/g, " \\\n  $1");

// Listener, title, who uses it, and the command at its address.
const WAYS = [
  ["flight", "Command line", "headrace, over Arrow Flight", (at) => `headrace append ${STREAM} --create 'first record' \\\n  --hub ${at}`],
  [
    "flight",
    "Python",
    "the SDK, over Arrow Flight",
    (at) => python("import headrace", `with headrace.connect("${at}") as hub:`, `    hub.create("${STREAM}")`, `    hub.append("${STREAM}", [b"first record"])`),
  ],
  [
    "http",
    "HTTP",
    "any language",
    () =>
      cut(`${curl("stream.create", { stream: STREAM })} &&\n${curl("stream.append", { stream: STREAM, records: [{ text: "first record" }] })}`),
  ],
  [
    "wallaroo",
    "Wallaroo",
    "a source connector",
    (at) => `echo 'first record' |\n  headrace connect lines --stream ${STREAM} --to ${at}`,
  ],
  [
    "ockam",
    "Ockam",
    "a publisher",
    (at) =>
      asynchronous(
        ["from headrace.protocols.ockam.client import Publisher"],
        `async with Publisher("${at}", "${STREAM}") as publisher:`,
        '    await publisher.publish(b"first record")',
      ),
  ],
  [
    "http",
    "FutoIn",
    "JSON events; without TLS, set futoin.insecure",
    () =>
      asynchronous(
        ["from headrace.protocols.futoin.client import Client"],
        `address = "${location.origin.replace("http", "ws")}/futoin/${STREAM}"`,
        "async with await Client.connect(address) as client:",
        '    await client.add("HELLO", {"text": "first record"})',
      ),
  ],
  [
    "ignite",
    "Perper",
    "an Ignite thin client",
    (at) => {
      const [host, port] = [at.slice(0, at.lastIndexOf(":")), at.slice(at.lastIndexOf(":") + 1)];
      return asynchronous(
        [
          "from headrace.protocols.perper.ignite import (",
          "    binary, client, configuration)",
        ],
        "ignite = await client.IgniteClient.connect(",
        `    "${host}", ${port})`,
        "# a cache that is a stream; then put if absent",
        `cache = configuration.Configuration({0: "${STREAM}", 200: []})`,
        "await ignite.request(1054, cache)",
        'item = binary.encode_string("first record")',
        "key = binary.encode_long(0)",
        `await ignite.request(1002, key, item, cache="${STREAM}")`,
        "await ignite.close()",
      );
    },
  ],
  ["flight", "AMBROSIA", "an immortal: its inbox is a stream", (at) => `headrace immortal register ${STREAM} --hub ${at}`],
];

export async function firstRecord() {
  const { listeners } = await call("hub.info");
  return h(
    "section",
    { class: "first", "aria-label": "Send your first record" },
    h("h2", {}, "Send your first record"),
    h("p", { class: "quiet" }, "This hub has no streams yet. Any of these creates one, and it appears here."),
    h(
      "div",
      { class: "ways" },
      WAYS.filter(([listener]) => listeners[listener]).map(([listener, title, who, line]) =>
        h(
          "section",
          { class: "card", "data-way": title },
          h("h3", {}, h("b", {}, title), ` ${who}`),
          command(line(listeners[listener]), true),
        ),
      ),
    ),
  );
}

// Dead letters: streams named <stream>.dead, with the reason that each record came there.

import { call } from "./api.js";
import { ask, attempt, command, line } from "./dialogs.js";
import { allow, asText, count, decode, empty, fill, h, head, hex, moment, number, streamLink } from "./dom.js";
import { table } from "./table.js";

const SUFFIX = ".dead";
const STREAMS = 50;

export async function deadPage(root, parts, view) {
  const body = h("div");
  fill(
    root,
    head(
      "Dead letters",
      "Records that a pipeline could not process wait in STREAM.dead, with the reason, until someone sends them again.",
    ),
    body,
  );
  let shown = null;

  async function refresh() {
    const page = await call("console.streams", { text: `*${SUFFIX}`, limit: STREAMS });
    const state = JSON.stringify(page.rows.map((row) => [row.name, row.first, row.next]));
    if (state === shown) return;
    const sections = await Promise.all(
      page.rows.map(async (row) => section(row, await call("dead.list", { stream: row.name }))),
    );
    fill(
      body,
      sections.length
        ? sections
        : h(
            "div",
            { class: "card" },
            empty(
              "Nothing has failed.",
              "headrace pipeline dead-letter SOURCE --schema … sends what it cannot read to SOURCE.dead.",
            ),
          ),
    );
    shown = state;
  }

  function section(row, letters) {
    const some = letters.length < row.records;
    const again = h("button", { type: "button", onclick: () => redrive(row, letters) }, some ? `Send the oldest ${number(letters.length)} again` : "Send all again");
    allow(again, letters.length > 0);
    return h(
      "section",
      { class: "card", "aria-label": `Letters in ${row.name}` },
      h(
        "div",
        { class: "bar" },
        h("h2", {}, streamLink(row.name)),
        h("span", { class: "quiet" }, count(row.records, "letter")),
        h("span", { class: "push" }),
        again,
      ),
      table(
        [
          { title: "Index", number: true, place: true, cell: (one) => number(one.index) },
          { title: "Time (UTC)", cell: (one) => h("span", { class: "still" }, moment(one.time_us)) },
          { title: "Reason", wrap: true, cell: (one) => one.reason },
          { title: "Belongs to", cell: (one) => streamLink(one.stream) },
          { title: "Type", minor: true, cell: (one) => one.type ?? "" },
          {
            title: "Payload",
            wrap: true,
            cell: (one) => {
              const data = decode(one.payload);
              return h("code", {}, (asText(data) ?? hex(data)).slice(0, 200));
            },
          },
        ],
        letters,
        { label: row.name, empty: empty("All of them have been sent again.") },
      ),
    );
  }

  async function redrive(row, letters) {
    const places = [...new Set(letters.map((one) => one.stream))].join(", ");
    const request = { stream: row.name, before: letters.at(-1).index + 1 };
    const sure = await ask(
      `Send again to ${places}`,
      [
        h(
          "p",
          {},
          `${count(letters.length, "record is", "records are")} appended to ${places} as they were, and leave ${row.name} in the same step.`,
        ),
        command(line(["pipeline", "redrive", row.name])),
      ],
      { ok: "Send again" },
    );
    if (!sure) return;
    await attempt(
      () => call("dead.redrive", request),
      `Sent ${count(letters.length, "record")} again.`,
    );
    await view.now();
  }
  await view.every(refresh);
}

// Who reads what, how far behind they are, and how to move them.

import { call } from "./api.js";
import { ask, attempt } from "./dialogs.js";
import { count, empty, fill, h, head, number, pill, seconds, streamLink } from "./dom.js";
import { liveTable } from "./table.js";

const MOVING_S = 5;

export function cursorState(row) {
  if (row.holds) return h("span", { title: "It keeps records from being removed; nobody reads with it." }, pill("holds"));
  if (row.stuck)
    return [pill("stopped", "bad"), " ", `${count(row.lag, "record waits", "records wait")}: its consumer is gone or slow.`];
  if (!row.lag) return pill("up to date", "good");
  return row.age_s < MOVING_S ? pill("reading", "good") : pill("behind", "warn");
}

export async function cursorsPage(root, parts, view) {
  const search = h("input", {
    type: "search",
    placeholder: "Cursor or stream",
    "aria-label": "Filter cursors",
    value: view.shown.text ?? "",
    oninput: () => {
      view.keep({ text: search.value });
      view.now();
    },
  });
  const rows = liveTable(
    [
      { title: "Cursor", cell: (row) => row.name, wrap: true },
      { title: "Stream", cell: (row) => streamLink(row.stream) },
      { title: "Partition", number: true, minor: true, cell: (row) => row.partition },
      { title: "Next index", number: true, cell: (row) => number(row.index) },
      { title: "Behind", number: true, cell: (row) => count(row.lag, "record") },
      { title: "Last moved", number: true, cell: (row) => `${seconds(row.age_s)} ago` },
      { title: "State", wrap: true, cell: cursorState },
      {
        title: "",
        cell: (row) =>
          h(
            "span",
            { class: "actions" },
            h(
              "button",
              { type: "button", onclick: () => reset(row), "aria-label": `Reset ${row.name} of ${row.stream}` },
              "Reset",
            ),
          ),
      },
    ],
    {
      label: "Cursors",
      key: (row) => `${row.stream}/${row.partition}/${row.name}`,
      empty: empty(
        "No cursors.",
        "A consumer that registers or saves its position has one: headrace tail orders --cursor mine.",
      ),
    },
  );
  fill(
    root,
    head("Cursors", "A cursor is a consumer's durable position: the next record that it will read."),
    h("div", { class: "bar" }, search),
    h("div", { class: "card" }, rows.element),
  );

  async function refresh() {
    rows.update(await call("console.cursors", { text: search.value }));
  }

  async function reset(row) {
    const to = h(
      "select",
      { name: "to", "aria-label": "Where to", onchange: preview },
      h("option", { value: "earliest" }, "the earliest record"),
      h("option", { value: "latest" }, "the end"),
      h("option", { value: "index" }, "an index"),
      h("option", { value: "time" }, "a time (UTC)"),
    );
    const index = h("input", {
      name: "index",
      type: "number",
      min: 0,
      value: row.index,
      "aria-label": "Index",
      oninput: preview,
    });
    const time = h("input", { name: "time", type: "datetime-local", step: 1, "aria-label": "Time", oninput: preview });
    const shown = h("p", { role: "status", "data-preview": "" }, "…");
    const target = () =>
      to.value === "index"
        ? Number(index.value)
        : to.value === "time"
          ? { time_us: Date.parse(`${time.value}Z`) * 1000 }
          : to.value;
    const request = (dry) => ({
      cursor: row.name,
      stream: row.stream,
      partition: row.partition,
      to: target(),
      dry_run: dry,
    });
    async function preview() {
      index.hidden = to.value !== "index";
      time.hidden = to.value !== "time";
      if (to.value === "time" && !time.value) {
        shown.textContent = "Choose a time.";
        return;
      }
      try {
        const [move] = await call("cursor.reset", request(true));
        shown.textContent = `From ${number(move.before ?? 0)} to ${number(move.after)}: ${number(move.read_again)} records are read again, ${number(move.skipped)} are skipped.`;
      } catch (error) {
        shown.textContent = error.message;
      }
    }
    preview();
    const answer = await ask(
      `Reset ${row.name} of ${row.stream}`,
      [h("div", { class: "bar" }, "Move to", to, index, time), shown],
      { ok: "Move the cursor", danger: true },
    );
    if (!answer) return;
    await attempt(() => call("cursor.reset", request(false)), `Moved ${row.name}.`);
    await view.now();
  }

  await view.every(refresh);
}

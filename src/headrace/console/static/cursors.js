// Who reads what, how far behind they are, and how to move them.

import { call } from "./api.js";
import { ask, attempt, choice, command, field, form, line, menu } from "./dialogs.js";
import { ago, count, empty, fill, h, head, number, pill, searchField, streamLink } from "./dom.js";
import { liveTable } from "./table.js";

const MOVING_S = 5;

const why = ({ readers }) =>
  readers ? `${count(readers, "session reads", "sessions read")} this stream: slow, or busy with a record.` : "No session that reads this stream is open.";

export function cursorState(row) {
  if (row.holds) return h("span", { title: "It keeps records from being removed; no one reads with it." }, pill("holds"));
  if (row.stuck) return [pill("stopped", "bad"), " ", `${count(row.lag, "record waits", "records wait")}. ${why(row)}`];
  if (!row.lag) return pill("up to date", "good");
  return row.age_s < MOVING_S ? pill("reading", "good") : [pill("behind", "warn"), " ", h("span", { class: "quiet" }, why(row))];
}

export async function cursorsPage(root, parts, view) {
  const search = searchField(view, "Filter cursors", "Cursor or stream");
  const rows = liveTable(
    [
      { title: "Cursor", cell: (row) => row.name, wrap: true },
      { title: "Stream", cell: (row) => streamLink(row.stream), wrap: true },
      { title: "Partition", number: true, place: true, minor: true, cell: (row) => row.partition },
      { title: "Next index", number: true, place: true, cell: (row) => number(row.index) },
      { title: "Behind", number: true, cell: (row) => count(row.lag, "record") },
      { title: "Last moved", number: true, cell: (row) => ago(row.age_s) },
      { title: "State", wrap: true, cell: cursorState },
      {
        title: "",
        cell: (row) =>
          h(
            "span",
            { class: "actions" },
            h(
              "button",
              { type: "button", class: "quiet-button", onclick: () => reset(row), "aria-label": `Reset ${row.name} of ${row.stream}` },
              "Reset",
            ),
            menu(`What else to do with ${row.name} of ${row.stream}`, [{ title: "Forget…", danger: true, on: () => forget(row) }]),
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
    const where = choice("Move to", "to", [
      ["earliest", "the earliest record"],
      ["latest", "the end"],
      ["index", "an index"],
      ["time", "a time (UTC)"],
    ]);
    const index = field("Index", "index", { type: "number", min: 0, value: row.index });
    const time = field("Time (UTC)", "time", { type: "datetime-local", step: 1 });
    const target = (values) =>
      values.to === "index"
        ? Number(values.index)
        : values.to === "time"
          ? { time_us: Date.parse(`${values.time}Z`) * 1000 }
          : values.to;
    const request = (values, dry) => ({ cursor: row.name, stream: row.stream, partition: row.partition, to: target(values), dry_run: dry });
    const said = (values) => (values.to === "index" ? values.index : values.to === "time" ? `${values.time}Z` : values.to);
    const answer = await ask(
      `Reset ${row.name} of ${row.stream}`,
      form(
        [where, index, time],
        (values) => line(["cursor", "reset", row.name, row.stream], { to: said(values), partition: row.partition }),
        async (values) => {
          index.hidden = values.to !== "index";
          time.hidden = values.to !== "time";
          if (values.to === "time" && !values.time) return "Choose a time.";
          const [move] = await call("cursor.reset", request(values, true));
          return `From ${number(move.before ?? 0)} to ${number(move.after)}: ${number(move.read_again)} records are read again, ${number(move.skipped)} are skipped.`;
        },
      ),
      { ok: "Move the cursor", danger: true },
    );
    if (!answer) return;
    await attempt(() => call("cursor.reset", request(answer, false)), `Moved ${row.name}.`);
    await view.now();
  }

  async function forget(row) {
    const holds = row.lag ? `${count(row.lag, "record")} that it has not read may be removed, unless something else holds them.` : "It has read everything.";
    const sure = await ask(
      `Forget ${row.name} of ${row.stream}`,
      [
        h("p", {}, `Its position is lost, and it holds nothing back any more. ${holds} If its consumer comes back, it starts where a new one would.`),
        command(line(["cursor", "delete", row.name, row.stream], { partition: row.partition })),
      ],
      { ok: "Forget the cursor", danger: true },
    );
    if (!sure) return;
    await attempt(() => call("cursor.delete", { cursor: row.name, stream: row.stream, partition: row.partition }), `Forgot ${row.name}.`);
    await view.now();
  }

  await view.every(refresh);
}

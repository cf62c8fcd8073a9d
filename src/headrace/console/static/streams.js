// All streams, a page at a time.

import { call } from "./api.js";
import { ask, attempt, choice, field, menu } from "./dialogs.js";
import { bytes, count, empty, fill, h, head, number, streamLink } from "./dom.js";
import { liveTable } from "./table.js";

const ROWS = 100;

export async function streamsPage(root, parts, view) {
  const asked = { text: "", kind: "stream", order: "name", descending: false, offset: 0, limit: ROWS };
  const search = h("input", {
    type: "search",
    placeholder: "Name, part of it, or a pattern",
    "aria-label": "Filter streams",
    oninput: () => {
      asked.text = search.value;
      asked.offset = 0;
      view.now();
    },
  });
  const kind = h(
    "select",
    {
      "aria-label": "Kind",
      onchange: () => {
        const [named, own] = kind.value.split("+");
        Object.assign(asked, { kind: named, all: own !== undefined, offset: 0 });
        view.now();
      },
    },
    h("option", { value: "stream" }, "Streams"),
    h("option", { value: "table" }, "Tables"),
    h("option", { value: "stream+own" }, "Streams, with the hub's own"),
    h("option", { value: "table+own" }, "Tables, with the hub's own"),
  );
  const places = h("div", { class: "bar" });
  const sort = {
    by: "name",
    descending: false,
    on: (order) => {
      asked.descending = asked.order === order && !asked.descending;
      asked.order = order;
      view.now();
    },
  };
  const none = h("div", {});
  const rows = liveTable(
    [
      { title: "Name", sort: "name", wrap: true, cell: (row) => streamLink(row.name) },
      { title: "Records", number: true, sort: "records", cell: (row) => number(row.records) },
      { title: "Size", number: true, sort: "bytes", cell: (row) => bytes(row.bytes) },
      { title: "Records/s", number: true, sort: "rate", cell: (row) => number(row.rate) },
      { title: "Index", number: true, minor: true, cell: (row) => `${number(row.first)} to ${number(row.next)}` },
      { title: "Partitions", number: true, least: true, cell: (row) => row.partitions },
      {
        title: "Writers",
        number: true,
        minor: true,
        cell: (row) =>
          h("span", { title: `${count(row.writers, "open session has", "open sessions have")} written` }, row.writers),
      },
      {
        title: "Readers",
        number: true,
        sort: "cursors",
        cell: (row) =>
          h(
            "span",
            { title: `${count(row.cursors, "cursor")}, ${count(row.readers, "open session")}` },
            Math.max(row.cursors, row.readers),
          ),
      },
      { title: "Behind", number: true, cell: (row) => (row.cursors ? number(row.lag) : "–") },
      {
        title: "Kept",
        minor: true,
        cell: (row) => h("span", { class: row.retention === "for ever" ? "still" : null }, row.retention),
      },
      {
        title: "",
        cell: (row) =>
          menu(`What to do with ${row.name}`, [
            { title: "Trim…", on: () => trim(row) },
            { title: "Delete…", danger: true, on: () => remove(row) },
          ]),
      },
    ],
    { label: "Streams", key: (row) => row.name, sort, empty: none },
  );
  fill(
    root,
    head(
      "Streams",
      "A stream keeps records in order; every protocol reads and writes the same ones.",
      h("button", { class: "main", type: "button", onclick: create }, "Create a stream"),
    ),
    h("div", { class: "bar" }, search, kind, h("span", { class: "push" }), places),
    h("div", { class: "card" }, rows.element),
  );

  async function refresh() {
    const page = await call("console.streams", asked);
    Object.assign(sort, { by: asked.order, descending: (asked.order !== "name") !== asked.descending });
    fill(
      none,
      asked.text
        ? empty("No stream fits.", "A * stands for anything: orders.*")
        : empty(
            "No streams yet.",
            "Create one, or let a producer do it: most protocols create the stream that they write to.",
          ),
    );
    rows.update(page.rows);
    const step = (by) => () => {
      asked.offset += by;
      view.now();
    };
    fill(
      places,
      h("button", { type: "button", disabled: asked.offset === 0, onclick: step(-ROWS) }, "Previous"),
      h(
        "span",
        { class: "quiet" },
        page.total
          ? `${number(asked.offset + 1)} to ${number(Math.min(asked.offset + ROWS, page.total))} of ${number(page.total)}`
          : "none",
      ),
      h("button", { type: "button", disabled: asked.offset + ROWS >= page.total, onclick: step(ROWS) }, "Next"),
    );
  }

  async function create() {
    const answer = await ask(
      "Create a stream",
      [
        field("Name", "name", { required: true }),
        field("Partitions", "partitions", { type: "number", min: 1, value: 1, required: true }),
        field("Keep for so many hours (empty: for ever)", "hours", { type: "number", min: 0, step: "any" }),
        field("Keep so many MiB for each partition (empty: all)", "size", { type: "number", min: 1 }),
        choice("Forget what all cursors have read", "cursors", [
          ["no", "no"],
          ["yes", "yes"],
        ]),
      ],
      { ok: "Create" },
    );
    if (!answer) return;
    const options = { retention_cursors: answer.cursors === "yes" };
    if (answer.hours) options.retention_age_s = Number(answer.hours) * 3600;
    if (answer.size) options.retention_bytes = Number(answer.size) * 1024 * 1024;
    await attempt(
      () =>
        call("stream.create", { stream: answer.name, partitions: Number(answer.partitions), options, exist_ok: false }),
      `Created ${answer.name}.`,
    );
    await view.now();
  }

  async function trim(row) {
    if (await trimStream(row.name)) await view.now();
  }
  async function remove(row) {
    if (await deleteStream(row.name)) await view.now();
  }
  await view.every(refresh);
}

async function looked(stream) {
  let seen = null;
  await attempt(async () => {
    seen = await call("console.stream", { stream });
  });
  return seen;
}

// Forget old records, after saying how many and who still needs them. Whether it was done.
export async function trimStream(stream) {
  const seen = await looked(stream);
  if (!seen) return false;
  const partition = choice(
    "Partition",
    "partition",
    seen.bounds.map((_, at) => [at, String(at)]),
  );
  const before = field("First index to keep", "before", { type: "number", required: true });
  const shown = h("p", { role: "status", "data-preview": "" });
  const chosen = () => Number(partition.querySelector("select").value);
  const input = before.querySelector("input");
  function preview() {
    const [first, next] = seen.bounds[chosen()];
    const keep = Math.min(Math.max(Number(input.value), first), next);
    const late = seen.cursors.filter((one) => one.partition === chosen() && one.index < keep);
    shown.textContent = `${count(keep - first, "record")} of ${number(next - first)} go, and cannot be brought back.${late.length ? ` Not read yet by ${late.map((one) => one.name).join(", ")}.` : ""}`;
  }
  function choose() {
    const [first, next] = seen.bounds[chosen()];
    Object.assign(input, { min: first, max: next, value: first });
    preview();
  }
  partition.addEventListener("change", choose);
  partition.hidden = seen.bounds.length === 1;
  input.addEventListener("input", preview);
  choose();
  const answer = await ask(`Trim ${stream}`, [partition, before, shown], { ok: "Trim", danger: true });
  return (
    Boolean(answer) &&
    attempt(
      () => call("stream.trim", { stream, partition: Number(answer.partition), before: Number(answer.before) }),
      `Trimmed ${stream}.`,
    )
  );
}

// Remove a stream for good, after its name was typed. Whether it was done.
export async function deleteStream(stream) {
  const seen = await looked(stream);
  if (!seen) return false;
  const { row, cursors, writers } = seen;
  const users = [
    writers.length ? `written by ${count(writers.length, "open session")}` : null,
    cursors.length
      ? `read by ${cursors
          .map((one) => one.name)
          .slice(0, 5)
          .join(", ")}`
      : null,
  ]
    .filter(Boolean)
    .join(", ");
  const answer = await ask(
    `Delete ${stream}`,
    [
      h(
        "p",
        {},
        `All ${count(row.records, "record")} (${bytes(row.bytes)}), its cursors and checkpoints go, and cannot be brought back.${users ? ` It is ${users}.` : ""}`,
      ),
      field("Type its name to confirm", "name", { required: true }),
    ],
    {
      ok: "Delete",
      danger: true,
      check: (values) => (values.name === stream ? null : "The name is not the same; nothing was deleted."),
    },
  );
  return Boolean(answer) && attempt(() => call("stream.delete", { stream }), `Deleted ${stream}.`);
}

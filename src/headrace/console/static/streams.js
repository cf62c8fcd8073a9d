// All streams, a page at a time.

import { call } from "./api.js";
import { ask, attempt, choice, command, field, form, line, menu } from "./dialogs.js";
import { bytes, count, empty, fill, h, head, json, number, searchField, streamLink } from "./dom.js";
import { liveTable, pager } from "./table.js";

const ROWS = 100;

export async function streamsPage(root, parts, view) {
  const asked = { text: view.shown.text ?? "", order: view.shown.order ?? "name", descending: Boolean(view.shown.turned), offset: 0, limit: ROWS, all: Boolean(view.shown.all) };
  const keep = () => view.keep({ order: asked.order === "name" ? null : asked.order, turned: asked.descending ? 1 : null, all: asked.all ? 1 : null });
  const search = searchField(view, "Filter streams", "Name, part of it, or a pattern", (text) => {
    Object.assign(asked, { text, offset: 0 });
    view.now();
  });
  const kind = h(
    "select",
    {
      "aria-label": "Which streams",
      value: asked.all ? "all" : "",
      onchange: () => {
        Object.assign(asked, { all: kind.value === "all", offset: 0 });
        keep();
        view.now();
      },
    },
    h("option", { value: "" }, "Without the hub's own"),
    h("option", { value: "all" }, "Including the hub's own"),
  );
  const places = pager(ROWS, "stream", (offset) => {
    asked.offset = offset;
    view.now();
  });
  const sort = {
    by: "name",
    descending: false,
    on: (order) => {
      asked.descending = asked.order === order && !asked.descending;
      asked.order = order;
      keep();
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
            { title: "Change options…", on: () => editOptions(row.name).then(() => view.now()) },
            { title: "Trim…", on: () => trim(row) },
            { title: "Delete…", danger: true, on: () => remove(row) },
          ]),
      },
    ],
    { label: "Streams", key: (row) => row.name, stamp: (row) => json(row), sort, empty: none },
  );
  fill(
    root,
    head(
      "Streams",
      "A stream keeps records in order; every protocol reads and writes the same ones.",
      h("button", { class: "main", type: "button", onclick: create }, "Create a stream"),
    ),
    h("div", { class: "bar" }, search, kind, places.element),
    h("div", { class: "card" }, rows.element),
  );

  async function refresh() {
    const page = await call("console.streams", asked);
    Object.assign(sort, { by: asked.order, descending: (asked.order !== "name") !== asked.descending });
    fill(
      none,
      asked.text
        ? empty("No stream matches.", "A * stands for anything: orders.*")
        : empty(
            "No streams yet.",
            "Create one, or let a producer do it: most protocols create the stream that they write to.",
          ),
    );
    rows.update(page.rows);
    places.update(asked.offset, page.total);
  }

  async function create() {
    const answer = await ask(
      "Create a stream",
      form(
        [
          field("Name", "name", { required: true }),
          field("Partitions", "partitions", { type: "number", min: 1, value: 1, required: true }),
          field("Hours to keep records (empty: forever)", "hours", { type: "number", min: 0, step: "any" }),
          field("MiB to keep in each partition (empty: all)", "size", { type: "number", min: 1 }),
          choice("Forget what all cursors have read", "cursors", [
            ["no", "no"],
            ["yes", "yes"],
          ]),
        ],
        (values) =>
          line(["stream", "create", values.name || "NAME"], {
            partitions: values.partitions === "1" ? null : values.partitions,
            "retain-age": values.hours && `${values.hours}h`,
            "retain-bytes": values.size && `${values.size}MiB`,
            "retain-cursors": values.cursors === "yes",
            new: true,
          }),
      ),
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

// How long records stay, and when they are acknowledged. Whether something was changed.
export async function editOptions(stream) {
  const seen = await looked(stream);
  if (!seen) return false;
  const now = seen.options;
  const value = (answer) => {
    const options = { ...now, retention_cursors: answer.cursors === "yes" };
    for (const [name, unit] of [["retention_age_s", 3600], ["retention_bytes", 1048576], ["max_hold_s", 3600]]) {
      if (answer[name]) options[name] = Number(answer[name]) * unit;
      else delete options[name];
    }
    return options;
  };
  const holding = seen.cursors.filter((one) => one.lag || one.holds);
  const body = form(
    [
      field("Hours to keep records (empty: forever)", "retention_age_s", { type: "number", min: 0, step: "any", value: now.retention_age_s ? now.retention_age_s / 3600 : "" }),
      field("MiB to keep in each partition (empty: all)", "retention_bytes", { type: "number", min: 0, step: "any", value: now.retention_bytes ? now.retention_bytes / 1048576 : "" }),
      choice("Forget what all cursors have read", "cursors", [["no", "no"], ["yes", "yes"]], { value: now.retention_cursors ? "yes" : "no" }),
      field("Hours to wait for slow cursors (empty: as long as it takes)", "max_hold_s", { type: "number", min: 0, step: "any", value: now.max_hold_s ? now.max_hold_s / 3600 : "" }),
    ],
    (values) =>
      line(["stream", "set", stream], {
        "retain-age": values.retention_age_s ? `${values.retention_age_s}h` : "off",
        "retain-bytes": values.retention_bytes ? `${values.retention_bytes}MiB` : "off",
        "max-hold": values.max_hold_s ? `${values.max_hold_s}h` : "off",
        [values.cursors === "yes" ? "retain-cursors" : "no-retain-cursors"]: true,
      }),
    (values) =>
      [
        values.retention_age_s || values.retention_bytes || values.cursors === "yes"
          ? "Records past this are removed with the next sweep, and cannot be brought back."
          : "Nothing is removed.",
        holding.length && !values.max_hold_s ? `${count(holding.length, "cursor still holds", "cursors still hold")} records: what they need stays.` : "",
      ].join(" "),
  );
  const answer = await ask(`Options of ${stream}`, body, { ok: "Change" });
  return Boolean(answer) && attempt(() => call("stream.set-options", { stream, options: value(answer) }), `Changed ${stream}.`);
}

// More partitions; there are never fewer. Whether it was done.
export async function growStream(stream) {
  const seen = await looked(stream);
  if (!seen) return false;
  const least = seen.row.partitions + 1;
  const answer = await ask(
    `More partitions for ${stream}`,
    form(
      [
        h("p", {}, `It has ${seen.row.partitions}. A stream never gets fewer, and records stay in the partition that they are in.`),
        field("Partitions", "partitions", { type: "number", min: least, value: least, required: true }),
      ],
      (values) => line(["stream", "grow", stream, values.partitions]),
    ),
    { ok: "Grow" },
  );
  return Boolean(answer) && attempt(() => call("stream.grow", { stream, partitions: Number(answer.partitions) }), `Grew ${stream}.`);
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
  const told = h("div", {});
  const chosen = () => Number(partition.querySelector("select").value);
  const input = before.querySelector("input");
  function preview() {
    const [first, next] = seen.bounds[chosen()];
    const keep = Math.min(Math.max(Number(input.value), first), next);
    const late = seen.cursors.filter((one) => one.partition === chosen() && one.index < keep);
    fill(told, command(line(["stream", "trim", stream, keep], { partition: chosen() || null })));
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
  const answer = await ask(`Trim ${stream}`, [partition, before, shown, told], { ok: "Trim", danger: true });
  return (
    Boolean(answer) &&
    attempt(
      () => call("stream.trim", { stream, partition: Number(answer.partition), before: Number(answer.before) }),
      `Trimmed ${stream}.`,
    )
  );
}

// Have the connectors of a stream send again what they have sent. Whether it was done.
export async function rewindStream(stream) {
  const point = (values) => (values.from === "start" ? null : Number(values.point));
  const at = field("The last message id that counts as stored", "point", { type: "number", min: 0, value: 0 });
  const answer = await ask(
    `Send ${stream} again`,
    form(
      [
        choice("From", "from", [["start", "the beginning"], ["point", "after a message id"]]),
        at,
        choice("Connections of version 3", "how", [["restart", "are told to start over"], ["close", "are closed"]]),
      ],
      (values) => line(["stream", "rewind", stream], { "to-start": values.from === "start", to: values.from === "start" ? null : values.point, close: values.how === "close" }),
      (values) => {
        at.hidden = values.from === "start";
        return "Wallaroo connectors of this stream send again what comes after it. Records stay where they are: what is sent again is appended again.";
      },
    ),
    { ok: "Send again", danger: true },
  );
  return Boolean(answer) && attempt(() => call("stream.rewind", { stream, point: point(answer), how: answer.how }), `The connectors of ${stream} send again.`);
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
      command(line(["stream", "delete", stream])),
    ],
    {
      ok: "Delete",
      danger: true,
      check: (values) => (values.name === stream ? null : "The names do not match; nothing was deleted."),
    },
  );
  return Boolean(answer) && attempt(() => call("stream.delete", { stream }), `Deleted ${stream}.`);
}

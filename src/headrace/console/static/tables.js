// Tables, and the entries of one: keys and values as text, JSON or bytes.

import { call } from "./api.js";
import { ask, attempt, command, curl, field, form, line, menu, NOT_HEX, note } from "./dialogs.js";
import { asText, bytes, count, decode, empty, encode, fill, h, head, hex, isReadable, json, number, place, readable, searchField, unhex, utf8 } from "./dom.js";
import { liveTable, pager } from "./table.js";

const ROWS = 100;

const shown = (base64) => readable(decode(base64));
// What a protocol reads in bytes that are no text stands for them; the bytes are in the title, and where they are changed.
const cell = (base64, words) => [
  h("code", { title: words || !isReadable(decode(base64)) ? `hex ${short(hex(decode(base64)))}` : null }, short(words?.text ?? shown(base64))),
  words ? [" ", h("small", { class: "quiet", title: `read as ${words.form}` }, words.kind)] : null,
];
const named = (row) => row.key_words?.text ?? shown(row.key);
const short = (text) => (text.length > 300 ? `${text.slice(0, 300)}…` : text);

export async function tablesPage(root, parts, view) {
  const search = searchField(view, "Filter tables", "Name, part of it, or a pattern");
  const which = h(
    "select",
    {
      "aria-label": "Which tables",
      value: view.shown.all ?? "",
      onchange: () => {
        view.keep({ all: which.value });
        view.now();
      },
    },
    h("option", { value: "" }, "Without the hub's own"),
    h("option", { value: "1" }, "Including the hub's own"),
  );
  const said = h("span", { class: "quiet", role: "status" });
  const rows = liveTable(
    [
      { title: "Name", wrap: true, cell: (row) => h("a", { href: place(["table", row.name]) }, row.name) },
      { title: "Changes", number: true, cell: (row) => number(row.next) },
      { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
      { title: "Changes/s", number: true, cell: (row) => number(row.rate) },
    ],
    {
      label: "Tables",
      key: (row) => row.name,
      stamp: (row) => json(row),
      empty: empty("No tables.", "A table maps keys to values; Perper caches and the SDK create them: hub.table(\"stock\")."),
    },
  );
  fill(
    root,
    head(
      "Tables",
      "A table durably keeps the latest value of each key.",
      h("button", { type: "button", class: "main", onclick: create }, "Create a table"),
    ),
    h("div", { class: "bar" }, search, which, said),
    h("div", { class: "card" }, rows.element),
  );

  async function create() {
    const answer = await ask(
      "Create a table",
      form(field("Name", "table", { required: true }), (values) => curl("table.create", { table: values.table || "NAME" })),
      { ok: "Create" },
    );
    if (!answer) return;
    await attempt(() => call("table.create", answer), `Created ${answer.table}.`);
    await view.now();
  }

  await view.every(async () => {
    const page = await call("console.streams", { kind: "table", text: search.value, all: which.value === "1", limit: 500 });
    rows.update(page.rows);
    said.textContent = count(page.total, "table");
  });
}

export async function tablePage(root, [table], view) {
  const state = { offset: Math.max(0, Math.floor(Number(view.shown.offset)) || 0) };
  const places = pager(ROWS, "entry", go, "entries");
  const rows = liveTable(
    [
      { title: "Key", wrap: true, cell: (row) => cell(row.key, row.key_words) },
      { title: "Value", wrap: true, cell: (row) => cell(row.value, row.value_words) },
      { title: "Size", number: true, minor: true, cell: (row) => bytes(decode(row.value).length) },
      {
        title: "",
        cell: (row) =>
          menu(`What to do with ${named(row)}`, [
            { title: "Change…", on: () => put(row) },
            { title: "Remove…", danger: true, on: () => remove(row) },
          ]),
      },
    ],
    { label: "Entries", key: (row) => row.key, empty: empty("No entries.", "Set a key with the button above.") },
  );
  fill(
    root,
    head(
      table,
      "Entries by key, as they are now.",
      h("a", { class: "button", href: place(["query"], { table }) }, "Open in Query"),
      h("button", { type: "button", class: "main", onclick: () => put(null) }, "Set a key"),
      menu("What to do with this table", [
        { title: "Remove all keys…", danger: true, on: clear },
        { title: "Accept damage…", danger: true, on: acceptDamage },
        { title: "Delete the table…", danger: true, on: drop },
      ]),
    ),
    h("div", { class: "bar" }, places.element),
    h("div", { class: "card" }, rows.element),
  );

  async function refresh() {
    const items = await call("console.entries", { table, offset: state.offset, limit: ROWS + 1 });
    rows.update(items.slice(0, ROWS));
    places.update(state.offset, state.offset + items.length, true);
  }

  function go(offset) {
    state.offset = offset;
    view.keep({ offset: offset || null });
    view.now();
  }

  async function put(row) {
    const before = row ? decode(row.value) : utf8("");
    const isText = isReadable(before);
    const asked = (values) => ({
      table,
      key: row ? row.key : encode(utf8(values.key)),
      value: encode(isText ? utf8(values.value) : (unhex(values.value) ?? [])),
      ...(row ? { expect_value: row.value } : {}),
    });
    const answer = await ask(
      row ? `Change ${named(row)}` : `Set a key of ${table}`,
      form(
        [
          field("Key", "key", { required: true, value: row ? named(row) : "", readonly: Boolean(row) }),
          h("label", { class: "block" }, isText ? "Value" : "Value, as bytes in hex", h("textarea", { name: "value", value: isText ? asText(before) : hex(before) })),
          row ? h("p", { class: "quiet" }, "Nothing is changed if someone else has changed it meanwhile.") : null,
        ],
        (values) => curl("table.put", asked(values)),
      ),
      { ok: "Set", check: (values) => (isText || unhex(values.value) ? null : NOT_HEX) },
    );
    if (!answer) return;
    const request = asked(answer);
    await attempt(async () => {
      const done = await call("table.put", request);
      if (!done.applied) throw new Error("Someone else has changed this key meanwhile. Nothing was changed; look again.");
    }, "Set, and on disk.");
    await view.now();
  }

  async function remove(row) {
    const sure = await ask(
      `Remove ${named(row)}`,
      [h("p", {}, "The key and its value are removed. The change is a record like any other."), command(curl("table.delete", { table, key: row.key }))],
      { ok: "Remove", danger: true },
    );
    if (!sure) return;
    await attempt(() => call("table.delete", { table, key: row.key, expect_value: row.value }), "Removed.");
    await view.now();
  }

  async function clear() {
    const sure = await ask(
      `Remove all keys of ${table}`,
      [h("p", {}, "All entries are removed in one step, and cannot be brought back."), command(line(["table", "clear", table]))],
      { ok: "Remove all", danger: true },
    );
    if (sure) await attempt(() => call("table.clear", { table }), "Removed all keys.");
    await view.now();
  }

  async function acceptDamage() {
    const sure = await ask(
      `Accept the damage of ${table}`,
      [
        h("p", {}, "For a table that the hub refuses to serve because records of it cannot be read. What they held is given up: keys may have an older value, be missing, or reappear. A table without damage stays as it is."),
        command(line(["table", "accept-damage", table])),
      ],
      { ok: "Serve what is left", danger: true },
    );
    if (!sure) return;
    await attempt(async () => {
      const lost = await call("table.accept-damage", { table });
      note(lost.first === null ? "This table has no damage." : `Served again, without what was lost in its records ${number(lost.first)} to ${number(lost.last)}.`);
    });
    await view.now();
  }

  async function drop() {
    const answer = await ask(
      `Delete ${table}`,
      [
        h("p", {}, "The table and its entries are removed, and cannot be brought back."),
        field("Type its name to confirm", "name", { required: true }),
        command(curl("table.drop", { table })),
      ],
      { ok: "Delete", danger: true, check: (values) => (values.name === table ? null : "The names do not match; nothing was deleted.") },
    );
    if (answer && (await attempt(() => call("table.drop", { table }), `Deleted ${table}.`))) location.hash = place(["tables"]);
  }
  await view.every(refresh);
}

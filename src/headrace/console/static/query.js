// Ask streams and tables in SQL: an editor with completion, rows as a table or a chart, and downloads.

import { call, callIfThere } from "./api.js";
import { LineChart } from "./charts.js";
import { attempt, copy, line, menu } from "./dialogs.js";
import { allow, bytes, count, decode, empty, fill, h, head, hex, hide, number, readable, seconds } from "./dom.js";
import { table } from "./table.js";

const KEPT = 30;
const HISTORY = "headrace.queries";
const SHOWN = 500;
const LIMITS = [100, 1000, 10000, 100000];
const WORDS = "select from where group by order limit having join left on as and or not in is null count sum avg min max distinct case when then else end between like cast interval now".split(" ");
const COLUMNS = ["index", "time", "event_time", "id", "type", "key", "payload", "stream", "partition", "value"];

const named = (name) => (/^[a-z_]\w*$/i.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
const past = () => JSON.parse(localStorage.getItem(HISTORY) ?? "[]");

export async function queryPage(root, parts, view) {
  const begun = view.shown.stream ?? view.shown.table;
  const first = view.shown.sql ?? (begun ? starting(view.shown) : (past()[0] ?? ""));
  const editor = h("textarea", {
    class: "editor",
    value: first,
    spellcheck: "false",
    "aria-label": "SQL",
    "aria-autocomplete": "list",
    "aria-controls": "completions",
    placeholder: "SELECT type, count(*) FROM orders GROUP BY type",
    oninput: () => complete(),
    onkeydown: steer,
    onblur: () => setTimeout(() => offer([]), 150),
  });
  const offers = h("div", { class: "completions", id: "completions" });
  const limit = h(
    "select",
    { "aria-label": "At most", value: "1000" },
    LIMITS.map((most) => h("option", { value: most }, `${number(most)} rows`)),
  );
  const run = h("button", { type: "button", class: "main", onclick: () => start() }, "Run");
  const cancel = h("button", { type: "button", hidden: true, onclick: () => stop() }, "Cancel");
  const said = h("span", { class: "quiet", role: "status" });
  const result = h("div", {}, h("div", { class: "card" }, empty("No answer yet.", "Write a query and run it, or take one of the recent ones.")));
  fill(
    root,
    head(
      "Query",
      "SQL over streams and tables. A stream has the columns index, time, event_time, id, type, key, payload, stream and partition; value is the JSON in its payload.",
      menu(
        "Queries that you ran here",
        () => (past().length ? past() : ["SELECT 1"]).map((sql) => ({ title: sql.replace(/\s+/g, " ").slice(0, 80), on: () => put(sql) })),
        "Recent queries",
      ),
    ),
    h("div", { class: "card" }, h("div", { class: "editing" }, editor, offers), h("div", { class: "bar tight" }, run, cancel, limit, said, h("span", { class: "push" }), h("button", { type: "button", class: "quiet-button", onclick: () => copy(line(["sql", editor.value.trim()], { limit: limit.value }), "the command") }, "Copy command"))),
    result,
  );
  const state = { id: null, at: 0, offers: [], word: "" };
  drawOffers();
  const names = everyName();
  const known = new Map();

  function put(sql) {
    editor.value = sql;
    editor.focus();
  }

  async function start() {
    const sql = editor.value.trim();
    if (!sql || state.id) return;
    const id = `console-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
    state.id = id;
    localStorage.setItem(HISTORY, JSON.stringify([sql, ...past().filter((one) => one !== sql)].slice(0, KEPT)));
    view.keep({ sql, stream: null, table: null });
    hide(cancel, false);
    allow(run, false);
    const began = Date.now();
    const watching = setInterval(() => progress(id, began), 500);
    try {
      const answer = await call("sql.query", { sql, limit: Number(limit.value), id });
      said.textContent = `${count(answer.rows.length, "row")}${answer.truncated ? ", and there are more" : ""} in ${seconds(answer.elapsed_us / 1e6)}; ${count(answer.scanned_records, "record")} read, ${bytes(answer.scanned_bytes)}.`;
      show(answer, sql);
    } catch (error) {
      said.textContent = "";
      fill(result, h("div", { class: "alarm bad", role: "alert" }, h("pre", {}, error.message)));
    } finally {
      clearInterval(watching);
      state.id = null;
      hide(cancel, true);
      allow(run, true);
    }
  }

  async function progress(id, began) {
    try {
      const info = (await call("sql.list")).find((one) => one.id === id);
      if (state.id !== id) return;
      said.textContent = `${seconds(Math.round((Date.now() - began) / 1000))} so far${info ? `; ${count(info.scanned_records, "record")} read, ${bytes(info.scanned_bytes)}` : ""}.`;
    } catch {
      /* the answer says what is wrong */
    }
  }

  const stop = () => attempt(() => call("sql.cancel", { id: state.id }));
  view.onLeave(() => {
    if (state.id) call("sql.cancel", { id: state.id }).catch(() => {});
  });

  function show({ columns, rows, truncated }, sql) {
    const numbers = columns.map((_, at) => at).filter((at) => rows.some((row) => row[at] !== null) && rows.every((row) => row[at] === null || typeof row[at] === "number" || typeof row[at] === "bigint"));
    // what the rows go along, if they do: not a line, but what is said below the lines
    const along = columns.findIndex((one) => ["index", "time", "event_time"].includes(one.name.toLowerCase()));
    const series = numbers.filter((at) => at !== along || numbers.length === 1);
    const ends = along < 0 || !rows.length ? ["first row", "last row"] : [rows[0], rows.at(-1)].map((row) => [`${columns[along].name} `, text(row[along], columns[along].type)]);
    const cells = table(
      columns.map((column, at) => ({ title: column.name, number: numbers.includes(at), wrap: !numbers.includes(at), cell: (row) => h("span", { title: column.type }, text(row[at], column.type)) })),
      rows.slice(0, SHOWN),
      { label: "Rows", empty: empty("No rows.") },
    );
    const place = h("div", { class: "card results" }, cells);
    const asTable = h("button", { type: "button", "aria-pressed": "true", onclick: () => flip(false) }, "Table");
    const asChart = h("button", { type: "button", "aria-pressed": "false", onclick: () => flip(true) }, "Chart");
    allow(asChart, numbers.length > 0 && rows.length > 1);
    function flip(charted) {
      asTable.setAttribute("aria-pressed", String(!charted));
      asChart.setAttribute("aria-pressed", String(charted));
      fill(place, charted ? series.map((at) => chart(columns[at].name, rows.map((row) => row[at]), ends)) : cells);
    }
    fill(
      result,
      h(
        "div",
        { class: "bar" },
        h("span", { class: "group", role: "group", "aria-label": "Shown as" }, asTable, asChart),
        rows.length > SHOWN ? h("span", { class: "quiet" }, `the first ${number(SHOWN)} are shown`) : null,
        truncated ? h("span", { class: "warn" }, "there are more rows than were asked for") : null,
        h("span", { class: "push" }),
        h("button", { type: "button", onclick: () => copy(csv(columns, rows), "the rows as CSV") }, "Copy CSV"),
        h("button", { type: "button", onclick: () => save("query.csv", "text/csv", csv(columns, rows)) }, "Download CSV"),
        h("button", { type: "button", onclick: () => parquet(sql) }, "Download Parquet"),
      ),
      place,
    );
  }

  async function parquet(sql) {
    await attempt(async () => {
      const found = await call("console.parquet", { sql, limit: Number(limit.value) });
      save("query.parquet", "application/vnd.apache.parquet", Uint8Array.from(atob(found.parquet), (one) => one.charCodeAt(0)));
    });
  }

  // What may follow: streams and tables everywhere, fields of `value` behind `value.`
  async function complete() {
    const before = editor.value.slice(0, editor.selectionStart);
    const [, word] = /((?:value\.)?"?[\w./-]*)$/.exec(before) ?? [];
    state.word = word ?? "";
    if (!word) return offer([]);
    const begin = word.replace(/^"/, "").toLowerCase();
    const from = begin.startsWith("value.") ? await fields() : [...(await names), ...COLUMNS, ...WORDS];
    return offer(from.filter((one) => one.toLowerCase().startsWith(begin) && one.toLowerCase() !== begin).slice(0, 8));
  }

  async function fields() {
    const [, source] = /\bfrom\s+("[^"]+"|\w+)/i.exec(editor.value) ?? [];
    if (!source) return [];
    if (!known.has(source)) {
      try {
        known.set(source, (await call("sql.columns", { sql: `SELECT value.* FROM ${source}` })).map((one) => `value.${one.name}`));
      } catch {
        known.set(source, []);
      }
    }
    return known.get(source);
  }

  function offer(found) {
    Object.assign(state, { offers: found, at: 0 });
    if (found.length) Object.entries({ role: "listbox", "aria-label": "Completions" }).forEach(([name, value]) => offers.setAttribute(name, value));
    else ["role", "aria-label"].forEach((name) => offers.removeAttribute(name));
    drawOffers();
  }
  function drawOffers() {
    fill(
      offers,
      state.offers.length ? null : h("span", { class: "quiet" }, "Names complete as you type; press Tab to accept one. Ctrl+Enter runs the query."),
      state.offers.map((one, at) => h("button", { type: "button", role: "option", tabindex: -1, "aria-selected": String(at === state.at), onpointerdown: (event) => take(one, event) }, one)),
    );
  }
  function take(one, event) {
    event?.preventDefault();
    const end = editor.selectionStart;
    const begin = end - state.word.length;
    const words = WORDS.includes(one) || COLUMNS.includes(one) || one.startsWith("value.") ? one : named(one);
    editor.setRangeText(words, begin, end, "end");
    offer([]);
    editor.focus();
  }

  function steer(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      start();
    } else if (state.offers.length && { ArrowDown: 1, ArrowUp: -1 }[event.key]) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      state.at = (state.at + step + state.offers.length) % state.offers.length;
      drawOffers();
    } else if (state.offers.length && (event.key === "Tab" || event.key === "Enter")) {
      event.preventDefault();
      take(state.offers[state.at]);
    } else if (event.key === "Escape") offer([]);
  }
  if (begun && !view.shown.sql) await start();
  await names; // whoever opened the page is told if they cannot be had
}

const starting = ({ stream, table: named_ }) =>
  stream
    ? `SELECT index, time, type, cast(payload AS string) AS text\nFROM ${named(stream)}\nORDER BY time DESC, index DESC\nLIMIT 100`
    : `SELECT cast(key AS string) AS key, cast(payload AS string) AS value\nFROM ${named(named_)}\nLIMIT 100`;

async function everyName() {
  const found = await Promise.all(["stream.list", "table.list"].map((verb) => callIfThere(verb, {}, [])));
  return found.flat().map((one) => one.name);
}

function text(value, type = "") {
  if (value === null) return h("span", { class: "quiet" }, "null");
  if (value.base64 !== undefined) return h("code", { title: `hex ${hex(decode(value.base64))}` }, readable(decode(value.base64)));
  if (typeof value === "object") return value.text ?? JSON.stringify(value);
  if (/^timestamp/i.test(type)) return String(value).replace("T", " ").replace(/(\.\d{3})\d*Z?$|Z$/, "$1"); // as everywhere here: UTC, to the millisecond
  return typeof value === "number" ? number(value) : String(value);
}

const plain = (value) => (value === null ? "" : typeof value === "object" ? (value.text ?? value.base64 ?? JSON.stringify(value)) : String(value));
const quotedCell = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const csv = (columns, rows) => [columns.map((one) => one.name), ...rows.map((row) => row.map(plain))].map((line) => line.map(quotedCell).join(",")).join("\r\n");

function chart(name, values, ends) {
  const made = new LineChart(name, (value) => number(value));
  made.update([values.map((one) => (one === null ? null : Number(one)))]);
  fill(made.since, ends[0]);
  fill(made.last, ends[1]);
  return h("section", {}, h("h3", {}, name), made.element);
}

function save(name, type, contents) {
  const link = h("a", { href: URL.createObjectURL(new Blob([contents], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

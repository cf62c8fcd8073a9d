// All streams, a page at a time.

import { call } from "./api.js";
import { ask, field, fill, h, number, report, table } from "./dom.js";

const ROWS = 100;

export async function streamsPage(root) {
  const asked = { text: "", kind: "stream", order: "name", descending: false, offset: 0, limit: ROWS };
  const search = h("input", { type: "search", placeholder: "Name, part of it, or a pattern", "aria-label": "Filter streams", oninput: () => { asked.text = search.value; asked.offset = 0; refresh(); } });
  const kind = h("select", { "aria-label": "Kind", onchange: () => { asked.kind = kind.value; asked.offset = 0; refresh(); } }, h("option", { value: "stream" }, "Streams"), h("option", { value: "table" }, "Tables"));
  const body = h("div");
  const places = h("div", { class: "bar" });
  fill(root, h("h1", {}, "Streams"), h("div", { class: "bar" }, search, kind, h("button", { class: "main push", type: "button", onclick: create }, "Create a stream")), h("div", { class: "card" }, body), places);

  const sort = (order) => () => { asked.descending = asked.order === order && !asked.descending; asked.order = order; refresh(); };
  let asking = 0;
  async function refresh() {
    const turn = ++asking;
    const page = await call("console.streams", asked);
    if (turn !== asking) return;
    fill(body, table([
      { title: "Name", sort: sort("name"), wrap: true, cell: (row) => h("a", { href: `#/stream/${encodeURIComponent(row.name)}` }, row.name) },
      { title: "Records", number: true, sort: sort("records"), cell: (row) => number(row.records) },
      { title: "Records/s", number: true, sort: sort("rate"), cell: (row) => number(row.rate) },
      { title: "First", number: true, cell: (row) => number(row.first) },
      { title: "Next", number: true, cell: (row) => number(row.next) },
      { title: "Partitions", number: true, cell: (row) => row.partitions },
      { title: "Cursors", number: true, sort: sort("cursors"), cell: (row) => row.cursors },
      { title: "Behind", number: true, cell: (row) => number(row.lag) },
      { title: "Kept", cell: (row) => row.retention },
      { title: "Acknowledged", cell: (row) => row.ack },
      { title: "", cell: (row) => [h("button", { type: "button", onclick: () => trim(row) }, "Trim"), " ", h("button", { type: "button", class: "danger", onclick: () => remove(row) }, "Delete")] },
    ], page.rows, { label: "Streams", empty: asked.text ? "No stream fits." : "No streams yet. Create one, or let a producer do it." }));
    fill(places, h("button", { type: "button", disabled: asked.offset === 0, onclick: () => { asked.offset -= ROWS; refresh(); } }, "Previous"),
      h("span", { class: "quiet" }, page.total ? `${asked.offset + 1} to ${Math.min(asked.offset + ROWS, page.total)} of ${number(page.total)}` : "none"),
      h("button", { type: "button", disabled: asked.offset + ROWS >= page.total, onclick: () => { asked.offset += ROWS; refresh(); } }, "Next"));
  }

  async function act(work) { try { await work(); await refresh(); } catch (error) { report(error); } }

  async function create() {
    const answer = await ask("Create a stream", [field("Name", "name", { required: true }), field("Partitions", "partitions", { type: "number", min: 1, value: 1 })], { ok: "Create" });
    if (answer) act(() => call("stream.create", { stream: answer.name, partitions: Number(answer.partitions), exist_ok: false }));
  }
  async function trim(row) {
    const answer = await ask(`Trim ${row.name}`, [h("p", {}, "Records below the index are forgotten, also those that a cursor still needs. This cannot be undone."), field(`First index to keep (${row.first} to ${row.next})`, "before", { type: "number", min: row.first, max: row.next, value: row.first })], { ok: "Trim", danger: true });
    if (answer) act(() => call("stream.trim", { stream: row.name, before: Number(answer.before) }));
  }
  async function remove(row) {
    const answer = await ask(`Delete ${row.name}`, [h("p", {}, `All ${number(row.records)} records, its cursors and checkpoints go. This cannot be undone. Type the name to confirm.`), field("Name", "name", { required: true })], { ok: "Delete", danger: true });
    if (!answer) return;
    if (answer.name !== row.name) report(new Error("The name is not the same; nothing was deleted."));
    else act(() => call("stream.delete", { stream: row.name }));
  }
  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 2000);
  return () => clearInterval(timer);
}

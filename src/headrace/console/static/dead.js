// Dead letters: streams named <stream>.dead, with the reason that each record came there.

import { call } from "./api.js";
import { ask, asText, decode, fill, h, hex, moment, number, report, table } from "./dom.js";

const SUFFIX = ".dead";

export async function deadPage(root) {
  const body = h("div");
  fill(root, h("h1", {}, "Dead letters"), body);
  async function refresh() {
    const page = await call("console.streams", { text: `*${SUFFIX}`, limit: 100 });
    const parts = await Promise.all(page.rows.map(async (row) => ({ row, page: await call("stream.read", { stream: row.name, start: row.first, limit: 50 }) })));
    fill(body, parts.length ? parts.map(({ row, page: read }) => section(row, read.records)) : h("div", { class: "card empty" }, "Nothing has failed. Records that a pipeline cannot decode come to <stream>.dead."));
  }
  function section(row, records) {
    return h("section", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, `${row.name} · ${number(row.records)} records`), h("button", { type: "button", class: "push", onclick: () => redrive(row, records) }, "Send the shown ones again")), table([
      { title: "Index", number: true, cell: (one) => number(one.index) },
      { title: "Time (UTC)", cell: (one) => moment(one.time_us) },
      { title: "Reason", wrap: true, cell: (one) => one.type ?? "" },
      { title: "Payload", wrap: true, cell: (one) => { const data = decode(one.payload); return h("code", {}, (asText(data) ?? hex(data)).slice(0, 200)); } },
    ], records, { label: row.name }));
  }
  async function redrive(row, records) {
    const origin = row.name.slice(0, -SUFFIX.length);
    const sure = await ask(`Send again to ${origin}`, h("p", {}, `${number(records.length)} records are appended to ${origin} and trimmed from ${row.name}.`), { ok: "Send again" });
    if (!sure || !records.length) return;
    try {
      await call("stream.append", { stream: origin, records: records.map((one) => ({ payload: one.payload ?? "", key: one.key })) });
      await call("stream.trim", { stream: row.name, before: records.at(-1).index + 1 });
      await refresh();
    } catch (error) { report(error); }
  }
  await refresh();
}

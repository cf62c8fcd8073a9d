// Dead letters: streams named <stream>.dead, with the reason that each record came there.

import { call } from "./api.js";
import { ask, asText, decode, fill, h, hex, moment, number, report, table } from "./dom.js";

const SUFFIX = ".dead";

export async function deadPage(root) {
  const body = h("div");
  fill(root, h("h1", {}, "Dead letters"), body);
  async function refresh() {
    const page = await call("console.streams", { text: `*${SUFFIX}`, limit: 100 });
    const parts = await Promise.all(page.rows.map(async (row) => ({ row, letters: await call("dead.list", { stream: row.name }) })));
    fill(body, parts.length ? parts.map(({ row, letters }) => section(row, letters)) : h("div", { class: "card empty" }, "Nothing has failed. Records that a pipeline cannot decode come to <stream>.dead."));
  }
  function section(row, letters) {
    return h("section", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, `${row.name} · ${number(row.records)} records`), h("button", { type: "button", class: "push", disabled: !letters.length, onclick: () => redrive(row, letters) }, "Send the shown ones again")), table([
      { title: "Index", number: true, cell: (one) => number(one.index) },
      { title: "Time (UTC)", cell: (one) => moment(one.time_us) },
      { title: "Reason", wrap: true, cell: (one) => one.reason },
      { title: "Belongs to", cell: (one) => one.stream },
      { title: "Type", cell: (one) => one.type ?? "" },
      { title: "Payload", wrap: true, cell: (one) => { const data = decode(one.payload); return h("code", {}, (asText(data) ?? hex(data)).slice(0, 200)); } },
    ], letters, { label: row.name, empty: "All of them have been sent again." }));
  }
  async function redrive(row, letters) {
    const places = [...new Set(letters.map((one) => one.stream))].join(", ");
    const sure = await ask(`Send again to ${places}`, h("p", {}, `${number(letters.length)} records are appended to ${places} as they were, and leave ${row.name} in the same step.`), { ok: "Send again" });
    if (!sure) return;
    try {
      await call("dead.redrive", { stream: row.name, before: letters.at(-1).index + 1 });
      await refresh();
    } catch (error) { report(error); }
  }
  await refresh();
}

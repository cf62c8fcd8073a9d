// Who reads what, how far behind they are, and how to move them.

import { call } from "./api.js";
import { ask, fill, h, number, pill, report, seconds, table } from "./dom.js";

export async function cursorsPage(root) {
  const search = h("input", { type: "search", placeholder: "Cursor or stream", "aria-label": "Filter cursors", oninput: () => refresh() });
  const body = h("div", { class: "card" });
  fill(root, h("h1", {}, "Cursors"), h("div", { class: "bar" }, search), body);

  async function refresh() {
    const rows = await call("console.cursors", { text: search.value });
    fill(body, table([
      { title: "Cursor", cell: (row) => row.name, wrap: true },
      { title: "Stream", cell: (row) => h("a", { href: `#/stream/${encodeURIComponent(row.stream)}` }, row.stream) },
      { title: "Partition", number: true, cell: (row) => row.partition },
      { title: "Next index", number: true, cell: (row) => number(row.index) },
      { title: "Behind", number: true, cell: (row) => `${number(row.lag)} records` },
      { title: "Last moved", number: true, cell: (row) => `${seconds(row.age_s)} ago` },
      { title: "State", cell: (row) => (row.stuck ? [pill("stuck", "bad"), " ", row.stuck] : row.lag ? pill("behind", "warn") : pill("up to date", "good")) },
      { title: "", cell: (row) => h("button", { type: "button", onclick: () => reset(row) }, "Reset") },
    ], rows, { label: "Cursors", empty: "No cursors. Consumers register them." }));
  }

  async function reset(row) {
    const to = h("select", { name: "to", "aria-label": "Where to", onchange: preview }, h("option", { value: "earliest" }, "the earliest record"), h("option", { value: "latest" }, "the end"), h("option", { value: "index" }, "an index"), h("option", { value: "time" }, "a time (UTC)"));
    const index = h("input", { name: "index", type: "number", min: 0, value: row.index, "aria-label": "Index", oninput: preview });
    const time = h("input", { name: "time", type: "datetime-local", step: 1, "aria-label": "Time", oninput: preview });
    const shown = h("p", { role: "status", "data-preview": "" }, "…");
    const target = () => (to.value === "index" ? Number(index.value) : to.value === "time" ? { time_us: Date.parse(`${time.value}Z`) * 1000 } : to.value);
    const request = (dry) => ({ cursor: row.name, stream: row.stream, partition: row.partition, to: target(), dry_run: dry });
    async function preview() {
      index.hidden = to.value !== "index";
      time.hidden = to.value !== "time";
      if (to.value === "time" && !time.value) { shown.textContent = "Choose a time."; return; }
      try {
        const [move] = await call("cursor.reset", request(true));
        shown.textContent = `From ${number(move.before ?? 0)} to ${number(move.after)}: ${number(move.read_again)} records are read again, ${number(move.skipped)} are skipped.`;
      } catch (error) { shown.textContent = error.message; }
    }
    preview();
    const answer = await ask(`Reset ${row.name} of ${row.stream}`, [h("div", { class: "bar" }, "Move to", to, index, time), shown], { ok: "Move the cursor", danger: true });
    if (!answer) return;
    try { await call("cursor.reset", request(false)); await refresh(); } catch (error) { report(error); }
  }

  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 2000);
  return () => clearInterval(timer);
}

// The Spark pipelines that this hub knows.

import { call } from "./api.js";
import { ask, bytes, fill, h, number, pill, report, seconds, table } from "./dom.js";

const kinds = { running: "good", failed: "bad", stopped: "", starting: "warn", silent: "warn" };

export async function pipelinesPage(root) {
  const body = h("div", { class: "card" });
  fill(root, h("h1", {}, "Pipelines"), body);
  async function refresh() {
    let rows;
    try { rows = await call("pipeline.list"); } catch (error) {
      if (error.code !== "unknown-verb") throw error;
      fill(body, h("div", { class: "empty" }, "This hub knows no pipelines."));
      return;
    }
    fill(body, table([
      { title: "Pipeline", cell: (row) => row.name },
      { title: "State", cell: (row) => pill(row.state, kinds[row.state] ?? "") },
      { title: "Rows/s", number: true, cell: (row) => number(row.report?.rows_per_s ?? 0) },
      { title: "Batch", number: true, cell: (row) => number(row.report?.batch ?? 0) },
      { title: "Batch time", number: true, cell: (row) => seconds((row.report?.batch_ms ?? 0) / 1000) },
      { title: "Behind", number: true, cell: (row) => `${number(row.report?.lag ?? 0)} records` },
      { title: "State", number: true, cell: (row) => bytes(row.report?.state_bytes ?? 0) },
      { title: "Last error", wrap: true, cell: (row) => (row.report?.error ? h("span", { class: "bad" }, row.report.error) : "") },
      { title: "", cell: (row) => h("button", { type: "button", disabled: row.state !== "running", onclick: () => stop(row.name) }, "Stop") },
    ], rows, { label: "Pipelines", empty: "No pipelines: headrace pipeline create NAME --sql …" }));
  }
  async function stop(name) {
    if (await ask(`Stop ${name}`, h("p", {}, "It ends after the batch under way; it goes on from there when it is started again."), { ok: "Stop" })) {
      try { await call("pipeline.stop", { name }); await refresh(); } catch (error) { report(error); }
    }
  }
  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 2000);
  return () => clearInterval(timer);
}

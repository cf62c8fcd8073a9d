// Immortals with the timeline of their calls, and the executions of agents.

import { call } from "./api.js";
import { ask, fill, h, moment, number, pill, report, table } from "./dom.js";

const good = { running: "good", primary: "good", recovering: "warn" };

export async function immortalsPage(root) {
  const body = h("div", { class: "card" });
  const timeline = h("div");
  fill(root, h("h1", {}, "Immortals"), body, timeline);

  async function refresh() {
    const rows = await optional("immortal.list");
    if (rows === null) return;
    fill(body, table([
      { title: "Name", cell: (row) => h("button", { type: "button", onclick: () => show(row.name) }, row.name) },
      { title: "State", cell: (row) => pill(row.state, good[row.state] ?? "") },
      { title: "Receive port", cell: (row) => h("code", {}, row.receive ?? "") },
      { title: "Send port", cell: (row) => h("code", {}, row.send ?? "") },
      { title: "Logged messages", number: true, cell: (row) => number(row.log_next) },
      { title: "Next sequence", number: true, cell: (row) => number(row.sequence) },
      { title: "", cell: (row) => [h("button", { type: "button", onclick: () => act(() => call("immortal.checkpoint", { name: row.name })) }, "Checkpoint"), " ", h("button", { type: "button", onclick: () => replay(row.name) }, "Replay")] },
    ], rows, { label: "Immortals", empty: "No immortals are registered: headrace immortal register NAME." }));
  }
  async function show(name) {
    const entries = await call("immortal.log", { name, limit: 100 });
    fill(timeline, h("div", { class: "card" }, h("h2", {}, `The last calls of ${name}`), h("ol", { class: "timeline" }, entries.map((entry) =>
      h("li", { class: entry.kind === "checkpoint" ? "checkpoint" : null }, `${moment(entry.time_us)}  #${entry.sequence} `, pill(entry.kind), ` ${entry.sender ? `from ${entry.sender}` : ""} ${entry.method == null ? "" : `method ${entry.method}`} `, h("code", {}, (entry.text ?? entry.base64 ?? "").slice(0, 120)))))));
  }
  async function replay(name) {
    try {
      const ports = await call("immortal.replay", { name });
      await ask(`A debugging instance of ${name}`, h("dl", {}, h("dt", {}, "Receive"), h("dd", {}, ports.receive), h("dt", {}, "Send"), h("dd", {}, ports.send), h("dt", {}, "Replays"), h("dd", {}, `${number(ports.next - ports.first)} messages behind checkpoint ${ports.checkpoint}`)), { ok: "Close" });
    } catch (error) { report(error); }
  }
  async function act(work) { try { await work(); await refresh(); } catch (error) { report(error); } }
  async function optional(verb) {
    try { return await call(verb); } catch (error) {
      if (error.code !== "unknown-verb") throw error;
      fill(body, h("div", { class: "empty" }, "This hub does not serve immortals."));
      return null;
    }
  }
  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 3000);
  return () => clearInterval(timer);
}

export async function executionsPage(root) {
  const body = h("div", { class: "card" });
  fill(root, h("h1", {}, "Executions"), body);
  async function refresh() {
    let rows;
    try { rows = await call("agents.executions"); } catch (error) {
      if (error.code !== "unknown-verb") throw error;
      fill(body, h("div", { class: "empty" }, "This hub does not serve agents: listen.fabric is off."));
      return;
    }
    fill(body, table([
      { title: "Execution", wrap: true, cell: (row) => h("code", {}, row.execution) },
      { title: "Agent", cell: (row) => row.agent },
      { title: "Instance", cell: (row) => row.instance },
      { title: "Delegate", cell: (row) => row.delegate },
      { title: "State", cell: (row) => (row.finished ? pill("finished", "good") : pill("open", "warn")) },
    ], rows, { label: "Executions", empty: "No executions." }));
  }
  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 3000);
  return () => clearInterval(timer);
}

// Executions of Perper agents: what was called, who works on it, how long it takes.

import { callIfThere } from "./api.js";
import { count, empty, fill, h, head, hubMs, json, moment, number, pill, searchField, seconds } from "./dom.js";
import { liveTable } from "./table.js";

const LIMIT = 500;

export async function executionsPage(root, parts, view) {
  const which = h(
    "select",
    { "aria-label": "Which executions", onchange: () => view.now() },
    h("option", { value: "all" }, "All"),
    h("option", { value: "open" }, "Only open ones"),
    h("option", { value: "finished" }, "Only finished ones"),
  );
  const search = searchField(view, "Filter executions", "Agent, instance, delegate or id");
  const said = h("span", { class: "quiet", role: "status" });
  const none = h("div", {});
  let longest = 1;
  const rows = liveTable(
    [
      { title: "Execution", wrap: true, cell: (row) => h("code", {}, row.execution) },
      { title: "Agent", cell: (row) => row.agent },
      { title: "Delegate", cell: (row) => row.delegate },
      { title: "Instance", minor: true, wrap: true, cell: (row) => row.instance },
      { title: "State", cell: (row) => state(row) },
      { title: "Worker", cell: (row) => (row.worker ? h("code", {}, row.worker) : "–") },
      {
        title: "Since (UTC)",
        minor: true,
        cell: (row) =>
          row.started_us === null
            ? "before the hub started"
            : h("span", { class: "still" }, moment(row.started_us).slice(0, 19)),
      },
      { title: "Duration", cell: (row) => duration(row, longest) },
    ],
    { label: "Executions", key: (row) => row.execution, empty: none },
  );
  const agents = liveTable(
    [
      { title: "Agent", cell: (row) => row.agent },
      { title: "Instance", wrap: true, cell: (row) => row.instance ?? "–" },
      { title: "Process", cell: (row) => (row.process ? pill(row.process.state, row.process.state === "running" ? "good" : "warn") : h("span", { class: "quiet" }, "not run by headrace")) },
      { title: "Runner", minor: true, cell: (row) => h("code", {}, row.process ? `${row.runner}, pid ${row.process.process_id ?? "–"}` : "") },
      { title: "Restarts", number: true, minor: true, cell: (row) => row.process?.restarts ?? "–" },
    ],
    { label: "Agents", key: (row) => row.at, empty: empty("No agent instances.", [h("code", {}, "headrace agents run CONFIG"), " starts and stops processes for them."]) },
  );
  const caches = liveTable(
    [
      { title: "Cache", wrap: true, cell: (row) => row.name },
      { title: "Kind", cell: (row) => pill(row.kind) },
      { title: "Entries", number: true, cell: (row) => (row.size === null ? "–" : number(row.size)) },
      { title: "Listeners", number: true, cell: (row) => number(row.listeners) },
    ],
    { label: "Caches", key: (row) => row.name, stamp: (row) => json(row), empty: empty("No caches.", "Ignite clients create them.") },
  );
  fill(
    root,
    head(
      "Executions",
      "Calls between Perper agents, and the streams they create. An open one is waiting for a worker, or has one.",
    ),
    h("div", { class: "bar" }, which, search, said),
    h("div", { class: "card" }, rows.element),
    h(
      "div",
      { class: "halves" },
      h("section", { class: "card" }, h("h2", {}, "Agents"), agents.element),
      h("section", { class: "card" }, h("h2", {}, "Caches"), caches.element),
    ),
  );

  async function refresh() {
    agents.update((await callIfThere("agents.list", {}, [])).map((one, at) => ({ ...one, at })));
    caches.update(await callIfThere("agents.caches", {}, []));
    const found = await callIfThere("agents.executions", { limit: LIMIT }, null);
    const wanted = search.value.toLowerCase();
    const kept = (found ?? []).filter(
      (row) =>
        (which.value === "all" || (which.value === "finished") === row.finished) &&
        [row.execution, row.agent, row.instance, row.delegate].some((word) => word.toLowerCase().includes(wanted)),
    );
    longest = Math.max(1e6, ...kept.map(took));
    fill(
      none,
      found === null
        ? empty("This hub does not serve agents.", "listen.fabric is off.")
        : empty("No executions.", "They appear when one agent calls another: headrace agents run …"),
    );
    rows.update(
      kept.sort((one, other) => one.finished - other.finished || (other.started_us ?? 0) - (one.started_us ?? 0)),
    );
    said.textContent = found?.length === LIMIT ? `the first ${LIMIT}` : count(kept.length, "execution");
  }
  await view.every(refresh);
}

function state(row) {
  if (row.finished) return pill("finished", "good");
  return row.worker ? pill("working", "live") : pill("waiting");
}

const took = (row) => (row.started_us === null ? 0 : (row.finished_us ?? hubMs() * 1000) - row.started_us);

function duration(row, longest) {
  if (row.started_us === null) return "–";
  if (row.finished && row.finished_us === null) return "–";
  const micros = Math.max(0, took(row));
  const shown = row.finished ? seconds(micros / 1e6) : `${seconds(Math.floor(micros / 1e6))} so far`;
  return h(
    "span",
    { class: "flow" },
    h("progress", { max: longest, value: String(micros), "aria-hidden": "true" }),
    shown,
  );
}

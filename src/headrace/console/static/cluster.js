// Hubs in front of one log on Kafka: who owns it, who follows, how far they are, and how the last takeover went.

import { call } from "./api.js";
import { bytes, count, empty, facts, fill, h, head, moment, number, pill, seconds } from "./dom.js";
import { liveTable } from "./table.js";

const KINDS = { owner: "good", follower: "", cold: "", gone: "bad" };

export async function clusterPage(root, parts, view) {
  const none = h("div", {});
  const rows = liveTable(
    [
      { title: "Hub", cell: (row) => h("b", { class: "still" }, row.hub) },
      { title: "Role", cell: (row) => pill(row.role, KINDS[row.role]) },
      { title: "Behind", cell: (row) => (row.role === "follower" ? bytes(row.lag_bytes) : "–") },
      { title: "Addresses", wrap: true, cell: (row) => h("code", {}, addresses(row)) },
      { title: "Version", minor: true, cell: (row) => row.version },
      { title: "Started as", minor: true, wrap: true, cell: (row) => h("code", {}, row.life) },
    ],
    { label: "Hubs", key: (row) => row.life, empty: none },
  );
  const cells = h("div", {});
  const problems = h("div", {});
  fill(
    root,
    head("Cluster", "Hubs that share one log on Kafka. One owns it; the others follow it, and pass clients on to it."),
    problems,
    cells,
    h("div", { class: "card" }, h("h2", {}, "Hubs"), rows.element),
  );

  async function refresh() {
    const info = await call("hub.info");
    const found = info.health.notes?.cluster ? await call("cluster.status") : null;
    fill(none, empty("This hub is alone.", "Its log is in its data directory: log.backend is embedded."));
    rows.update(found?.hubs ?? []);
    fill(problems, found?.problems?.length ? warning(found.problems) : null);
    fill(
      cells,
      (found?.cells ?? []).map((cell) => card(cell, found)),
    );
  }
  await view.every(refresh);
}

const addresses = (row) =>
  Object.entries(row.addresses)
    .map(([name, address]) => `${name} ${address}`)
    .join(", ");

function card(cell, found) {
  return h(
    "section",
    { class: "card", "aria-label": `Cell ${cell.cell}` },
    h("h2", {}, `Cell ${cell.cell}`),
    facts([
      ["Owner", cell.owner ? h("b", {}, cell.owner) : pill("nobody", "bad")],
      ["Epoch", number(cell.epoch)],
      ["Owned since (UTC)", cell.owned_since_us ? moment(cell.owned_since_us).slice(0, 19) : "–"],
      ["Last takeover", cell.takeover_s ? `${seconds(cell.takeover_s)} from chosen to serving` : "–"],
      ["Journal", count(cell.next_offset - cell.first_offset, "message")],
      ["Journal behind the snapshot", shown(cell.gauges.journal_bytes)],
      ["Store", shown(cell.gauges.store_bytes ?? cell.gauges.segment_bytes)],
      ["Brokers", found.brokers.join(", ")],
      ["Answered by", found.asked],
    ]),
  );
}

function warning(problems) {
  return h(
    "section",
    { class: "card", "aria-label": "Topics on Kafka" },
    h("h2", {}, "Topics on Kafka ", pill(count(problems.length, "problem"), "bad")),
    problems.map((problem) => h("p", {}, problem.text, ": ", h("code", {}, problem.command))),
  );
}

const shown = (value) => (value === undefined ? null : bytes(value));

// The hub at a glance.

import { call } from "./api.js";
import { chart } from "./charts.js";
import { bytes, fill, h, number, seconds, table } from "./dom.js";

export async function overviewPage(root, parts, context) {
  const info = await call("hub.info");
  const alarms = h("div", { role: "status", "aria-label": "Alarms" });
  const cards = h("div", { class: "grid" });
  const listeners = h("div", { class: "card" });
  fill(root, h("h1", {}, "Overview", h("span", { class: "quiet" }, `Headrace ${info.version}, up ${seconds(info.uptime_s)}, data in ${info.data}`)), alarms, cards, listeners);

  function draw(samples) {
    const last = samples.at(-1);
    if (!last) return;
    fill(alarms, last.alarms.map((text) => h("div", { class: "alarm" }, text)));
    if (!last.alarms.length) fill(alarms, h("div", { class: "alarm quiet" }, "All is well."));
    fill(cards,
      card("Records in and out", [`${number(last.records_in)} in`, `${number(last.records_out)} out`], "records/s", samples, ["records_in", "records_out"], ["in", "out"]),
      card("Payload in", [bytes(last.bytes_in)], "per second", samples, ["bytes_in"]),
      card("Append to durable", [last.commit_p50_ms === null ? "no commits" : `${number(last.commit_p50_ms)} p50, ${number(last.commit_p99_ms)} p99`], "ms", samples, ["commit_p50_ms", "commit_p99_ms"], ["p50", "p99"]),
      card("Commits", [number(last.commits)], "fdatasyncs/s", samples, ["commits"]),
      card("Waiting for the disk", [bytes(last.queue_bytes)], "", samples, ["queue_bytes"]),
      card("Not sealed yet, in memory", [bytes(last.tail_bytes)], "", samples, ["tail_bytes"]),
      card("Sealed on disk", [bytes(last.segment_bytes)], `${bytes(last.free_bytes)} free`, samples, ["segment_bytes"]),
      card("Memory of the hub", [bytes(last.resident_bytes)], "", samples, ["resident_bytes"]));
    const rows = Object.entries(info.listeners).map(([name, address]) => ({ name, address, sessions: last.sessions[name] ?? 0 }));
    fill(listeners, h("h2", {}, `Listeners · ${number(last.streams)} streams · ${number(last.tables)} tables`), table([
      { title: "Listener", cell: (row) => row.name },
      { title: "Address", cell: (row) => h("code", {}, row.address) },
      { title: "Open sessions", number: true, cell: (row) => number(row.sessions) },
    ], rows, { label: "Listeners" }), info.missing.length ? h("p", { class: "quiet" }, `Not installed: ${info.missing.join(", ")}`) : null);
  }
  draw(context.samples());
  context.onPulse(draw);
}

function card(title, figures, unit, samples, keys, names) {
  const series = keys.map((key) => samples.map((sample) => sample[key]));
  return h("section", { class: "card" }, h("h2", {}, title),
    h("div", { class: "figure" }, figures.join(" · "), " ", h("small", {}, unit)),
    chart(series, `${title}, the last ${samples.length} seconds`),
    names ? h("div", { class: "legend" }, names.map((name, at) => h("span", {}, h("i", { class: `k${at + 1}` }), name))) : null);
}

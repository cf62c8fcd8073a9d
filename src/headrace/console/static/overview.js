// The hub at a glance.

import { alarmsPanel } from "./alarms.js";
import { call } from "./api.js";
import { LineChart, Recent, legend } from "./charts.js";
import { ask, attempt, field, form, line, note } from "./dialogs.js";
import { bytes, count, facts, fill, h, head, hubMs, notAll, number, place, seconds } from "./dom.js";
import { liveTable } from "./table.js";

const perSecond = Object.assign((value) => `${bytes(value)}/s`, { inBytes: true });
const rate = (unit) => (value) => `${number(value)} ${unit}`;

const CARDS = [
  {
    title: "Records in and out",
    keys: ["records_in", "records_out"],
    names: ["in", "out"],
    format: rate("records/s"),
    figure: (last) => [number(last.records_in), " ", h("small", {}, "in"), " · ", number(last.records_out), " ", h("small", {}, "out")],
    unit: "records/s",
  },
  {
    title: "Append to durable",
    keys: ["commit_p50_ms", "commit_p99_ms"],
    names: ["p50", "p99"],
    format: (value) => seconds(value / 1000),
    figure: (last) =>
      last.commit_p50_ms === null
        ? "no commits"
        : [seconds(last.commit_p50_ms / 1000), " ", h("small", {}, "p50"), " · ", seconds(last.commit_p99_ms / 1000), " ", h("small", {}, "p99")],
    unit: (last) => (last.commit_p50_ms === null ? "in the last second" : ""),
  },
  {
    title: "Payload in",
    keys: ["bytes_in"],
    format: perSecond,
    figure: (last) => perSecond(last.bytes_in),
    unit: "",
  },
  {
    title: "Commits",
    keys: ["commits"],
    format: rate("per s"),
    figure: (last) => number(last.commits),
    unit: "per second, each one fdatasync",
  },
  {
    title: "Sealed on disk",
    keys: ["segment_bytes"],
    format: bytes,
    figure: (last) => bytes(last.segment_bytes),
    unit: (last) => `${bytes(last.free_bytes)} free`,
  },
  {
    title: "In memory, not sealed yet",
    keys: ["tail_bytes"],
    format: bytes,
    figure: (last) => bytes(last.tail_bytes),
    unit: "on disk in the journal",
  },
  {
    title: "Waiting for the disk",
    keys: ["queue_bytes"],
    format: bytes,
    figure: (last) => bytes(last.queue_bytes),
    unit: "not acknowledged yet",
  },
  {
    title: "Memory used by the hub",
    keys: ["resident_bytes"],
    format: bytes,
    figure: (last) => bytes(last.resident_bytes),
    unit: "resident",
  },
  {
    title: "Open sessions",
    keys: ["open_sessions"],
    format: (value) => count(value, "session"),
    figure: (last) => number(last.open_sessions),
    unit: "across all protocols",
  },
];

export async function overviewPage(root, parts, view) {
  const info = await call("hub.info");
  const opened = Date.now();
  const quiet = h("span", {});
  const alarms = alarmsPanel(view);
  const cards = CARDS.map(card);
  const figures = h(
    "div",
    { class: "grid" },
    cards.map((one) => one.element),
  );
  const partly = h("div", { class: "card", hidden: true }, notAll());
  const recent = new Recent(300);
  const listeners = liveTable(
    [
      { title: "Listener", cell: (row) => row.name },
      { title: "Address", cell: (row) => (row.address ? h("code", {}, row.address) : h("span", { class: "quiet" }, "on the HTTP port, or on its own ports")) },
      {
        title: "Open sessions",
        number: true,
        cell: (row) => (row.sessions === null ? "–" : row.sessions ? h("a", { href: place(["sessions"], { text: row.name }) }, number(row.sessions)) : "0"),
      },
    ],
    { label: "Listeners", key: (row) => row.name },
  );
  fill(
    root,
    head("Overview", quiet, info.data ? h("button", { type: "button", onclick: backUp }, "Back up…") : null),
    alarms.element,
    figures,
    partly,
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Listeners"),
      listeners.element,
      info.missing.length ? h("p", { class: "quiet" }, `Not installed: ${info.missing.join(", ")}`) : null,
    ),
  );

  async function backUp() {
    const answer = await ask(
      "Back up this hub",
      form(
        field("Directory on the hub's machine, below log.backup_root", "path", { required: true, value: new Date(hubMs()).toISOString().slice(0, 16).replace(":", "") }),
        (values) => line(["backup", values.path]),
        () => "The log is copied there and checked. It holds everything acknowledged until then; the hub keeps working meanwhile.",
      ),
      { ok: "Back up" },
    );
    if (!answer) return;
    note("Backing up…");
    await attempt(async () => {
      const made = await call("hub.backup", { path: answer.path });
      await ask(
        "Backed up, and checked",
        facts([
          ["Directory", h("code", {}, made.path)],
          ["Holds", `${count(made.records, "record")} of ${count(made.streams, "stream")}`],
          ["Size", `${bytes(made.bytes)} in ${count(made.files, "file")}`],
          ["Shares with the data directory", made.linked_bytes ? `${bytes(made.linked_bytes)}: copy it elsewhere to be safe from the loss of this disk` : null],
          ["Took", seconds(made.seconds)],
        ]),
        { ok: "Close", cancel: false },
      );
    });
  }

  view.onPulse((taken) => {
    if (!taken.length) return;
    const samples = taken.map((sample) => ({
      ...sample,
      open_sessions: Object.values(sample.sessions).reduce((sum, one) => sum + one, 0),
    }));
    const last = samples.at(-1);
    const whole = last.records_in !== null; // whoever may read some streams only is told nothing of the others
    figures.hidden = !whole;
    partly.hidden = whole;
    const sizes = whole ? ` · ${count(last.streams, "stream")}, ${count(last.tables, "table")}` : "";
    quiet.textContent = `Headrace ${info.version} · up ${seconds(Math.round(info.uptime_s + (Date.now() - opened) / 1000))}${sizes}${info.data && ` · data in ${info.data}`}`;
    alarms.update(last);
    if (whole) for (const one of cards) one.update(samples, last, recent.now());
    const services = Object.keys(last.sessions).filter((name) => !(name in info.listeners));
    const listening = Object.entries(info.listeners).filter(([name]) => !name.includes("."));
    listeners.update(
      [...listening, ...services.map((name) => [name, null])].map(([name, address]) => ({ name, address, sessions: whole ? (last.sessions[name] ?? 0) : null })),
    );
  });
}

function card({ title, keys, names = [], format, figure, unit }) {
  const chart = new LineChart(`${title}, the last minutes`, format, names).linkTo();
  const shown = h("div", { class: "figure" });
  const element = h(
    "section",
    { class: "card" },
    h("div", { class: "bar" }, h("h2", {}, title), h("span", { class: "push" }), names.length ? legend(names) : null),
    shown,
    chart.element,
  );
  function update(samples, last, events) {
    fill(shown, figure(last), " ", h("small", {}, typeof unit === "function" ? unit(last) : unit));
    const stepS = (last.time_ms - samples[0].time_ms) / 1000 / (samples.length - 1) || 1; // a hub that is very busy is late with its seconds
    chart.update(keys.map((key) => samples.map((sample) => sample[key])), stepS, null, events);
  }
  return { element, update };
}

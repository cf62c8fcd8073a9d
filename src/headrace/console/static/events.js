// A day of the hub: rates, lags, latencies, and what happened. Drag over a chart to look closer.

import { call, callIfThere } from "./api.js";
import { LineChart, legend } from "./charts.js";
import { compact, count, empty, fill, h, head, hubMs, moment, number, pill, place, seconds } from "./dom.js";
import { liveTable } from "./table.js";

const RANGES = [
  ["900", "15 min"],
  ["3600", "1 h"],
  ["21600", "6 h"],
  ["86400", "24 h"],
];
const KINDS = { alarm: "bad", clear: "good", start: "", stop: "warn", takeover: "warn", pipeline: "" };
const BEFORE_S = 1800;
const AFTER_S = 300;

const CHARTS = [
  ["Records in and out", ["records_in", "records_out"], ["in", "out"], (value) => `${compact(value)}/s`],
  ["Append to durable", ["commit_p50_ms", "commit_p99_ms"], ["p50", "p99"], (value) => seconds(value / 1000)],
  ["Furthest behind", ["lag"], [], (value) => count(value, "record")],
  ["Open sessions", ["sessions"], [], (value) => count(value, "session")],
];

const WHOLE = ["records_in", "commit_p50_ms", "sessions"]; // not for whoever may read some streams only

export async function eventsPage(root, parts, view) {
  const told = h("section", { class: "card", "aria-label": "What changed", hidden: true });
  const ranges = h(
    "span",
    { class: "group", role: "group", "aria-label": "How far back" },
    RANGES.map(([value, title]) => h("button", { type: "button", "data-range": value, onclick: () => look({ last: value }) }, title)),
  );
  const span = h("span", { class: "quiet" });
  const stream = view.shown.stream;
  const charts = [
    ...(stream ? [["Records to this stream", [(one) => one.rates[stream] ?? null], [], (value) => `${compact(value)}/s`]] : []),
    ...CHARTS,
  ].map(card);
  const rows = liveTable(
    [
      { title: "Time (UTC)", cell: (row) => h("span", { class: "still" }, moment(row.time_us).slice(0, 19)) },
      { title: "What", cell: (row) => pill(row.kind, KINDS[row.kind]) },
      { title: "Event", wrap: true, cell: (row) => (row.page.length ? h("a", { href: place(row.page) }, row.title) : row.title) },
      {
        title: "",
        cell: (row) =>
          h(
            "span",
            { class: "actions" },
            h(
              "button",
              { type: "button", class: "quiet-button", onclick: () => look({ since: row.time_us - BEFORE_S * 1e6, until: row.time_us + AFTER_S * 1e6 }) },
              "Zoom",
            ),
            row.kind === "alarm" ? h("a", { href: place(["events"], { before: row.time_us }) }, "What changed before") : null,
          ),
      },
    ],
    { label: "Events", key: (row) => `${row.time_us} ${row.title}`, empty: empty("Nothing happened.", "Starts, stops, takeovers, alarms and changes to pipelines are listed here.") },
  );
  fill(
    root,
    head("History", stream ? ["Of ", h("a", { href: place(["stream", stream]) }, stream), ", over the last day."] : "What the hub did over the last day.", ranges),
    told,
    h("div", { class: "bar" }, span),
    h(
      "div",
      { class: "grid wide" },
      charts.map((one) => one.element),
    ),
    h("section", { class: "card" }, h("h2", {}, "Events"), rows.element),
  );
  if (view.shown.before) {
    const at = Number(view.shown.before);
    view.keep({ since: at - BEFORE_S * 1e6, until: at + AFTER_S * 1e6, last: null });
    tell(at);
  }

  // What differs between the last five minutes before a moment and those before them.
  async function tell(at) {
    const found = await callIfThere("console.changes", { before_us: at }, null);
    if (found === null) return;
    const value = (one, figure) => (one.unit === "ms" ? seconds(figure / 1000) : number(figure));
    told.hidden = false;
    fill(
      told,
      h("h2", {}, `What changed before ${moment(at).slice(0, 19)} UTC`),
      h("p", { class: "quiet" }, "The five minutes before it, compared with the twenty-five before those; below, everything that happened."),
      found.changes.length
        ? h(
            "ul",
            { class: "changes" },
            found.changes.map((one) =>
              h(
                "li",
                {},
                h("a", { href: place(one.page) }, one.what),
                `: ${value(one, one.was)} → `,
                h("b", {}, value(one, one.became)),
                one.unit === "ms" ? "" : ` ${one.unit}`,
              ),
            ),
          )
        : h("p", {}, "No figure has doubled or halved."),
      h(
        "ul",
        { class: "changes" },
        found.events.map((one) => h("li", {}, h("span", { class: "still quiet" }, `${moment(one.time_us).slice(11, 19)} `), pill(one.kind, KINDS[one.kind]), " ", one.page.length ? h("a", { href: place(one.page) }, one.title) : one.title)),
      ),
    );
  }

  // last: seconds back from now; or since and until.
  function look({ last = null, since = null, until = null }) {
    told.hidden = true;
    view.keep({ last, since: since && Math.round(since), until: until && Math.round(until), before: null });
    view.now();
  }

  function card([title, keys, names, format]) {
    const chart = new LineChart(title, format, names);
    chart.onSpan((from, to) => shown && look({ since: at(from), until: at(to) }));
    const element = h(
      "section",
      { class: "card" },
      h("div", { class: "bar" }, h("h2", {}, title), h("span", { class: "push" }), names.length ? legend(names) : null),
      chart.element,
    );
    const taken = keys.map((key) => (typeof key === "function" ? key : (one) => one[key]));
    return { element, hubs: keys.some((key) => WHOLE.includes(key)), update: (found) => chart.update(taken.map((take) => found.moments.map((one) => (one ? take(one) : null))), found.step_us / 1e6, (found.since_us + found.step_us * (found.moments.length - 1)) / 1000, found.events) };
  }
  let shown = null;
  const at = (part) => shown.since_us + part * shown.step_us * (shown.moments.length - 1);

  async function refresh() {
    const { last = "900", stream: chosen } = view.shown;
    const [since, until] = [view.shown.since, view.shown.until].map((one) => Math.round(Number(one)) || null); // whatever was typed
    const nowUs = hubMs() * 1000;
    const asked = since ? { since_us: since, until_us: until ?? Math.round(nowUs) } : { since_us: Math.round(nowUs - (Number(last) || 900) * 1e6), until_us: Math.round(nowUs + 60e6) };
    shown = await callIfThere("console.history", chosen ? { ...asked, stream: chosen } : asked, null);
    if (shown === null) {
      fill(root, head("History"), h("div", { class: "card" }, empty("This hub keeps no history.", "http.history is off.")));
      return;
    }
    for (const button of ranges.children) button.setAttribute("aria-pressed", String(!since && button.dataset.range === last));
    span.textContent = since ? `${moment(asked.since_us).slice(0, 19)} to ${moment(Math.min(asked.until_us, nowUs)).slice(11, 19)} UTC` : `The last ${seconds(Number(last))}; drag over a chart to look closer.`;
    for (const one of charts) {
      one.update(shown);
      one.element.hidden = one.hubs && shown.moments.some((each) => each && each.records_in === null);
    }
    rows.update([...shown.events].reverse());
  }
  await view.every(refresh);
}

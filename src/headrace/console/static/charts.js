// Small line charts as SVG, with their scale in words.

import { callIfThere } from "./api.js";
import { bytes, fill, h, hubMs, place, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 80;
const MARKS_MAX = 60;
const NEAR = 0.015;
const RECENT_MS = 5000;

// One or more lines on one scale from zero. `format` says a value with its unit.
export class LineChart {
  constructor(label, format, names = []) {
    this.format = format;
    this.unit = format === bytes || format.inBytes ? 1024 : 1000;
    this.names = names;
    this.lines = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    });
    this.top = h("span", { class: "chart-top" });
    this.since = h("span", {});
    this.read = h("span", { class: "chart-read" });
    this.last = h("span", {}, "now");
    this.element = h(
      "div",
      {
        class: "chart",
        onpointermove: (event) => this.point(event),
        onpointerleave: () => {
          this.at = null;
          this.say();
        },
      },
      this.top,
      this.lines,
      h("div", { class: "chart-foot" }, this.since, this.read, this.last),
    );
    this.at = null;
  }

  // What is done with a span that somebody has dragged over, as parts of the width.
  onSpan(work) {
    this.element.classList.add("spans");
    const part = (event) => {
      const place = this.lines.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - place.left) / place.width));
    };
    let from = null;
    this.lines.addEventListener("pointerdown", (event) => {
      from = part(event);
      this.lines.setPointerCapture(event.pointerId);
    });
    this.lines.addEventListener("pointerup", (event) => {
      const to = part(event);
      if (from !== null && Math.abs(to - from) > 0.02) work(Math.min(from, to), Math.max(from, to));
      from = null;
    });
  }

  // Drag over it to see these minutes in the history; `shown` says of what.
  linkTo(shown = {}) {
    this.element.title = "Drag to see these minutes in the history";
    this.onSpan((from, to) => {
      location.hash = place(["events"], { ...shown, since: this.timeUs(from), until: this.timeUs(to) });
    });
    return this;
  }

  // When it was at a part of the width.
  timeUs(part) {
    const spanS = Math.max(1, (this.series?.[0].length ?? 1) - 1) * this.stepS;
    return Math.round(((this.endMs ?? hubMs()) - (1 - part) * spanS * 1000) * 1000);
  }

  // endMs: when the last value was, if that is not now. marks: events to show at their times.
  update(series, stepS = 1, endMs = null, marks = []) {
    this.series = series;
    this.stepS = stepS;
    this.endMs = endMs;
    const [firstUs, lastUs] = [this.timeUs(0), this.timeUs(1)];
    const step = (2 * stepS * 1e6) / (lastUs - firstUs); // what was within two steps of the ends is shown there: a start is before the first value
    this.marks = marks
      .map((one) => ({ ...one, part: (one.time_us - firstUs) / (lastUs - firstUs) }))
      .filter((one) => one.part >= -step && one.part <= 1 + step)
      .map((one) => ({ ...one, part: Math.min(1, Math.max(0, one.part)) }))
      .slice(-MARKS_MAX);
    const length = Math.max(...series.map((values) => values.length));
    const most = Math.max(...series.flat().filter((value) => value !== null), 0);
    const top = nice(most, this.unit);
    this.top.textContent = most > 0 ? this.format(top) : "\u00a0";
    this.since.textContent = length > 1 ? this.when((length - 1) * stepS) : "";
    this.last.textContent = endMs === null ? "now" : this.when(0);
    fill(
      this.lines,
      series.map((values, which) => drawn(values, top, which)),
      this.marks.map(({ part, kind, title }) => {
        const x = (part * WIDTH).toFixed(1);
        return svg("path", { class: `mark of-${kind}`, d: `M${x} 0V${HEIGHT}` }, svg("title", {}, title));
      }),
    );
    this.say();
  }

  when(agoS) {
    return this.endMs === null ? ago(agoS) : new Date(this.endMs - agoS * 1000).toISOString().slice(11, 19);
  }

  point(event) {
    const place = this.lines.getBoundingClientRect();
    this.at = Math.min(1, Math.max(0, (event.clientX - place.left) / place.width));
    this.say();
  }

  say() {
    if (this.at === null || !this.series) {
      this.read.textContent = "";
      return;
    }
    const length = this.series[0].length;
    const index = Math.round(this.at * (length - 1));
    const values = this.series.map((one, which) =>
      one[index] === null || one[index] === undefined
        ? null
        : `${this.names[which] ? `${this.names[which]} ` : ""}${this.format(one[index])}`,
    );
    const near = this.marks.filter((one) => Math.abs(one.part - this.at) < NEAR).map((one) => one.title);
    this.read.textContent = [this.when((length - 1 - index) * this.stepS), ...values.filter(Boolean), ...near.slice(-1)].join(" · ");
  }
}

const ago = (value) =>
  value < 1 ? "now" : value < 100 ? `${Math.round(value)} s ago` : `${Math.round(value / 60)} min ago`;

function drawn(values, top, which) {
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((value, at) =>
    value === null ? null : [(at * step).toFixed(1), (HEIGHT - 1 - (value / top) * (HEIGHT - 4)).toFixed(1)],
  );
  const runs = [];
  points.forEach((point, at) => {
    if (!point) return;
    if (at === 0 || !points[at - 1]) runs.push([]);
    runs.at(-1).push(point);
  });
  return runs.map((run) => {
    const line = run.map(([x, y], at) => `${at ? "L" : "M"}${x} ${y}`).join("");
    const dot = run.length === 1 ? "h0.1" : "";
    return [
      which === 0
        ? svg("path", { class: "area s1", d: `${line}L${run.at(-1)[0]} ${HEIGHT}L${run[0][0]} ${HEIGHT}Z` })
        : null,
      svg("path", { class: `line s${which + 1}`, d: line + dot }),
    ];
  });
}

// A little room above the highest value, at a number that is round in its unit.
function nice(value, thousand) {
  if (value <= 0) return 1;
  let scale = 1;
  while (value / scale >= thousand) scale *= thousand;
  const ten = 10 ** Math.floor(Math.log10(value / scale));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((one) => one * ten * scale).find((one) => one >= value);
}

// What happened in the last minutes, for the marks of a chart: asked for now and then, and kept until it is asked again.
export class Recent {
  constructor(spanS) {
    this.spanS = spanS;
    this.askedMs = 0;
    this.events = [];
  }

  now() {
    if (Date.now() - this.askedMs > RECENT_MS) {
      this.askedMs = Date.now();
      this.ask().catch(() => {}); // the page says that the hub is away
    }
    return this.events;
  }

  async ask() {
    const nowUs = hubMs() * 1000;
    const asked = { since_us: nowUs - this.spanS * 1e6, until_us: nowUs + 60e6, points: 1 };
    this.events = (await callIfThere("console.history", asked, { events: [] })).events;
  }
}

export const legend = (names) =>
  h(
    "div",
    { class: "legend" },
    names.map((name, at) => h("span", {}, h("i", { class: `k${at + 1}` }), name)),
  );

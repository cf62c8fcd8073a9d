// Calls and checkpoints of an immortal over its log: a lane for each sender, a box with its name for each message,
// checkpoints across all of them.

import { h, moment, number, svg, timeOfDay } from "./dom.js";

const LANE = 34;
const BOX = { width: 112, height: 22, gap: 6 };
const LEFT = 8;
const TOP = 26;
const NAME = 15; // characters that fit

// entries: logged messages in order; checkpoints: { id, position, time_us }. onChoose(entry) when a box is chosen.
export function timeline(entries, checkpoints, onChoose) {
  const first = entries[0]?.index ?? 0;
  const last = entries.at(-1)?.index ?? first;
  const step = BOX.width + BOX.gap;
  const width = LEFT + entries.length * step + 60;
  const lanes = [...new Set(entries.map(lane))];
  const height = TOP + lanes.length * LANE + 22;
  const shown = checkpoints.filter((one) => one.position >= first && one.position <= last + 1);
  const before = (position) => LEFT + entries.filter((entry) => entry.index < position).length * step - BOX.gap / 2;
  return h(
    "div",
    { class: "timeline-figure" },
    h(
      "div",
      { class: "lanes", "aria-hidden": "true" },
      lanes.map((name) => h("span", { title: name }, name)),
    ),
    h(
      "div",
      { class: "timeline-scroll", tabindex: 0, role: "region", "aria-label": "Messages in the order of the log" },
      svg(
        "svg",
        {
          class: "timeline",
          width,
          height,
          role: "img",
          "aria-label": `${entries.length} logged messages and ${shown.length} checkpoints, index ${first} to ${last}`,
        },
        lanes.map((_, at) => svg("line", { class: "lane-line", x1: 0, x2: width, y1: middle(at), y2: middle(at) })),
        shown.map((one) =>
          svg(
            "g",
            { class: "checkpoint" },
            svg("title", {}, `checkpoint ${one.id} before index ${one.position}, ${moment(one.time_us)} UTC`),
            svg("line", { x1: before(one.position), x2: before(one.position), y1: TOP - 8, y2: height - 20 }),
            svg("text", { x: before(one.position) + 3, y: TOP - 12 }, `checkpoint ${one.id}`),
          ),
        ),
        entries.map((entry, at) => box(entry, LEFT + at * step, lanes.indexOf(lane(entry)), onChoose)),
        svg("text", { class: "axis", x: LEFT, y: height - 4 }, `index ${number(first)}${entries.length ? `, ${timeOfDay(entries[0].time_us)}` : ""}`),
        svg(
          "text",
          { class: "axis", x: LEFT + entries.length * step, y: height - 4, "text-anchor": "end" },
          entries.length > 3 ? `index ${number(last)}, ${timeOfDay(entries.at(-1).time_us)}` : "",
        ),
      ),
    ),
  );
}

const middle = (at) => TOP + at * LANE + LANE / 2;
const lane = (entry) => (entry.caller === "@outside" ? "outside" : (entry.sender ?? "itself"));

function box(entry, x, at, onChoose) {
  const state = entry.answer?.raised || entry.kind.includes("exception") ? "bad" : entry.answer ? "answered" : "";
  return svg(
    "g",
    { class: `message ${entry.kind} ${state}`.trim(), onclick: () => onChoose(entry) },
    svg("title", {}, `#${entry.sequence} ${said(entry)}`),
    svg("rect", { x, y: middle(at) - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 5 }),
    svg("text", { x: x + 7, y: middle(at) + 4 }, clipped(title(entry), NAME)),
  );
}

const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export const title = (entry) =>
  entry.name ?? (entry.method === null || entry.method === undefined ? entry.kind : `method ${entry.method}`);

export const said = (entry) =>
  [
    entry.kind,
    title(entry) === entry.kind ? null : title(entry),
    entry.sender ? `from ${entry.sender}` : entry.caller === "@outside" ? "from outside" : null,
  ]
    .filter(Boolean)
    .join(" ");

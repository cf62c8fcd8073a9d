// Calls and checkpoints of an immortal over its log: a lane for each sender, checkpoints across all of them.

import { h, moment, number, svg, timeOfDay } from "./dom.js";

const WIDTH = 900;
const LANE = 30;
const LEFT = 150;
const TOP = 26;

// entries: logged messages in order; checkpoints: { id, position, time_us }. onChoose(entry) when a mark is chosen.
export function timeline(entries, checkpoints, onChoose) {
  const first = entries[0]?.index ?? 0;
  const last = entries.at(-1)?.index ?? first;
  const span = Math.max(1, last - first + 1);
  const x = (position) => LEFT + ((position - first) / span) * (WIDTH - LEFT - 20);
  const lanes = [...new Set(entries.map((entry) => entry.sender ?? "itself"))];
  const height = TOP + lanes.length * LANE + 22;
  const shown = checkpoints.filter((one) => one.position >= first && one.position <= last + 1);
  return h(
    "div",
    { class: "timeline-scroll", tabindex: 0, "aria-label": "Timeline" },
    svg(
      "svg",
      {
        class: "timeline",
        viewBox: `0 0 ${WIDTH} ${height}`,
        role: "img",
        "aria-label": `${entries.length} logged messages and ${shown.length} checkpoints, index ${first} to ${last}`,
      },
      lanes.map((lane, at) => [
        svg(
          "text",
          { class: "lane", x: 8, y: TOP + at * LANE + 19 },
          lane.length > 18 ? `${lane.slice(0, 17)}…` : lane,
        ),
        svg("line", {
          class: "lane-line",
          x1: LEFT,
          x2: WIDTH - 10,
          y1: TOP + at * LANE + 15,
          y2: TOP + at * LANE + 15,
        }),
      ]),
      shown.map((one) =>
        svg(
          "g",
          { class: "checkpoint" },
          svg("title", {}, `checkpoint ${one.id} before index ${one.position}, ${moment(one.time_us)} UTC`),
          svg("line", { x1: x(one.position), x2: x(one.position), y1: TOP - 8, y2: height - 20 }),
          svg("text", { x: x(one.position), y: TOP - 12, "text-anchor": "middle" }, `checkpoint ${one.id}`),
        ),
      ),
      entries.map((entry) =>
        svg(
          "circle",
          {
            class: `message ${entry.kind}`,
            cx: x(entry.index + 0.5),
            cy: TOP + lanes.indexOf(entry.sender ?? "itself") * LANE + 15,
            r: entries.length > 60 ? 4 : 6,
            onclick: () => onChoose(entry),
          },
          svg("title", {}, `#${entry.sequence} ${said(entry)}`),
        ),
      ),
      svg(
        "text",
        { class: "axis", x: LEFT, y: height - 4 },
        `index ${number(first)}${entries.length ? `, ${timeOfDay(entries[0].time_us)}` : ""}`,
      ),
      svg(
        "text",
        { class: "axis", x: WIDTH - 10, y: height - 4, "text-anchor": "end" },
        `index ${number(last)}${entries.length ? `, ${timeOfDay(entries.at(-1).time_us)}` : ""}`,
      ),
    ),
  );
}

export const said = (entry) =>
  [entry.kind, entry.sender ? `from ${entry.sender}` : null, entry.method === null ? null : `method ${entry.method}`]
    .filter(Boolean)
    .join(" ");

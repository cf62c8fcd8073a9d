// A state machine drawn from its table: states from left to right by how soon they can be reached, the current ones
// marked, and what may happen there in words.

import { h, svg } from "./dom.js";

const BOX = { width: 128, height: 34 };
const GAP = { x: 78, y: 20 };
const MARGIN = 26;

// machine: { states, changes: [{ before, after, events }] }; marks: state → what is in it.
export function diagram(machine, marks) {
  const places = layout(machine);
  const width = Math.max(...[...places.values()].map((place) => place.x)) + BOX.width + MARGIN;
  const height = Math.max(...[...places.values()].map((place) => place.y)) + BOX.height + MARGIN + 14;
  const moves = machine.changes.filter((change) => change.before !== change.after);
  const ordered = moves
    .filter((change) => marks.has(change.before) || !crowded(machine, change))
    .sort((one, other) => marks.has(one.before) - marks.has(other.before)); // what counts now is drawn on top
  const drawing = svg(
    "svg",
    {
      class: "machine",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": words(machine, marks),
    },
    svg("defs", {}, arrowHead("head", "arrowhead"), arrowHead("head-now", "arrowhead now")),
    ordered.map((change) => arrow(change, places, marks.has(change.before))),
    machine.states.map((state) => box(state, places.get(state), marks.get(state))),
    ordered.filter((change) => marks.has(change.before)).map((change) => label(change, places)),
  );
  const strip = h("div", { class: "machine-scroll", tabindex: 0, "aria-label": "Diagram" }, drawing);
  const now = places.get([...marks.keys()][0]);
  requestAnimationFrame(() => {
    if (now) strip.scrollLeft = (now.x + BOX.width / 2) * (drawing.clientWidth / width) - strip.clientWidth / 2; // it may be wider than the page
  });
  return h(
    "figure",
    { class: "machine-figure" },
    strip,
    h("figcaption", {}, next(machine, marks)),
  );
}

// Where almost every state leads, as when a link is lost, arrows would hide all others: only those that count now are drawn.
const crowded = (machine, { after }) =>
  machine.changes.filter((change) => change.after === after && change.before !== after).length > 5;

const arrowHead = (id, kind) =>
  svg(
    "marker",
    {
      id,
      class: kind,
      viewBox: "0 0 8 8",
      refX: 7,
      refY: 4,
      markerWidth: 7,
      markerHeight: 7,
      orient: "auto-start-reverse",
    },
    svg("path", { d: "M0 0L8 4L0 8z" }),
  );

function words(machine, marks) {
  const now = [...marks.keys()].join(", ");
  return `States ${machine.states.join(", ")}. Now: ${now || "none of them"}.`;
}

// Columns by the fewest steps from the first state; states without a way out stand last, those that lead only there before.
function layout(machine) {
  const ways = new Map(
    machine.states.map((state) => [
      state,
      machine.changes
        .filter((change) => change.before === state && change.after !== state)
        .map((change) => change.after),
    ]),
  );
  const ranks = new Map([[machine.states[0], 0]]);
  const queue = [machine.states[0]];
  while (queue.length) {
    const state = queue.shift();
    for (const after of ways.get(state)) {
      if (!ranks.has(after)) {
        ranks.set(after, ranks.get(state) + 1);
        queue.push(after);
      }
    }
  }
  const ends = new Set(machine.states.filter((state) => !ways.get(state).length));
  const nearEnds = new Set(
    machine.states.filter((state, at) => at && !ends.has(state) && ways.get(state).every((after) => ends.has(after))),
  );
  const inside = machine.states.filter((state) => !ends.has(state) && !nearEnds.has(state));
  const deepest = Math.max(0, ...inside.map((state) => ranks.get(state) ?? 0));
  const columns = [];
  for (const state of machine.states) {
    const rank = ends.has(state) ? deepest + 2 : nearEnds.has(state) ? deepest + 1 : (ranks.get(state) ?? 0);
    (columns[rank] ??= []).push(state);
  }
  const rows = Math.max(...columns.filter(Boolean).map((column) => column.length));
  const places = new Map();
  columns.filter(Boolean).forEach((column, x) => {
    const top = ((rows - column.length) * (BOX.height + GAP.y)) / 2;
    column.forEach((state, y) =>
      places.set(state, { x: MARGIN + x * (BOX.width + GAP.x), y: MARGIN + top + y * (BOX.height + GAP.y), column: x }),
    );
  });
  return places;
}

function box(state, place, inside) {
  const said = inside?.length > 1 ? `${state} (${inside.length})` : state;
  return svg(
    "g",
    { class: inside ? "state now" : "state", "data-state": state },
    svg("title", {}, inside ? `${state}: ${inside.join(", ")}` : state),
    svg("rect", { x: place.x, y: place.y, width: BOX.width, height: BOX.height, rx: 8 }),
    svg("text", { x: place.x + BOX.width / 2, y: place.y + BOX.height / 2 + 5, "text-anchor": "middle" }, said),
  );
}

// From side to side going on; around the outside going back or staying in a column.
function curve(change, places) {
  const from = places.get(change.before);
  const to = places.get(change.after);
  const middle = (place) => place.y + BOX.height / 2;
  if (to.column > from.column) {
    const start = [from.x + BOX.width, middle(from)];
    const end = [to.x, middle(to)];
    const bend = (end[0] - start[0]) / 2;
    const over =
      to.column > from.column + 1 && Math.abs(start[1] - end[1]) < BOX.height ? 30 + 8 * (to.column - from.column) : 0; // below what stands between
    return [start, [start[0] + bend, start[1] + over], [end[0] - bend, end[1] + over], end];
  }
  if (to.column === from.column) {
    const down = to.y > from.y ? 1 : -1;
    const start = [from.x + BOX.width, middle(from) + 6 * down];
    const end = [to.x + BOX.width, middle(to) - 6 * down];
    return [start, [start[0] + 40, start[1]], [end[0] + 40, end[1]], end];
  }
  const start = [from.x + BOX.width / 2, from.y];
  const end = [to.x + BOX.width / 2, to.y];
  const lift = Math.min(start[1], end[1]) - 22;
  return [start, [start[0], lift], [end[0], lift], end];
}

const at = (points, t) =>
  [0, 1].map((axis) => {
    const [a, b, c, d] = points.map((point) => point[axis]);
    return (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t ** 2 * c + t ** 3 * d;
  });

function arrow(change, places, now) {
  const [start, one, two, end] = curve(change, places);
  return svg(
    "g",
    { class: now ? "change now" : "change" },
    svg("title", {}, `${change.before} → ${change.after}: ${change.events.join(", ")}`),
    svg("path", { d: `M${start} C${one} ${two} ${end}`, "marker-end": `url(#${now ? "head-now" : "head"})` }),
  );
}

function label(change, places) {
  const [x, y] = at(curve(change, places), 0.5);
  const text = change.events.join(", ");
  return svg(
    "text",
    { class: "change-label", x, y: y - 4, "text-anchor": "middle" },
    text.length > 24 ? `${text.slice(0, 23)}…` : text,
  );
}

function next(machine, marks) {
  return [...marks].map(([state, inside]) => {
    const ways = machine.changes.filter((change) => change.before === state);
    return h(
      "div",
      {},
      h("p", {}, h("b", {}, state), ` ${inside.join(", ")}`),
      ways.length
        ? h(
            "ul",
            {},
            ways.map((change) =>
              h(
                "li",
                {},
                change.events.join(", "),
                change.after === state ? h("span", { class: "quiet" }, " stays") : [" → ", h("b", {}, change.after)],
              ),
            ),
          )
        : h("p", { class: "quiet" }, "Nothing follows."),
    );
  });
}

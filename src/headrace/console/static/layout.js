// Where the map's nodes are: in columns, by how many steps records have made, in an order that lets few edges cross.
// An edge that passes a column has a place in it, as a node has, and runs beside the nodes there.

const STEPS_MAX = 6;
const ROUNDS = 4;
const PASSES_MAX = 80;
const PASS = 14;
const ROW = { wide: 46, tight: 30 };
const TIGHT_FROM = 60;
const GAP = 60;
const GAP_MIN = 52; // an edge with its rate still fits
const BESIDE = 12;
const HEIGHT_MAX = 640;
const HEIGHT_MIN = 240;
// Of a column: its share of the width, and its bounds.
const WIDTHS = { producer: [1.25, 118, 180], consumer: [1.25, 118, 180], pipeline: [1.6, 130, 260], stream: [1.6, 140, 290] };

export const isStream = (node) => ["stream", "group", "rest"].includes(node.kind);

// The columns, each a list of nodes and passes. Every edge is given `via`: its passes, from left to right.
export function columnsOf(nodes, edges) {
  const steps = stepsOf(nodes, edges);
  const columns = [];
  for (const at of [...new Set(steps.values())].sort((one, other) => one - other)) {
    const column = nodes.filter((node) => steps.get(node) === at).sort((one, other) => one.name.localeCompare(other.name));
    columns.push(column);
  }
  const place = new Map(columns.flatMap((column, at) => column.map((node) => [node, at])));
  const between = (edge) => Math.max(0, place.get(edge.to) - place.get(edge.from) - 1);
  const passing = edges.reduce((sum, edge) => sum + between(edge), 0) <= PASSES_MAX;
  for (const edge of edges) {
    edge.via = Array.from({ length: passing ? between(edge) : 0 }, () => ({ kind: "pass", name: edge.to.name }));
    edge.via.forEach((pass, at) => columns[place.get(edge.from) + 1 + at].push(pass));
  }
  const links = edges.flatMap((edge) => {
    const chain = [edge.from, ...edge.via, edge.to];
    return chain.slice(1).map((to, at) => ({ from: chain[at], to }));
  });
  for (let round = 0; round < ROUNDS; round += 1) {
    for (let at = 1; at < columns.length; at += 1) order(columns[at], columns[at - 1], links, "to", "from");
    for (let at = columns.length - 2; at >= 0; at -= 1) order(columns[at], columns[at + 1], links, "from", "to");
  }
  return columns;
}

// How many steps records have made when they are there; what nobody writes comes first, who reads last.
function stepsOf(nodes, edges) {
  const steps = new Map(nodes.map((node) => [node, node.kind === "producer" ? 0 : node.kind === "pipeline" ? 2 : 1]));
  for (let round = 0; round < STEPS_MAX; round += 1) {
    for (const { from, to } of edges) {
      if (from.kind === "producer" || to.kind === "consumer") continue;
      if (steps.get(to) <= steps.get(from)) steps.set(to, steps.get(from) + 1);
    }
  }
  const last = nodes.reduce((most, node) => (node.kind === "consumer" ? most : Math.max(most, steps.get(node))), 1);
  for (const node of nodes) if (node.kind === "consumer") steps.set(node, last + 1);
  return steps;
}

// A column in the order of what its nodes are connected to.
function order(column, other, links, mine, theirs) {
  const places = new Map(other.map((node, at) => [node, at]));
  const found = new Map(column.map((node) => [node, []]));
  for (const link of links) if (places.has(link[theirs])) found.get(link[mine])?.push(places.get(link[theirs]));
  const middle = new Map([...found].map(([node, all]) => [node, all.length ? all.reduce((sum, one) => sum + one, 0) / all.length : Infinity]));
  column.sort((one, another) => {
    const [first, second] = [middle.get(one), middle.get(another)];
    return first === second ? one.name.localeCompare(another.name) : first - second;
  });
}

// Gives everything in the columns x, base (its y), wide, high and floats; returns the sizes of the whole.
export function lay(columns, width) {
  const kinds = columns.map((column) => WIDTHS[column.find((node) => node.kind !== "pass" && !isStream(node))?.kind ?? "stream"]);
  const gaps = columns.length - 1;
  const unit = (width - gaps * GAP) / kinds.reduce((sum, [share]) => sum + share, 0);
  const wide = kinds.map(([share, least, most]) => Math.floor(Math.min(most, Math.max(least, unit * share))));
  const all = wide.reduce((sum, one) => sum + one, 0);
  const gap = Math.max(GAP_MIN, (width - all) / Math.max(1, gaps));
  // streams that are connected to nothing stand side by side
  const beside = gaps ? 1 : Math.max(1, Math.floor((width + BESIDE) / (wide[0] + BESIDE)));
  const longest = Math.max(...columns.map((column) => Math.ceil(column.filter((node) => node.kind !== "pass").length / beside)));
  const row = longest > TIGHT_FROM ? ROW.tight : ROW.wide;
  const rowsOf = columns.map((column) => Math.ceil(column.length / beside));
  const heights = columns.map((column, at) => (gaps ? column.reduce((sum, node) => sum + heightOf(node, row), 0) : rowsOf[at] * row));
  const content = Math.max(...heights) + 8;
  const high = Math.min(content, Math.max(HEIGHT_MIN, Math.min(HEIGHT_MAX, innerHeight - 190)));
  let x = 0;
  columns.forEach((column, at) => {
    const floats = heights[at] <= high; // a short column beside a long one stays in view while that is scrolled
    const top = ((floats ? high : content) - heights[at]) / 2;
    let y = top;
    column.forEach((node, place) => {
      if (place && place % rowsOf[at] === 0) y = top;
      const across = x + Math.floor(place / rowsOf[at]) * (wide[at] + BESIDE);
      Object.assign(node, { x: across, base: y + 4, wide: wide[at], high: heightOf(node, row) - 8, floats });
      y += heightOf(node, row);
    });
    x += wide[at] + gap;
  });
  return { high, content, across: gaps ? x - gap : beside * (wide[0] + BESIDE) - BESIDE, tight: row === ROW.tight };
}

const heightOf = (node, row) => (node.kind === "pass" ? PASS : row);

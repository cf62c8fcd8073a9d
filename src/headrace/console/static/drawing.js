// Draws the map: nodes are links that stand in columns, edges are curves on a canvas with dots that move along them.
// Only what is in view is drawn, so that hundreds of streams cost no more than a screenful.

import { compact, fill, h, number } from "./dom.js";

const ROW = { stream: 46, tight: 30 };
const TIGHT_FROM = 60;
const NODE = { width: 250, least: 92 };
const BESIDE = 12;
const NARROW = 560;
const LABELS_MAX = 40;
const DOTS_MAX = 240;
const HEIGHT_MAX = 640;
const EDGE_TEXT = "11px system-ui, sans-serif";

export class MapDrawing {
  // onLaid() when columns have other places than before.
  constructor(onLaid) {
    this.onLaid = onLaid;
    this.still = h("canvas", { "aria-hidden": "true" });
    this.moving = h("canvas", { "aria-hidden": "true" });
    this.canvases = h("div", { class: "map-canvases" }, this.still, this.moving);
    this.space = h("div", { class: "map-space" });
    this.element = h(
      "div",
      {
        class: "map",
        role: "group",
        "aria-label": "Map of what flows where",
        onscroll: () => this.draw(),
        onkeydown: (event) => this.steer(event),
        onpointerover: (event) => this.mark(event.target.closest(".node")),
        onpointerleave: () => this.mark(null),
        onfocusin: (event) => this.mark(event.target.closest(".node")),
        onfocusout: () => this.mark(null),
      },
      this.canvases,
      this.space,
    );
    this.nodes = new Map();
    this.edges = [];
    this.marked = null;
    this.dots = 0;
    this.observer = new ResizeObserver(() => this.lay());
    this.observer.observe(this.element);
    this.themes = new MutationObserver(() => this.draw());
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.motion = matchMedia("(prefers-reduced-motion: reduce)");
    this.tick = requestAnimationFrame((now) => this.frame(now));
  }

  stop() {
    cancelAnimationFrame(this.tick);
    this.observer.disconnect();
    this.themes.disconnect();
  }

  update(nodes, edges) {
    const seen = new Set(nodes.map((one) => one.id));
    let changed = this.edges.length !== edges.length;
    for (const [id, node] of this.nodes) {
      if (seen.has(id)) continue;
      node.element.remove();
      this.nodes.delete(id);
      changed = true;
    }
    for (const one of nodes) {
      const known = this.nodes.get(one.id);
      if (known) Object.assign(known, one);
      else {
        this.nodes.set(one.id, { ...one, element: made(one), said: null });
        changed = true;
      }
    }
    this.edges = edges
      .filter((edge) => seen.has(edge.source) && seen.has(edge.target))
      .map((edge) => ({ rate: 0, lag: 0, trouble: "", ...edge, from: this.nodes.get(edge.source), to: this.nodes.get(edge.target) }));
    if (changed) this.place();
    for (const node of this.nodes.values()) this.say(node);
    if (changed) this.lay();
    else this.draw();
  }

  // Columns by how many steps records have made; streams that nobody writes stand first.
  place() {
    const depth = new Map();
    for (const node of this.nodes.values()) depth.set(node.id, node.kind === "producer" ? 0 : node.kind === "pipeline" ? 2 : 1);
    for (let round = 0; round < 6; round += 1) {
      for (const { source, target, from } of this.edges) {
        if (from.kind === "producer" || this.nodes.get(target).kind === "consumer") continue;
        if (depth.get(target) <= depth.get(source)) depth.set(target, depth.get(source) + 1);
      }
    }
    const last = Math.max(1, ...[...this.nodes.values()].filter((one) => one.kind !== "consumer").map((one) => depth.get(one.id)));
    const layers = new Map();
    for (const node of this.nodes.values()) {
      const at = node.kind === "consumer" ? last + 1 : depth.get(node.id);
      layers.set(at, [...(layers.get(at) ?? []), node]);
    }
    this.layers = [...layers].sort(([one], [other]) => one - other).map(([, column]) => column);
    this.layers.forEach((column) => column.sort((one, other) => one.name.localeCompare(other.name)));
    for (let round = 0; round < 3; round += 1) {
      this.layers.slice(1).forEach((column, at) => order(column, this.layers[at], this.edges, "to", "from"));
      order(this.layers[0], this.layers[1] ?? [], this.edges, "from", "to");
    }
    const sorted = this.layers.flat();
    sorted.forEach((node, at) => {
      if (this.space.children[at] !== node.element) this.space.insertBefore(node.element, this.space.children[at] ?? null);
    });
    if (!sorted.some((node) => node.element.tabIndex === 0) && sorted.length) sorted[0].element.tabIndex = 0;
  }

  columns() {
    return (this.layers ?? []).map((column) => ({
      kind: column[0].kind === "group" || column[0].kind === "rest" ? "stream" : column[0].kind,
      x: column[0].x,
      width: this.wide,
    }));
  }

  lay() {
    if (!this.layers?.length || !this.element.clientWidth) return;
    const width = this.element.clientWidth;
    const gaps = this.layers.length - 1;
    const gap = width < NARROW ? 24 : 90;
    this.wide = Math.max(NODE.least, Math.min(NODE.width, Math.floor((width - gaps * gap) / this.layers.length)));
    const step = Math.max(this.wide + gap, (width - this.wide) / Math.max(1, gaps));
    this.element.classList.toggle("narrow", width < NARROW);
    // streams that are connected to nothing stand side by side
    const beside = this.layers.length > 1 ? 1 : Math.max(1, Math.floor((width + BESIDE) / (this.wide + BESIDE)));
    const longest = Math.max(...this.layers.map((column) => Math.ceil(column.length / beside)));
    this.row = longest > TIGHT_FROM ? ROW.tight : ROW.stream;
    const content = longest * this.row + 8;
    const high = Math.min(content, Math.max(240, Math.min(HEIGHT_MAX, innerHeight - 190)));
    this.element.style.height = `${high}px`;
    this.space.style.height = `${content}px`;
    this.space.style.width = `${step * gaps + beside * this.wide + (beside - 1) * BESIDE}px`;
    this.element.classList.toggle("tight", this.row === ROW.tight);
    this.layers.forEach((column, at) => {
      // a short column beside a long one stays in view while that is scrolled
      const rows = Math.ceil(column.length / beside);
      const floats = rows * this.row <= high;
      const top = ((floats ? high : content) - rows * this.row) / 2;
      column.forEach((node, place) => {
        const x = at * step + Math.floor(place / rows) * (this.wide + BESIDE);
        Object.assign(node, { x, base: top + (place % rows) * this.row + 4, floats });
        node.element.style.width = `${this.wide}px`;
        node.element.style.height = `${this.row - 8}px`;
      });
    });
    for (const canvas of [this.still, this.moving]) {
      const [across, down] = [this.element.clientWidth, high].map((side) => Math.round(side * devicePixelRatio));
      if (canvas.width !== across || canvas.height !== down) Object.assign(canvas, { width: across, height: down });
      Object.assign(canvas.style, { width: `${this.element.clientWidth}px`, height: `${high}px` });
    }
    this.onLaid(this.columns());
    this.draw();
  }

  y(node) {
    return node.floats ? node.base + this.element.scrollTop : node.base;
  }

  say(node) {
    const said = JSON.stringify([node.name, node.words, compact(node.rate), node.trouble, node.href]);
    if (said === node.said) return;
    node.said = said;
    node.element.className = `node ${node.kind} ${node.trouble}`.trim();
    node.element.setAttribute("href", node.href);
    node.element.title = node.name;
    fill(
      node.element,
      h("span", { class: "node-name" }, node.name),
      h("span", { class: "node-rate" }, node.rate ? `${compact(node.rate)}/s` : ""),
      h("span", { class: "node-words" }, node.words),
    );
  }

  // In words, for whoever hears the map: made when a node is reached.
  describe(node) {
    const partners = (mine, other) => this.edges.filter((edge) => edge[mine] === node).map((edge) => edge[other].name);
    const [before, after] = [partners("to", "from"), partners("from", "to")];
    const trouble = { bad: "stopped or failed", warn: "behind" }[node.trouble];
    return [
      `${node.kind} ${node.name}`,
      node.rate ? `${number(node.rate)} records/s` : "no records now",
      node.words,
      trouble,
      before.length ? `from ${before.slice(0, 5).join(", ")}` : null,
      after.length ? `to ${after.slice(0, 5).join(", ")}` : null,
    ]
      .filter(Boolean)
      .join(", ");
  }

  mark(element) {
    const node = element ? ([...this.nodes.values()].find((one) => one.element === element) ?? null) : null;
    if (node === this.marked) return;
    this.marked = node;
    if (node) node.element.setAttribute("aria-label", this.describe(node));
    const near = new Set(node ? [node] : []);
    for (const edge of this.edges) if (edge.from === node || edge.to === node) near.add(edge.from).add(edge.to);
    this.element.classList.toggle("marked", Boolean(node));
    for (const one of this.nodes.values()) one.element.classList.toggle("near", near.has(one));
    this.draw();
  }

  steer(event) {
    const node = [...this.nodes.values()].find((one) => one.element === document.activeElement);
    if (!node) return;
    const column = this.layers.find((one) => one.includes(node));
    const along = (mine, other) => this.edges.find((edge) => edge[mine] === node)?.[other];
    const next = {
      ArrowDown: () => column[column.indexOf(node) + 1],
      ArrowUp: () => column[column.indexOf(node) - 1],
      ArrowRight: () => along("from", "to"),
      ArrowLeft: () => along("to", "from"),
      Home: () => this.layers[0][0],
      End: () => this.layers.at(-1).at(-1),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    node.element.tabIndex = -1;
    next.element.tabIndex = 0;
    next.element.focus();
  }

  draw() {
    if (!this.layers) return;
    for (const node of this.nodes.values()) {
      const at = `translate(${node.x}px, ${this.y(node)}px)`;
      if (node.at !== at) node.element.style.transform = node.at = at;
    }
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(name).trim();
    this.colours = { "": named("--c1"), warn: named("--warn"), bad: named("--bad"), still: named("--line"), text: named("--soft"), back: named("--card") };
    const [left, top] = [this.element.scrollLeft, this.element.scrollTop];
    const down = this.still.height / devicePixelRatio;
    this.canvases.style.transform = `translate(${left}px, ${top}px)`;
    const pen = cleared(this.still);
    this.visible = [];
    for (const edge of this.edges) {
      const curve = this.curve(edge, left, top);
      if (Math.max(curve[1], curve[7]) < -20 || Math.min(curve[1], curve[7]) > down + 20) continue;
      const dim = this.marked && edge.from !== this.marked && edge.to !== this.marked;
      this.visible.push({ edge, curve, dim });
      pen.globalAlpha = dim ? 0.15 : edge.rate || edge.trouble ? 0.55 : 1;
      pen.strokeStyle = edge.trouble ? this.colours[edge.trouble] : edge.rate ? this.colours[""] : this.colours.still;
      pen.lineWidth = edge.rate ? 1.2 + Math.min(3.2, Math.log10(1 + edge.rate)) : 1.2;
      pen.beginPath();
      pen.moveTo(curve[0], curve[1]);
      pen.bezierCurveTo(...curve.slice(2));
      pen.stroke();
    }
    const labelled = this.visible.filter(({ edge, dim }) => !dim && edge.rate && (this.marked || (this.visible.length <= LABELS_MAX && !this.element.classList.contains("narrow"))));
    for (const one of labelled.slice(0, LABELS_MAX)) this.label(pen, one);
    pen.globalAlpha = 1;
  }

  // Near the stream: there edges stand apart.
  label(pen, { edge, curve }) {
    const text = `${compact(edge.rate)}/s`;
    const [x, y] = along(curve, isStream(edge.to) ? 0.7 : 0.3);
    pen.font = EDGE_TEXT;
    const width = pen.measureText(text).width + 8;
    pen.globalAlpha = 0.92;
    pen.fillStyle = this.colours.back;
    pen.fillRect(x - width / 2, y - 8, width, 16);
    pen.globalAlpha = 1;
    pen.fillStyle = this.colours.text;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, x, y);
  }

  curve({ from, to }, left, top) {
    const half = (this.row - 8) / 2;
    const [x1, y1] = [from.x + this.wide - left, this.y(from) + half - top];
    const [x2, y2] = [to.x - left, this.y(to) + half - top];
    const bend = Math.max(24, Math.abs(x2 - x1) / 2);
    return [x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2];
  }

  frame(now) {
    this.tick = requestAnimationFrame((next) => this.frame(next));
    if (!this.visible || this.motion.matches || document.body.classList.contains("lost")) return;
    const flowing = this.visible.filter(({ edge, dim }) => edge.rate && !dim);
    if (!flowing.length && !this.dots) return; // nothing moves: the picture stays, and costs nothing
    const pen = cleared(this.moving);
    let dots = 0;
    for (const [at, { edge, curve }] of flowing.entries()) {
      if (dots >= DOTS_MAX) break;
      const many = 1 + Math.min(3, Math.floor(Math.log10(1 + edge.rate)));
      pen.fillStyle = this.colours[edge.trouble];
      for (let dot = 0; dot < many; dot += 1) {
        const [x, y] = along(curve, (now / 2400 + dot / many + at * 0.37) % 1);
        pen.beginPath();
        pen.arc(x, y, 2.5, 0, 7);
        pen.fill();
        dots += 1;
      }
    }
    this.dots = dots;
  }
}

const isStream = (node) => ["stream", "group", "rest"].includes(node.kind);

const made = (node) => {
  const element = h("a", { class: "node", href: node.href, "data-id": node.id });
  element.tabIndex = -1;
  return element;
};

function cleared(canvas) {
  const pen = canvas.getContext("2d");
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  return pen;
}

// A column in the order of what its nodes are connected to, so that few edges cross.
function order(column, other, edges, mine, theirs) {
  const places = new Map(other.map((node, at) => [node, at]));
  const sums = new Map(column.map((node) => [node, []]));
  for (const edge of edges) if (sums.has(edge[mine]) && places.has(edge[theirs])) sums.get(edge[mine]).push(places.get(edge[theirs]));
  const middle = new Map(
    [...sums].map(([node, found]) => [node, found.length ? found.reduce((sum, one) => sum + one, 0) / found.length : Infinity]),
  );
  column.sort((one, another) => middle.get(one) - middle.get(another) || one.name.localeCompare(another.name));
}

function along([x1, y1, x2, y2, x3, y3, x4, y4], t) {
  const u = 1 - t;
  const mix = (a, b, c, d) => u ** 3 * a + 3 * u * u * t * b + 3 * u * t * t * c + t ** 3 * d;
  return [mix(x1, x2, x3, x4), mix(y1, y2, y3, y4)];
}

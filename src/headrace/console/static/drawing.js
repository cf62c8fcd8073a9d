// Draws the map: nodes are links in columns, edges are curves on a canvas with dots that move along them.
// Only what is in view is drawn, so that hundreds of streams cost no more than a screenful.

import { compact, fill, h, number } from "./dom.js";
import { columnsOf, isStream, lay } from "./layout.js";

const LABELS_MAX = 40;
const LABEL_PLACES = [0.36, 0.24, 0.5]; // on the way from the stream
const DOTS_MAX = 240;
const DOT = 2.5;
const DOTS_EVERY_MS = 30; // slow dots need no more, and every picture of them costs a screenful of pixels
const AROUND_MS = 2400;
const EDGE_TEXT = "11px system-ui, sans-serif";
const NAME_TEXT = "550 13px system-ui, sans-serif";
const NAME_MARGIN = 22;
const TAIL_MAX = 14;

export class MapDrawing {
  // onLaid(columns) when they have other places than before.
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
    this.visible = [];
    this.flowing = [];
    this.marked = null;
    this.dotsMs = 0;
    this.observer = new ResizeObserver(() => this.lay());
    this.observer.observe(this.element);
    this.themes = new MutationObserver(() => {
      this.colours = null;
      this.draw();
    });
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
    let changed = false;
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
    const key = ({ source, target }) => `${source}\n${target}`;
    const before = new Map(this.edges.map((edge) => [key(edge), edge]));
    this.edges = edges
      .filter((edge) => seen.has(edge.source) && seen.has(edge.target))
      .map((edge) => ({ ...before.get(key(edge)), rate: 0, lag: 0, trouble: "", ...edge, from: this.nodes.get(edge.source), to: this.nodes.get(edge.target) }));
    changed ||= before.size !== this.edges.length || this.edges.some((edge) => !before.has(key(edge)));
    if (changed) this.place();
    if (changed) this.lay();
    for (const node of this.nodes.values()) this.say(node);
    if (!changed) this.draw();
  }

  place() {
    this.layers = columnsOf([...this.nodes.values()], this.edges);
    this.columns = this.layers.map((layer) => layer.filter((node) => node.kind !== "pass"));
    const sorted = this.columns.flat();
    sorted.forEach((node, at) => {
      if (this.space.children[at] !== node.element) this.space.insertBefore(node.element, this.space.children[at] ?? null);
    });
    if (!sorted.some((node) => node.element.tabIndex === 0) && sorted.length) sorted[0].element.tabIndex = 0;
  }

  lay() {
    if (!this.layers?.length || !this.element.clientWidth) return;
    const width = this.element.clientWidth;
    const { high, content, across, tight } = lay(this.layers, width);
    this.element.style.height = `${high}px`;
    this.element.classList.toggle("tight", tight);
    Object.assign(this.space.style, { height: `${content}px`, width: `${across}px` });
    for (const node of this.nodes.values()) Object.assign(node.element.style, { width: `${node.wide}px`, height: `${node.high}px` });
    for (const node of this.nodes.values()) if (node.said) this.say(node); // a name has as much room as its node
    const [wide, deep] = [width, high].map((side) => Math.round(side * devicePixelRatio));
    if (this.still.width !== wide || this.still.height !== deep) Object.assign(this.still, { width: wide, height: deep });
    Object.assign(this.still.style, { width: `${width}px`, height: `${high}px` });
    this.onLaid(this.columns.filter((column) => column.length).map(([{ kind, x, wide }]) => ({ kind, x, wide })));
    this.draw();
  }

  y(node) {
    return node.floats ? node.base + this.element.scrollTop : node.base;
  }

  say(node) {
    const said = JSON.stringify([node.name, node.words, compact(node.rate), node.trouble, node.href, node.wide]);
    if (said === node.said) return;
    node.said = said;
    node.element.className = `node ${node.kind} ${node.trouble}`.trim();
    node.element.setAttribute("href", node.href);
    node.element.title = node.name;
    fill(
      node.element,
      h("span", { class: "node-name" }, this.named(node)),
      h("span", { class: "node-rate" }, node.rate ? `${compact(node.rate)}/s` : ""),
      h("span", { class: "node-words" }, node.words),
    );
  }

  named(node) {
    const pen = this.still.getContext("2d");
    pen.font = NAME_TEXT;
    const [head, tail = null] = named(node.name, (node.wide ?? Infinity) - NAME_MARGIN, (text) => pen.measureText(text).width);
    return [h("span", {}, head), tail];
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
    const column = this.columns.find((one) => one.includes(node));
    const along = (mine, other) => this.edges.find((edge) => edge[mine] === node)?.[other];
    const next = {
      ArrowDown: () => column[column.indexOf(node) + 1],
      ArrowUp: () => column[column.indexOf(node) - 1],
      ArrowRight: () => along("from", "to"),
      ArrowLeft: () => along("to", "from"),
      Home: () => this.columns[0][0],
      End: () => this.columns.at(-1).at(-1),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    node.element.tabIndex = -1;
    next.element.tabIndex = 0;
    next.element.focus();
  }

  draw() {
    if (!this.layers) return;
    this.colours ??= colours();
    const [left, top] = [this.element.scrollLeft, this.element.scrollTop];
    const down = this.still.height / devicePixelRatio;
    for (const node of this.nodes.values()) {
      const y = this.y(node);
      if (node.drawnX !== node.x || node.drawnY !== y) node.element.style.transform = `translate(${node.x}px, ${y}px)`;
      Object.assign(node, { drawnX: node.x, drawnY: y });
    }
    this.canvases.style.transform = `translate(${left}px, ${top}px)`;
    const pen = cleared(this.still);
    this.visible = [];
    for (const edge of this.edges) {
      const curves = this.curves(edge, left, top);
      const heights = curves.flatMap((curve) => [curve[1], curve[7]]);
      if (Math.max(...heights) < -20 || Math.min(...heights) > down + 20) continue;
      const dim = this.marked && edge.from !== this.marked && edge.to !== this.marked;
      this.visible.push({ edge, curves, dim });
      pen.globalAlpha = dim ? 0.15 : edge.rate || edge.trouble ? 0.55 : 1;
      pen.strokeStyle = edge.trouble ? this.colours[edge.trouble] : edge.rate ? this.colours[""] : this.colours.still;
      pen.lineWidth = edge.rate ? 1.2 + Math.min(3.2, Math.log10(1 + edge.rate)) : 1.2;
      pen.beginPath();
      pen.moveTo(curves[0][0], curves[0][1]);
      for (const curve of curves) pen.bezierCurveTo(...curve.slice(2));
      pen.stroke();
    }
    this.flowing = this.visible.filter(({ edge, dim }) => edge.rate && !dim);
    this.reach(down);
    this.label(pen);
    this.dotsMs = 0;
  }

  // Dots are drawn many times a second, each time over the whole of their canvas: it is as large as the edges they are on.
  reach(down) {
    const points = this.flowing.flatMap(({ curves }) => curves);
    const [xs, ys] = [0, 1].map((side) => points.flatMap((curve) => curve.filter((_, at) => at % 2 === side)));
    const wide = this.still.width / devicePixelRatio;
    const [left, right] = [Math.max(0, Math.floor(Math.min(...xs) - DOT)), Math.min(wide, Math.ceil(Math.max(...xs) + DOT))];
    const [top, bottom] = [Math.max(0, Math.floor(Math.min(...ys) - DOT)), Math.min(down, Math.ceil(Math.max(...ys) + DOT))];
    const area = points.length ? [left, top, Math.max(1, right - left), Math.max(1, bottom - top)] : [0, 0, 1, 1];
    if (String(area) === String(this.area)) return;
    this.area = area;
    const [x, y, across, high] = area;
    Object.assign(this.moving, { width: Math.round(across * devicePixelRatio), height: Math.round(high * devicePixelRatio) });
    Object.assign(this.moving.style, { width: `${across}px`, height: `${high}px`, left: `${x}px`, top: `${y}px` });
  }

  // Where edges are apart: near the stream, or where they pass a column; and only if there is room.
  label(pen) {
    if (!this.marked && this.flowing.length > LABELS_MAX) return;
    pen.font = EDGE_TEXT;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const taken = [];
    for (const { edge, curves } of this.flowing.slice(0, LABELS_MAX)) {
      const text = `${compact(edge.rate)}/s`;
      const wide = pen.measureText(text).width + 6;
      const spots = edge.via.length
        ? [along(curves[1], 0.5)]
        : LABEL_PLACES.map((part) => (isStream(edge.to) ? along(curves.at(-1), 1 - part) : along(curves[0], part)));
      const spot = spots.find(
        ([x, y]) => !taken.some((one) => Math.abs(one.x - x) < (one.wide + wide) / 2 && Math.abs(one.y - y) < 14),
      );
      if (!spot) continue;
      const [x, y] = spot;
      taken.push({ x, y, wide });
      pen.globalAlpha = 0.9;
      pen.fillStyle = this.colours.back;
      pen.fillRect(x - wide / 2, y - 7, wide, 14);
      pen.globalAlpha = 1;
      pen.fillStyle = this.colours.text;
      pen.fillText(text, x, y);
    }
  }

  // From one node to the other, beside the nodes of the columns between them.
  curves({ from, to, via }, left, top) {
    const chain = [from, ...via, to];
    const middle = (node) => this.y(node) + node.high / 2 - top;
    return chain.slice(1).flatMap((next, at) => {
      const [x1, y1, x2, y2] = [chain[at].x + chain[at].wide - left, middle(chain[at]), next.x - left, middle(next)];
      const bend = Math.max(24, Math.abs(x2 - x1) / 2);
      const curve = [x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2];
      const end = x2 + next.wide;
      return next === to ? [curve] : [curve, [x2, y2, x2, y2, end, y2, end, y2]];
    });
  }

  frame(now) {
    this.tick = requestAnimationFrame((next) => this.frame(next));
    if (now - this.dotsMs < DOTS_EVERY_MS || this.motion.matches || document.body.classList.contains("lost")) return;
    if (!this.flowing.length && !this.dots) return; // nothing moves: the picture stays, and costs nothing
    this.dotsMs = now;
    this.dots = 0;
    const pen = cleared(this.moving);
    pen.translate(-this.area[0], -this.area[1]);
    for (const [at, { edge, curves }] of this.flowing.entries()) {
      if (this.dots >= DOTS_MAX) break;
      const many = 1 + Math.min(3, Math.floor(Math.log10(1 + edge.rate)));
      pen.fillStyle = this.colours[edge.trouble];
      pen.beginPath();
      for (let dot = 0; dot < many; dot += 1) {
        const part = ((now / AROUND_MS + dot / many + at * 0.37) % 1) * curves.length;
        const [x, y] = along(curves[Math.floor(part)], part % 1);
        pen.moveTo(x + DOT, y);
        pen.arc(x, y, DOT, 0, 7);
      }
      pen.fill();
      this.dots += many;
    }
  }
}

const made = (node) => {
  const element = h("a", { class: "node", href: node.href, "data-id": node.id });
  element.tabIndex = -1;
  return element;
};

// Where a name is too long, what it shares with others goes: the first parts of a path, then the end of its head.
export function named(name, room, width) {
  const parts = name.split(/(?<=[./])/);
  let from = 0;
  while (from < parts.length - 2 && width(`${from ? "…" : ""}${parts.slice(from).join("")}`) > room) from += 1;
  const shown = `${from ? "…" : ""}${parts.slice(from).join("")}`;
  const [, head, tail] = /^(.+)([./][^./]+)$/.exec(shown) ?? [];
  return !head || tail.length > TAIL_MAX || width(shown) <= room ? [shown] : [head, tail];
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { "": of("--c1"), warn: of("--warn"), bad: of("--bad"), still: of("--edge"), text: of("--soft"), back: of("--card") };
}

function cleared(canvas) {
  const pen = canvas.getContext("2d");
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  return pen;
}

function along([x1, y1, x2, y2, x3, y3, x4, y4], t) {
  const u = 1 - t;
  const mix = (a, b, c, d) => u ** 3 * a + 3 * u * u * t * b + 3 * u * t * t * c + t ** 3 * d;
  return [mix(x1, x2, x3, x4), mix(y1, y2, y3, y4)];
}

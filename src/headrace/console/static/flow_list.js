// The map where it is too narrow for columns: every stream with who writes it and who reads it.

import { compact, fill, h, refill } from "./dom.js";
import { isStream } from "./layout.js";

const GRAVITY = { bad: 2, warn: 1, "": 0 };

export class FlowList {
  constructor() {
    this.element = h("div", { class: "flows", hidden: true });
    this.streams = h("section", { class: "card", "aria-label": "Streams" });
    this.pipelines = h("section", { class: "card", "aria-label": "Pipelines" });
    fill(this.element, this.streams, this.pipelines);
  }

  update(nodes, edges) {
    const named = new Map(nodes.map((node) => [node.id, node]));
    const names = (node, mine, theirs) =>
      edges.filter((edge) => edge[mine] === node.id && named.has(edge[theirs])).map((edge) => named.get(edge[theirs]).name);
    const rows = (wanted) =>
      nodes
        .filter(wanted)
        .map((node) => ({ node, from: names(node, "target", "source"), to: names(node, "source", "target") }))
        .sort((one, other) => GRAVITY[other.node.trouble] - GRAVITY[one.node.trouble] || one.node.name.localeCompare(other.node.name));
    const pipelines = rows((node) => node.kind === "pipeline");
    refill(this.streams, h("h2", {}, "Streams"), rows(isStream).map(row));
    refill(this.pipelines, h("h2", {}, "Pipelines"), pipelines.map(row));
    this.pipelines.hidden = !pipelines.length;
  }
}

const row = ({ node, from, to }) =>
  h(
    "a",
    { class: `flow-row ${node.trouble}`.trim(), href: node.href },
    h("b", {}, node.name),
    h("span", { class: "node-rate" }, node.rate ? `${compact(node.rate)}/s` : ""),
    h("span", { class: "quiet" }, from.length + to.length ? [from, to].map((names) => names.join(", ") || "nobody").join(" → ") : "nothing is connected"),
    node.words ? h("span", { class: "quiet" }, node.words) : null,
  );

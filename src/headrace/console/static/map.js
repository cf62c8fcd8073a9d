// What flows where, live: producers by protocol, streams, pipelines, consumers by protocol.

import { alarmsPanel, loud } from "./alarms.js";
import { call } from "./api.js";
import { compact, count, empty, fill, h, head, number, place, searchField } from "./dom.js";
import { MapDrawing } from "./drawing.js";
import { firstRecord } from "./first.js";
import { FlowList } from "./flow_list.js";

const FEW = 40;
const MANY = 600;
export const PROTOCOLS = {
  flight: "Arrow Flight",
  wallaroo: "Wallaroo",
  ockam: "Ockam",
  futoin: "FutoIn",
  perper: "Perper",
  ambrosia: "AMBROSIA",
};
const HEADS = { producer: "Written by", stream: "Streams", pipeline: "Pipelines", consumer: "Read by" };

export async function mapPage(root, parts, view) {
  const alarms = alarmsPanel(view);
  const quiet = h("span", {});
  const search = searchField(view, "Filter streams", "Name, part of it, or a pattern");
  const way = h("span", { class: "bar" });
  const all = h("button", {
    type: "button",
    hidden: true,
    onclick: () => {
      view.keep({ all: view.shown.all ? null : 1 });
      view.now();
    },
  });
  const heads = h("div", { class: "map-heads", "aria-hidden": "true" });
  const drawing = new MapDrawing((columns) => fill(heads, columns.map(columnHead)));
  const none = h("div", {});
  const map = h("div", { class: "card map-card", hidden: true }, heads, drawing.element, legend());
  const list = new FlowList();
  const narrow = matchMedia("(max-width: 640px)"); // four columns do not fit on a phone
  const turned = () => view.now();
  narrow.addEventListener("change", turned);
  fill(
    root,
    head("Map", quiet, search),
    alarms.element,
    h("div", { class: "bar map-way" }, way, h("span", { class: "push" }), all),
    map,
    list.element,
    none,
  );
  view.onLeave(() => {
    drawing.stop();
    narrow.removeEventListener("change", turned);
  });
  view.onPulse((samples) => {
    const last = samples.at(-1);
    alarms.update(last);
    alarms.element.hidden = !loud(last).length && !last?.alarms?.length;
  });

  async function refresh() {
    const { text = "", group = "", all: wide } = view.shown;
    const found = await call("console.map", { text, group, limit: wide ? MANY : FEW });
    const hasGroups = found.nodes.some((one) => one.kind === "group" || one.kind === "rest");
    way.parentElement.hidden = !(group || hasGroups || wide);
    all.hidden = !(hasGroups || wide);
    quiet.textContent = hasGroups || wide ? `${count(found.streams, "stream")}, live` : "What flows where, live.";
    search.hidden = !found.streams && !text;
    all.textContent = wide ? "Group streams" : `Show ${number(Math.min(found.streams, MANY))} streams one by one`;
    fill(way, crumbs(group));
    map.hidden = !found.streams || narrow.matches;
    list.element.hidden = !found.streams || !narrow.matches;
    if (!found.streams) {
      if (text || group) fill(none, h("div", { class: "card" }, empty("No stream matches.")));
      else if (!none.querySelector(".first")) fill(none, await firstRecord());
      return;
    }
    fill(none);
    (narrow.matches ? list : drawing).update(found.nodes.map(shown), found.edges);
  }
  await view.every(refresh);
}

function columnHead({ kind, x, wide }) {
  const title = h("span", {}, HEADS[kind] ?? HEADS.stream);
  Object.assign(title.style, { left: `${x}px`, width: `${wide}px` });
  return title;
}

// A node with its words and where it leads.
function shown(node) {
  const { kind, title, rate = 0, count: many = 0, state } = node;
  const lag = node.trouble ? (node.lag ?? 0) : 0; // a few records behind is how reading goes
  const name = kind === "producer" || kind === "consumer" ? (PROTOCOLS[title] ?? title) : title;
  const parts = {
    producer: [many ? count(many, "session") : null],
    consumer: [many ? count(many, "session") : null, lag ? `${compact(lag)} behind` : null],
    stream: [lag ? `${compact(lag)} behind` : null],
    group: [count(many, "stream"), lag ? `${compact(lag)} behind` : null],
    rest: [count(many, "stream")],
    pipeline: [state, lag ? `${compact(lag)} behind` : null],
  }[kind].filter(Boolean);
  const href = {
    producer: place(["sessions"], { text: title }),
    consumer: node.id === "consumer/-" ? place(["cursors"]) : place(["sessions"], { text: title }),
    stream: place(["stream", title]),
    group: place([""], { group: title }),
    rest: place(["streams"]),
    pipeline: place(["pipelines", title]),
  }[kind];
  return { trouble: "", ...node, rate, name: kind === "group" ? `${title}*` : name, words: parts.join(" · "), href };
}

const crumbs = (group) => {
  if (!group) return null;
  const parts = group.match(/[^./]+[./]?/g) ?? [];
  return [
    h("a", { href: place([""]) }, "All streams"),
    parts.map((part, at) => [
      h("span", { class: "quiet" }, "›"),
      at < parts.length - 1 ? h("a", { href: place([""], { group: parts.slice(0, at + 1).join("") }) }, part) : h("b", {}, part),
    ]),
  ];
};

const legend = () =>
  h(
    "p",
    { class: "map-legend quiet" },
    h("span", {}, h("i", { class: "flows" }), "records flow"),
    h("span", {}, h("i", {}), "connected, silent"),
    h("span", {}, h("i", { class: "warn" }), "behind"),
    h("span", {}, h("i", { class: "bad" }), "stopped or failed"),
  );

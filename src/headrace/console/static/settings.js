// Every setting and limit, its value, and where the value came from.

import { call } from "./api.js";
import { bytes, count, empty, fill, h, head, number, pill, searchField, seconds } from "./dom.js";
import { table } from "./table.js";

export async function settingsPage(root, parts, view) {
  const settings = await call("config.show");
  const search = searchField(view, "Filter settings", "Key or description", () => draw());
  const which = h(
    "select",
    { "aria-label": "Which settings", onchange: draw },
    h("option", { value: "all" }, "All settings"),
    h("option", { value: "set" }, "Only what is not a default"),
    h("option", { value: "limits" }, "Only limits"),
  );
  const said = h("span", { class: "quiet", role: "status" });
  const body = h("div", {});
  fill(
    root,
    head(
      "Settings",
      "Read when the hub starts: from its file, then HEADRACE_… variables, then flags; the last one wins.",
    ),
    h("div", { class: "bar" }, search, which, said),
    body,
  );

  const kinds = {
    all: () => true,
    set: (one) => one.origin !== "default",
    limits: (one) => /(_max|_min)$/.test(one.key) || one.key.startsWith("limits."),
  };
  function draw() {
    const wanted = search.value.toLowerCase();
    const kept = settings.filter(
      (one) => kinds[which.value](one) && `${one.key} ${one.description}`.toLowerCase().includes(wanted),
    );
    const sections = new Map();
    for (const one of kept) {
      const name = one.key.split(".")[0];
      sections.set(name, [...(sections.get(name) ?? []), one]);
    }
    said.textContent = kept.length < settings.length ? `${kept.length} of ${count(settings.length, "setting")}` : count(kept.length, "setting");
    fill(body, kept.length ? [...sections].map(section) : h("div", { class: "card" }, empty("No setting matches.")));
  }
  draw();
}

const section = ([name, rows]) =>
  h(
    "section",
    { class: "card settings" },
    h("h2", {}, name),
    table(
      [
        { title: "Key", cell: (one) => h("code", { class: "still" }, one.key) },
        { title: "Value", wrap: true, cell: (one) => (one.origin === "default" ? shown(one) : h("b", {}, shown(one))) },
        {
          title: "From",
          cell: (one) =>
            one.origin === "default" ? h("span", { class: "quiet" }, "default") : pill(one.origin, "live"),
        },
        { title: "Meaning", wrap: true, cell: (one) => marked(one.description) },
      ],
      rows,
      { label: `Settings of ${name}` },
    ),
  );

// What is between backticks is code.
const marked = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

function shown(one) {
  if (one.value === null || one.value === "") return "–";
  if (typeof one.value === "number" && one.unit === "bytes") return bytes(one.value);
  if (typeof one.value === "number" && one.unit === "seconds") return seconds(one.value);
  if (typeof one.value === "number") return number(one.value);
  return typeof one.value === "object" ? JSON.stringify(one.value) : String(one.value);
}

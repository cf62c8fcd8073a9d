// Every setting, its value, and where the value came from.

import { call } from "./api.js";
import { bytes, fill, h, seconds, table } from "./dom.js";

export async function settingsPage(root) {
  const settings = await call("config.show");
  const search = h("input", { type: "search", placeholder: "Key or description", "aria-label": "Filter settings", oninput: draw });
  const body = h("div", { class: "card" });
  fill(root, h("h1", {}, "Settings"), h("div", { class: "bar" }, search), body);
  function shown(one) {
    if (one.unit === "bytes" && typeof one.value === "number") return bytes(one.value);
    if (one.unit === "seconds" && typeof one.value === "number") return seconds(one.value);
    return typeof one.value === "object" ? JSON.stringify(one.value) : String(one.value);
  }
  function draw() {
    const wanted = search.value.toLowerCase();
    fill(body, table([
      { title: "Key", cell: (one) => h("code", {}, one.key) },
      { title: "Value", wrap: true, cell: shown },
      { title: "From", cell: (one) => one.origin },
      { title: "Meaning", wrap: true, cell: (one) => one.description },
    ], settings.filter((one) => `${one.key} ${one.description}`.toLowerCase().includes(wanted)), { label: "Settings" }));
  }
  draw();
}

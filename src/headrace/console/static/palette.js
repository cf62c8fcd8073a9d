// Search everything that has a name, from any page: `/`, type, Enter.

import { call } from "./api.js";
import { fill, h, place } from "./dom.js";

let open = false;

// pages: [[path, title]]
export function openPalette(pages) {
  if (open) return;
  open = true;
  const list = h("div", { class: "found", role: "listbox", id: "found", "aria-label": "Found" });
  const input = h("input", {
    type: "search",
    placeholder: "Stream, table, cursor, session, pipeline, setting, page; or STREAM INDEX for a record",
    "aria-label": "Search everything",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "found",
    oninput: () => look(),
    onkeydown: steer,
  });
  const dialog = h("dialog", { class: "palette", "aria-label": "Search" }, input, list);
  dialog.addEventListener("close", () => {
    open = false;
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.getElementById("dialogs").append(dialog);
  dialog.showModal();
  input.focus();
  let asked = 0;
  let at = 0;
  let found = [];

  async function look() {
    asked += 1;
    const mine = asked;
    const text = input.value.trim();
    const wanted = text.toLowerCase();
    const named = pages
      .filter(([, title]) => title.toLowerCase().includes(wanted))
      .map(([path, title]) => ({ kind: "page", title, href: place([path]) }));
    const [, stream, partition, index] = /^(.+?)(?::(\d+))?[ #](\d+)$/.exec(text) ?? [];
    const record = stream
      ? [{ kind: "record", title: `${stream} ${index}`, href: place(["stream", stream], { record: `${partition ?? 0}/${index}` }) }]
      : [];
    let things = [];
    if (text) {
      try {
        things = (await call("console.search", { text })).map((one) => ({ ...one, href: place(one.page) }));
      } catch {
        /* the page says that the hub is away */
      }
    }
    if (mine !== asked || !dialog.isConnected) return;
    const settings = text ? [{ kind: "settings", title: `Settings with “${text}”`, href: place(["settings"], { text }) }] : [];
    found = [...record, ...things, ...(text ? named.slice(0, 5) : named), ...settings];
    at = 0;
    draw();
  }

  function draw() {
    fill(
      list,
      found.map((one, place) =>
        h(
          "a",
          {
            href: one.href,
            role: "option",
            id: `found-${place}`,
            tabindex: -1,
            "aria-selected": String(place === at),
            onclick: () => dialog.close(),
          },
          h("span", {}, one.title, one.detail ? h("span", { class: "quiet" }, ` in ${one.detail}`) : null),
          h("span", { class: "quiet" }, one.kind),
        ),
      ),
    );
    input.setAttribute("aria-activedescendant", found.length ? `found-${at}` : "");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  function steer(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      at = Math.min(Math.max(at + step, 0), found.length - 1);
      draw();
    }
    if (event.key === "Enter" && found[at]) {
      event.preventDefault();
      dialog.close();
      location.hash = found[at].href;
    }
  }
  look();
}

// Elements, numbers and dialogs. Text goes in as text: nothing here ever parses markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return parent;
}

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const number = (value) => plain.format(value);

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${plain.format(value)} ${units[unit]}`;
}

export function seconds(value) {
  if (value < 1) return `${plain.format(value * 1000)} ms`;
  if (value < 120) return `${plain.format(value)} s`;
  if (value < 7200) return `${plain.format(value / 60)} min`;
  if (value < 172800) return `${plain.format(value / 3600)} h`;
  return `${plain.format(value / 86400)} days`;
}

export const moment = (micros) => new Date(Number(micros) / 1000).toISOString().replace("T", " ").replace("Z", "");

export function table(columns, rows, options = {}) {
  const head = columns.map((column) => h("th", { class: column.number ? "number" : null, scope: "col" },
    column.sort ? h("button", { type: "button", onclick: column.sort }, column.title) : column.title));
  const body = rows.map((row) => {
    const line = h("tr", options.row?.(row) ?? {}, columns.map((column) =>
      h("td", { class: [column.number ? "number" : "", column.wrap ? "wrap" : ""].join(" ").trim() || null }, column.cell(row))));
    return line;
  });
  if (!rows.length) return h("div", { class: "empty" }, options.empty ?? "Nothing here.");
  return h("div", { class: "table" }, h("table", { "aria-label": options.label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export const pill = (text, kind = "") => h("span", { class: `pill ${kind}` }, text);

// A dialog with fields; resolves to their values, or null when it is closed.
export function ask(title, body, { ok = "OK", danger = false } = {}) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" }, h("h2", {}, title), body,
      h("div", { class: "dialog-buttons" },
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: danger ? "danger" : "main" }, ok)));
    const dialog = h("dialog", { "aria-label": title }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      resolve(Object.fromEntries(new FormData(form)));
      dialog.close();
    });
    dialog.addEventListener("close", () => { resolve(null); dialog.remove(); });
    document.getElementById("dialogs").append(dialog);
    dialog.showModal();
  });
}

export const field = (title, name, attributes = {}) =>
  h("label", { class: "block" }, title, h("input", { name, autocomplete: "off", ...attributes }));

export function report(error) {
  return ask("That did not work", h("p", {}, String(error.message ?? error)), { ok: "Close" });
}

export function decode(base64) {
  const text = atob(base64 ?? "");
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

export const hex = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");

export function asText(data) {
  try { return new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { return null; }
}

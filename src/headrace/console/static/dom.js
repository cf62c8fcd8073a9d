// Elements and numbers. Text goes in as text: nothing here ever parses markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name !== "value") element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...kept(children));
  if (attributes?.value !== null && attributes?.value !== undefined) element.value = attributes.value; // a choice needs its options first
  return element;
}

const kept = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "");

export const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

// What is put in takes the place of what was there. If that had the focus, the control of the same name has it now.
export function fill(parent, ...children) {
  const focused = document.activeElement;
  const had = focused !== parent && parent.contains(focused) ? called(focused) : null;
  parent.replaceChildren(...kept(children));
  if (had && !parent.contains(document.activeElement)) controls(parent).find((one) => called(one) === had)?.focus({ preventScroll: true });
  return parent;
}

const controls = (parent) => [...parent.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")];
const called = (control) => `${control.tagName} ${control.getAttribute("aria-label") ?? control.name ?? ""} ${control.textContent}`;

// Whether a control can be used now. One that is `disabled` would lose the focus, and the keyboard its place on the page.
export function allow(control, able) {
  if (able) control.removeAttribute("aria-disabled");
  else control.setAttribute("aria-disabled", "true");
}
addEventListener("click", (event) => event.target.closest?.("[aria-disabled=true]") && (event.preventDefault(), event.stopImmediatePropagation()), true);

// Show a control or not. The one beside it takes over the focus, once all of them have been shown or hidden.
export function hide(control, hidden) {
  const focused = hidden && control.contains(document.activeElement);
  control.hidden = hidden;
  if (focused) queueMicrotask(() => control.hidden && controls(control.parentElement).find((one) => one.offsetParent)?.focus({ preventScroll: true }));
}

// The same for what changes by itself: not while someone is in it with the keyboard, or has scrolled it to read.
export function refill(parent, ...children) {
  const read = parent.contains(document.activeElement) || parent.scrollTop > 0;
  return read && parent.firstChild ? parent : fill(parent, ...children);
}

// As JSON, also with numbers of 64 bits.
export const json = (value, indent = 0) => JSON.stringify(value, (_, one) => (typeof one === "bigint" ? String(one) : one), indent);

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const number = (value) => plain.format(value);

export const count = (value, one, many = `${one}s`) => `${plain.format(value)} ${Number(value) === 1 ? one : many}`;

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${plain.format(value)} ${units[unit]}`;
}

// For people: the unit that says most, and no digit more than they want.
export function seconds(value) {
  if (value < 1) return `${plain.format(value * 1000)} ms`;
  if (value < 120) return `${plain.format(value)} s`;
  if (value < 7200) return `${plain.format(value / 60)} min`;
  if (value < 172800) return `${plain.format(value / 3600)} h`;
  return `${plain.format(value / 86400)} days`;
}

// How long ago, without figures that only flicker.
export const ago = (value) => (value < 2 ? "just now" : `${seconds(Math.round(value))} ago`);

// What time it is for the hub, whose times are shown: the clock of this machine may be wrong. Every answer says when it was
// given, to the second.
let aheadMs = 0;
export const hubMs = () => Date.now() + aheadMs;
export function setClock(date, askedMs) {
  const saidMs = Date.parse(date);
  if (saidMs < askedMs + aheadMs - 2000 || saidMs > hubMs() + 2000) aheadMs = saidMs - Date.now(); // not between question and answer
}

// An event time is whatever a producer has sent; what no date can hold is shown as the number it is.
export function moment(micros) {
  const date = new Date(Number(micros) / 1000);
  return Number.isNaN(date.getTime()) ? `${micros} µs` : date.toISOString().replace("T", " ").replace("Z", "");
}

export const timeOfDay = (micros) => moment(micros).slice(11);

// Only the time for today's moments; the whole moment for others.
export const today = (micros) =>
  moment(micros).slice(0, 10) === moment(hubMs() * 1000).slice(0, 10) ? timeOfDay(micros) : moment(micros);

export const pill = (text, kind = "") => h("span", { class: `pill ${kind}`.trim() }, text);

// Where a page is: its path, and what it shows of it.
export function place(parts, shown = {}) {
  const kept = Object.entries(shown).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${query}`;
}

export const streamLink = (name, shown) => h("a", { href: place(["stream", name], shown) }, name);

export const links = (names) => names.flatMap((name, at) => [at ? ", " : "", streamLink(name)]);

// A figure that is short enough for a label: 1.2k, 34M.
export const compact = (value) =>
  value && value < 0.1 ? "<0.1" : new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

// What is shown where there is nothing to show: what would be here, and how it gets here.
export const empty = (title, ...hints) =>
  h(
    "div",
    { class: "empty" },
    h("p", { class: "empty-title" }, title),
    hints.map((hint) => h("p", {}, hint)),
  );

// Instead of figures of the whole hub.
export const notAll = () => empty("You see only what concerns the streams you may read.", "Figures for the whole hub need the right to read every stream.");

export const facts = (pairs) =>
  h(
    "dl",
    {},
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([title, value]) => [
        h("dt", {}, title),
        h("dd", {}, value instanceof Node || Array.isArray(value) ? value : String(value)),
      ]),
  );

export const head = (title, quiet, ...right) =>
  h(
    "div",
    { class: "head" },
    h("div", {}, h("h1", {}, title), quiet ? h("p", { class: "quiet" }, quiet) : null),
    right.length ? h("div", { class: "bar" }, right) : null,
  );

// A field that narrows what a page shows; the address keeps what was typed.
export function searchField(view, label, placeholder, changed = () => view.now()) {
  const field = h("input", {
    type: "search",
    placeholder,
    "aria-label": label,
    value: view.shown.text ?? "",
    oninput: () => {
      view.keep({ text: field.value });
      changed(field.value);
    },
  });
  return field;
}

export const meter = (value, most) =>
  h("progress", { max: most || 1, value: String(Math.min(value, most)), "aria-hidden": "true" });

export function decode(base64) {
  const text = atob(base64 ?? "");
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

export const encode = (data) => {
  let text = "";
  for (const byte of data) text += String.fromCharCode(byte);
  return btoa(text);
};

export const utf8 = (text) => new TextEncoder().encode(text);

export const hex = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");

// Bytes from hex digits, or null if that is not hex.
export function unhex(text) {
  const digits = text.replaceAll(/\s/g, "");
  if (!/^([0-9a-f]{2})*$/i.test(digits)) return null;
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export const isReadable = (data) => !/[\x00-\x08\x0e-\x1f]/.test(asText(data) ?? "\0");

// For a look: text as it is; of other bytes what can be printed.
export function readable(data) {
  if (isReadable(data)) return asText(data);
  return Array.from(data, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("").replaceAll(/·{2,}/g, "··");
}

export function asText(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

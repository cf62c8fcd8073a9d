// One record: decoded, to copy, and as the bytes that each protocol would send.

import { call } from "./api.js";
import { copy } from "./dialogs.js";
import { asText, bytes, count, decode, facts, fill, h, hex, isReadable, moment, number, pill, streamLink } from "./dom.js";

const SHORT = 160;
const PART_SHOWN = 240;
const DUMP_SHOWN = 4096;

export const opened = (record) => ({ ...record, data: decode(record.payload) });

export function short(record) {
  const shown = isReadable(record.data) ? asText(record.data) : hex(record.data.slice(0, SHORT));
  return shown.length > SHORT ? `${shown.slice(0, SHORT)}…` : shown;
}

// A type that is no word to read.
export const isNumber = (type) => /^-?\d{6,}$|^[0-9a-f]{12,}$/i.test(type);

const keyText = (record) => (record.key ? (asText(decode(record.key)) ?? hex(decode(record.key))) : null);

// wanted: { text, type, key, json }, where json is "path.to.field=value" or "path.to.field" for any value.
export function fits(record, wanted) {
  if (wanted.type && (record.type ?? "") !== wanted.type) return false;
  if (wanted.key && keyText(record) !== wanted.key) return false;
  if (wanted.text && !(asText(record.data) ?? hex(record.data)).toLowerCase().includes(wanted.text.toLowerCase()))
    return false;
  return !wanted.json || fieldFits(record, wanted.json);
}

function fieldFits(record, json) {
  const [, path, value] = /^([^=]+?)(?:=(.*))?$/.exec(json) ?? [];
  if (!path) return true;
  try {
    const found = path.split(".").reduce((at, part) => at?.[part], JSON.parse(asText(record.data)));
    if (value === undefined) return found !== undefined;
    return (typeof found === "object" && found !== null ? JSON.stringify(found) : String(found)) === value;
  } catch {
    return false;
  }
}

export async function showRecord(place, stream, partition, record) {
  const frames = h("div", {}, h("p", { class: "quiet" }, "…"));
  const payload = h("div", {}, contents(record));
  const key = h("span", {}, keyText(record));
  const way = h("div", { "aria-label": "The path of this record", role: "region" });
  fill(
    place,
    h(
      "div",
      { class: "bar" },
      h("h2", {}, `Record ${number(record.index)}`),
      h("span", { class: "push" }),
      h("button", { type: "button", class: "quiet-button", onclick: () => copy(location.href, "the link") }, "Copy link"),
    ),
    facts([
      ["Time (UTC)", moment(record.time_us)],
      ["Event time (UTC)", record.event_time_us === undefined ? null : moment(record.event_time_us)],
      ["Id", record.id],
      ["Type", isNumber(record.type ?? "") ? [record.type, h("div", { class: "quiet" }, "a number, as Wallaroo connectors have one for each stream")] : record.type],
      ["Key", record.key ? key : null],
      ["Size", bytes(record.data.length)],
    ]),
    payload,
    way,
    h("h2", {}, "As each protocol would send it"),
    frames,
  );
  const named = { stream, partition, index: record.index };
  read(named, record, key, payload);
  follow(way, named, record);
  try {
    const found = await call("record.frames", named);
    fill(frames, found.map((one, at) => frame(one, at === 0)));
  } catch (error) {
    fill(frames, h("p", { class: "bad" }, error.message));
  }
}

// A key and a payload that are no text may be data objects of a protocol: then they are shown as it reads them.
async function read(named, record, key, payload) {
  if (![record.data, decode(record.key)].some((data) => data.length && !isReadable(data))) return;
  const found = await call("record.words", named).catch(() => ({}));
  if (found.key) fill(key, found.key.text, " ", h("small", { class: "quiet" }, found.key.kind));
  if (found.payload) fill(payload, contents(record, found.payload));
}

// Who wrote it, who has read it, what it was made from and what was made of it.
async function follow(place, named, record) {
  let found;
  try {
    found = await call("record.trace", named);
  } catch (error) {
    fill(place, h("p", { class: "bad" }, error.message));
    return;
  }
  const near = { time: Number(record.time_us) };
  const writers = found.writers.map((one) => [
    pill(one.protocol),
    " ",
    h("a", { href: `#/sessions/${one.session}${one.ended ? "?which=ended" : ""}` }, one.peer),
  ]);
  const pipeline = (one) => h("a", { href: `#/pipelines/${encodeURIComponent(one.pipeline)}` }, one.pipeline);
  const streams = (one) => one.streams.flatMap((name, at) => [at ? ", " : "", streamLink(name, near)]);
  const into = (one) => ["pipeline ", pipeline(one), one.streams.length ? [" → ", streams(one)] : ""];
  const from = (one) => [one.streams.length ? [streams(one), " → "] : "", "pipeline ", pipeline(one)];
  const lines = (all) => all.map((one) => h("div", {}, one));
  const done = found.readers.filter((one) => !one.to_go);
  const late = found.readers.filter((one) => one.to_go);
  fill(
    place,
    h("h2", {}, "Its path"),
    facts([
      [
        "Written by",
        writers.length
          ? [lines(writers), writers.length > 1 ? h("div", { class: "quiet" }, "one of these: all had the stream open then") : null]
          : found.before.length
            ? lines(found.before.map(from))
            : found.ways.length
              ? [found.ways.map((one) => [pill(one), " "]), h("span", { class: "quiet" }, "no session: this is how the stream was written to lately")]
              : h("span", { class: "quiet" }, "unknown: its session ended long ago, or before the hub's last start"),
      ],
      ["Made from", writers.length && found.before.length ? lines(found.before.map(from)) : null],
      ["Read by", done.length ? lines(done.map((one) => [pill("read", "good"), " ", one.cursor])) : null],
      ["Not yet by", late.length ? lines(late.map((one) => [one.cursor, h("span", { class: "quiet" }, ` ${count(one.to_go, "record")} to go`)])) : null],
      ["Read by anyone", found.readers.length ? null : "no cursor in this partition"],
      ["Goes into", found.behind.length ? lines(found.behind.map(into)) : null],
    ]),
  );
}

// JSON over several lines; other text as it is, or as `otherwise`.
function pretty(text, otherwise = text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return otherwise;
  }
}

function contents(record, words = null) {
  const text = asText(record.data);
  const json = text === null ? null : pretty(text, null);
  const forms = [
    [words && `${words.kind} (${words.form})`, words && pretty(words.text)],
    ["JSON", json],
    ["Text", text],
    ["Hex", dump(record.data)],
  ].filter(([, form]) => form !== null);
  const shown = h("pre", { tabindex: 0, "aria-label": "Payload" });
  const buttons = forms.map(([title, form]) =>
    h("button", { type: "button", onclick: (event) => choose(form, event.currentTarget) }, title),
  );
  function choose(form, button) {
    shown.textContent = form;
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
  }
  choose(forms[0][1], buttons[0]);
  const whole = JSON.stringify(
    {
      index: record.index,
      time_us: record.time_us,
      event_time_us: record.event_time_us,
      id: record.id === undefined ? undefined : String(record.id),
      type: record.type,
      key: keyText(record) ?? undefined,
      payload: json === null ? (text ?? { hex: hex(record.data) }) : JSON.parse(json),
    },
    null,
    2,
  );
  return h(
    "div",
    {},
    h(
      "div",
      { class: "bar tight" },
      h("span", { class: "group", role: "group", "aria-label": "Shown as" }, buttons),
      h("span", { class: "push" }),
      h("button", { type: "button", onclick: () => copy(whole, "the record as JSON") }, "Copy JSON"),
      h("button", { type: "button", onclick: () => copy(hex(record.data), "the payload as hex") }, "Copy hex"),
    ),
    shown,
  );
}

// Sixteen bytes a line, with their place and what of them is printable.
function dump(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, DUMP_SHOWN); at += 16) {
    const part = data.slice(at, at + 16);
    const pairs = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const signs = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${pairs.padEnd(47)}  ${signs}`);
  }
  if (data.length > DUMP_SHOWN) lines.push(`… ${number(data.length - DUMP_SHOWN)} bytes more`);
  return lines.join("\n");
}

function frame(found, isOpen) {
  let at = 0;
  const fields = found.fields.filter((one) => one.size);
  const parts = fields.map((one, which) => {
    const part = found.hex.slice(at * 2, (at + one.size) * 2);
    at += one.size;
    const said = `${one.name}${one.text ? `: ${one.text}` : ""} (${count(one.size, "byte")})`;
    return h(
      "span",
      { class: `f${which % 6}`, title: said },
      part.length > PART_SHOWN ? `${part.slice(0, PART_SHOWN)}…` : part,
    );
  });
  const names = h(
    "ol",
    { class: "fieldnames" },
    fields.map((one, which) =>
      h(
        "li",
        {},
        h("i", { class: `b${which % 6}` }),
        h("b", {}, one.name),
        one.text ? ` ${one.text}` : "",
        h("span", { class: "quiet" }, ` ${number(one.size)} B`),
      ),
    ),
  );
  return h(
    "details",
    { open: isOpen, class: "frame" },
    h(
      "summary",
      {},
      pill(found.protocol),
      " ",
      found.message,
      " ",
      h("span", { class: "quiet" }, bytes(found.hex.length / 2)),
    ),
    h("div", { class: "bytes mono" }, parts),
    names,
  );
}

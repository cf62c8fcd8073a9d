// One stream: its records, live or anywhere in its past, and one record in every protocol.

import { call } from "./api.js";
import { ask, asText, decode, field, fill, h, hex, moment, number, pill, report, table } from "./dom.js";

const SHOWN = 200;

export async function streamPage(root, [name]) {
  const stream = name;
  const view = { partition: 0, records: [], following: true, selected: null, at: null };
  const info = await call("stream.describe", { stream });
  const list = h("div", { class: "records card" });
  const detail = h("div", { class: "card", "aria-live": "polite" }, h("div", { class: "empty" }, "Choose a record."));
  const text = h("input", { type: "search", placeholder: "Text, type:ORDER, key:… or field.name=value", "aria-label": "Filter records", oninput: draw });
  const live = h("button", { type: "button", "aria-pressed": "true", onclick: follow }, "Live");
  const partition = h("select", { "aria-label": "Partition", onchange: () => { view.partition = Number(partition.value); follow(); } }, info.bounds.map((one) => h("option", { value: one.partition }, `partition ${one.partition}`)));
  fill(root, h("h1", {}, stream, h("span", { class: "quiet" }, `${number(info.records)} records, ${info.partitions} partition${info.partitions > 1 ? "s" : ""}, acknowledged ${info.options.ack ?? "durable"}`)),
    h("div", { class: "bar" }, partition, live, h("button", { type: "button", onclick: earliest }, "Earliest"), h("button", { type: "button", onclick: seekIndex }, "Go to index"), h("button", { type: "button", onclick: seekTime }, "Go to time"), text, h("button", { type: "button", class: "main push", onclick: send }, "Send a record")),
    h("div", { class: "split" }, list, detail),
    h("div", { class: "card" }, h("h2", {}, "Who reads"), table([
      { title: "Cursor", cell: (one) => one.name }, { title: "Partition", number: true, cell: (one) => one.partition },
      { title: "Next index", number: true, cell: (one) => number(one.index) }, { title: "Behind", number: true, cell: (one) => `${number(one.lag)} records` },
    ], info.cursors, { empty: "Nobody is registered.", label: "Cursors of this stream" })));

  async function read(start) {
    const page = await call("stream.read", { stream, partition: view.partition, start, limit: SHOWN });
    view.at = page.next;
    return page.records.map((record) => ({ ...record, data: decode(record.payload) }));
  }
  async function begin(start) {
    view.records = await read(start);
    draw();
  }
  async function follow() {
    view.following = true;
    live.setAttribute("aria-pressed", "true");
    const [bounds] = await call("stream.bounds", { stream, partition: view.partition });
    await begin(Math.max(bounds.first, bounds.next - 50));
  }
  function stop() { view.following = false; live.setAttribute("aria-pressed", "false"); }
  async function earliest() { stop(); await begin("earliest"); }
  async function seekIndex() {
    const answer = await ask("Go to index", field("Index", "index", { type: "number", min: 0, required: true }), { ok: "Go" });
    if (answer) { stop(); await begin(Number(answer.index)); }
  }
  async function seekTime() {
    const answer = await ask("Go to time", field("Time (UTC)", "time", { type: "datetime-local", step: 1, required: true }), { ok: "Go" });
    if (!answer) return;
    stop();
    const found = await call("stream.index-at-time", { stream, partition: view.partition, time_us: Date.parse(`${answer.time}Z`) * 1000 });
    await begin(found.index);
  }
  async function poll() {
    if (!view.following || view.at === null) return;
    const more = await read(view.at);
    if (more.length) { view.records = [...view.records, ...more].slice(-SHOWN); draw(); }
  }

  function draw() {
    const kept = view.records.filter((record) => fits(record, text.value.trim()));
    if (view.following) kept.reverse();
    fill(list, table([
      { title: "Index", number: true, cell: (one) => number(one.index) },
      { title: "Time (UTC)", cell: (one) => h("span", { class: "still" }, moment(one.time_us)) },
      { title: "Type", cell: (one) => one.type ?? "" },
      { title: "Payload", wrap: true, cell: (one) => h("code", {}, short(one)) },
    ], kept, { label: "Records", empty: "No records here.", row: (one) => ({ tabindex: 0, "aria-selected": String(view.selected === one.index), onclick: () => select(one), onkeydown: (event) => { if (event.key === "Enter") select(one); } }) }));
  }

  async function select(record) {
    view.selected = record.index;
    draw();
    const frames = h("div", {}, h("p", { class: "quiet" }, "…"));
    fill(detail, h("h2", {}, `Record ${number(record.index)}`), facts(record), contents(record), h("h2", {}, "As each protocol would send it"), frames);
    try {
      const found = await call("record.frames", { stream, partition: view.partition, index: record.index });
      fill(frames, found.map(frame));
    } catch (error) { fill(frames, h("p", { class: "bad" }, error.message)); }
  }

  async function send() {
    const answer = await ask(`Send a record to ${stream}`, [h("label", { class: "block" }, "Payload", h("textarea", { name: "payload" })), field("Type", "type"), field("Key", "key")], { ok: "Send" });
    if (!answer) return;
    const record = { text: answer.payload };
    if (answer.type) record.type = answer.type;
    if (answer.key) record.key = btoa(answer.key);
    try {
      await call("stream.append", { stream, partition: view.partition, records: [record] });
      await (view.following ? poll() : follow());
    } catch (error) { report(error); }
  }

  await follow();
  const timer = setInterval(() => poll().catch(() => {}), 500);
  return () => clearInterval(timer);
}

function short(record) {
  const shown = asText(record.data) ?? hex(record.data);
  return shown.length > 160 ? `${shown.slice(0, 160)}…` : shown;
}

// "type:X", "key:X", "field.path=value", or text anywhere in the payload.
export function fits(record, wanted) {
  if (!wanted) return true;
  const text = asText(record.data) ?? hex(record.data);
  if (wanted.startsWith("type:")) return (record.type ?? "") === wanted.slice(5);
  if (wanted.startsWith("key:")) return (asText(decode(record.key)) ?? "") === wanted.slice(4);
  const field = /^([\w.]+)=(.*)$/.exec(wanted);
  if (field) {
    try {
      const value = field[1].split(".").reduce((at, part) => at?.[part], JSON.parse(text));
      return String(value) === field[2];
    } catch { return false; }
  }
  return text.toLowerCase().includes(wanted.toLowerCase());
}

function facts(record) {
  const rows = [["Time", moment(record.time_us)], ["Event time", record.event_time_us == null ? null : moment(record.event_time_us)], ["Id", record.id], ["Type", record.type], ["Key", record.key ? asText(decode(record.key)) ?? hex(decode(record.key)) : null], ["Size", `${number(record.data.length)} bytes`]];
  return h("dl", {}, rows.filter(([, value]) => value !== null && value !== undefined).map(([title, value]) => [h("dt", {}, title), h("dd", {}, String(value))]));
}

function contents(record) {
  const text = asText(record.data);
  let json = null;
  try { json = text === null ? null : JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON */ }
  const forms = [["JSON", json], ["Text", text], ["Hex", hex(record.data).replace(/(..)/g, "$1 ").trim()]].filter(([, form]) => form !== null);
  const shown = h("pre", {});
  const choose = (form, button) => {
    shown.textContent = form;
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
  };
  const buttons = forms.map(([title, form]) => h("button", { type: "button", onclick: (event) => choose(form, event.currentTarget) }, title));
  choose(forms[0][1], buttons[0]);
  const copy = (title, value) => h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(value) }, title);
  const whole = JSON.stringify({ index: record.index, time_us: record.time_us, type: record.type, key: record.key, id: record.id === undefined ? undefined : String(record.id), payload: json ? JSON.parse(json) : text ?? hex(record.data) });
  return h("div", {}, h("div", { class: "bar" }, buttons, h("span", { class: "push" }), copy("Copy JSON", whole), copy("Copy hex", hex(record.data))), shown);
}

function frame(found) {
  let at = 0;
  const bytes = h("div", { class: "bytes mono" }, found.fields.map((one, which) => {
    const part = found.hex.slice(at * 2, (at + one.size) * 2);
    at += one.size;
    return h("span", { class: `f${which % 6}`, title: `${one.name}${one.text ? `: ${one.text}` : ""} (${one.size} bytes)` }, part.length > 240 ? `${part.slice(0, 240)}…` : part);
  }));
  const names = h("div", { class: "legend" }, found.fields.filter((one) => one.size).map((one) => h("span", {}, `${one.name}${one.text ? ` ${one.text}` : ""}`)));
  return h("section", {}, h("h3", {}, pill(found.protocol), " ", found.message, " ", h("span", { class: "quiet" }, `${number(found.hex.length / 2)} bytes`)), bytes, names);
}

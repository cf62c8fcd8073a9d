// One stream: its records, live or anywhere in its past, who writes and who reads.

import { call } from "./api.js";
import { LineChart } from "./charts.js";
import { cursorState } from "./cursors.js";
import { ask, attempt, choice, field } from "./dialogs.js";
import {
  bytes,
  count,
  empty,
  encode,
  facts,
  fill,
  h,
  head,
  moment,
  number,
  pill,
  seconds,
  today,
  utf8,
} from "./dom.js";
import { fits, opened, short, showRecord } from "./record.js";
import { deleteStream, trimStream } from "./streams.js";
import { liveTable } from "./table.js";

const PAGE = 200;
const LIVE_KEPT = 1000;
const SEARCH_PAGE = 1000;
const SEARCH_PAGES = 50;

export async function streamPage(root, [stream], view) {
  const seen = await call("console.stream", { stream });
  const state = { partition: 0, records: [], next: 0, first: 0, end: 0, following: true, selected: null };
  const detail = h(
    "section",
    { class: "card detail", "aria-live": "polite", "aria-label": "Record" },
    empty("Choose a record.", "Click it, or Tab to it and press Enter."),
  );
  const said = h("span", { class: "quiet", role: "status" });
  const filters = filterFields(() => draw());
  const rows = liveTable(
    [
      { title: "Index", number: true, cell: (one) => number(one.index) },
      {
        title: "Time (UTC)",
        cell: (one) => h("span", { class: "still", title: moment(one.time_us) }, today(one.time_us)),
      },
      { title: "Type", cell: (one) => h("span", { class: "clip", title: one.type }, one.type ?? "") },
      { title: "Payload", wrap: true, cell: (one) => h("code", {}, short(one)) },
    ],
    {
      label: "Records",
      key: (one) => one.index,
      empty: empty("No records here.", "Send one with the button above, or wait for a producer."),
      onOpen: select,
      isOpen: (one) => state.selected === one.index,
    },
  );
  const live = h("button", { type: "button", "aria-pressed": "true", onclick: () => attempt(follow) }, "Live");
  const earlier = h("button", { type: "button", onclick: () => go(() => Math.max(0, state.first - PAGE)) }, "Earlier");
  const later = h("button", { type: "button", onclick: () => go(() => state.next) }, "Later");
  const search = h("button", { type: "button", hidden: true, onclick: () => attempt(searchOn) }, "Search on");
  const partition = h(
    "select",
    {
      "aria-label": "Partition",
      hidden: seen.bounds.length === 1,
      onchange: () => {
        state.partition = Number(partition.value);
        attempt(follow);
      },
    },
    seen.bounds.map((_, at) => h("option", { value: at }, `partition ${at}`)),
  );
  const about = aboutStream();
  fill(
    root,
    head(
      stream,
      about.quiet,
      h("button", { type: "button", class: "main", onclick: send }, "Send a record"),
      h("button", { type: "button", onclick: () => trimStream(stream) }, "Trim"),
      h(
        "button",
        {
          type: "button",
          class: "danger",
          onclick: async () => {
            if (await deleteStream(stream)) location.hash = "#/streams";
          },
        },
        "Delete",
      ),
    ),
    about.figures,
    h(
      "div",
      { class: "bar" },
      live,
      partition,
      h("button", { type: "button", onclick: () => go(() => "earliest") }, "Earliest"),
      earlier,
      later,
      h("button", { type: "button", onclick: seekIndex }, "Go to index"),
      h("button", { type: "button", onclick: seekTime }, "Go to time"),
      said,
    ),
    h("div", { class: "bar", role: "search" }, filters.element, search),
    h("div", { class: "split" }, h("div", { class: "card records" }, rows.element), detail),
    about.users,
  );

  async function read(start, limit) {
    const page = await call("stream.read", { stream, partition: state.partition, start, limit });
    state.next = page.next;
    state.end = page.end;
    return page.records.map(opened);
  }
  async function begin(start) {
    state.records = await read(start, PAGE);
    state.first = state.records[0]?.index ?? state.next;
    draw();
  }
  const go = (start) =>
    attempt(async () => {
      const place = await start();
      pause();
      await begin(place);
    });
  function pause() {
    if (state.following) view.follow(null);
    state.following = false;
    live.setAttribute("aria-pressed", "false");
  }
  async function follow() {
    state.following = true;
    live.setAttribute("aria-pressed", "true");
    const [bounds] = await call("stream.bounds", { stream, partition: state.partition });
    await begin(Math.max(bounds.first, bounds.next - PAGE));
    view.follow(stream, state.partition, state.next, () => {
      more().catch((error) => view.say(error));
    });
  }
  let reading = null;
  async function more() {
    // one at a time: news that come while reading are read after it
    if (reading) {
      await reading.catch(() => {});
    }
    if (!state.following || reading) return;
    reading = read(state.next, PAGE);
    try {
      const fresh = await reading;
      if (!state.following) return;
      state.records = [...state.records, ...fresh].slice(-LIVE_KEPT);
      draw();
    } finally {
      reading = null;
    }
    if (state.next < state.end) await more();
  }
  async function seekIndex() {
    const answer = await ask(
      "Go to index",
      field("Index", "index", { type: "number", min: 0, required: true, value: state.first }),
      { ok: "Go" },
    );
    if (answer) await go(() => Number(answer.index));
  }
  async function seekTime() {
    const answer = await ask(
      "Go to time",
      field("Time (UTC)", "time", { type: "datetime-local", step: 1, required: true }),
      { ok: "Go" },
    );
    if (answer)
      await go(
        async () =>
          (
            await call("stream.index-at-time", {
              stream,
              partition: state.partition,
              time_us: Date.parse(`${answer.time}Z`) * 1000,
            })
          ).index,
      );
  }
  // Read on until there is a page of records that fit, or until the end.
  async function searchOn() {
    pause();
    const wanted = filters.values();
    const found = [];
    state.records = [];
    for (let pages = 0; pages < SEARCH_PAGES && found.length < PAGE; pages += 1) {
      const records = await read(state.next, SEARCH_PAGE);
      found.push(...records.filter((record) => fits(record, wanted)));
      said.textContent = `Searched to index ${number(state.next)} of ${number(state.end)}.`;
      if (state.next >= state.end || !records.length) break;
    }
    state.records = found;
    state.first = found[0]?.index ?? state.next;
    draw(
      `${count(found.length, "record fits", "records fit")}, searched to index ${number(state.next)} of ${number(state.end)}.`,
    );
  }

  function draw(words = null) {
    const wanted = filters.values();
    const kept = state.records.filter((record) => fits(record, wanted));
    if (state.following) kept.reverse();
    rows.update(kept);
    search.hidden = !filters.used() || state.next >= state.end;
    earlier.disabled = state.following || state.first === 0;
    later.disabled = state.following || state.next >= state.end;
    const range = state.records.length
      ? `${number(state.records[0].index)} to ${number(state.records.at(-1).index)}`
      : "nothing";
    said.textContent =
      words ??
      (state.following
        ? `Live: ${count(kept.length, "record")} of the last ${number(state.records.length)}`
        : `Index ${range}: ${count(kept.length, "record")}`);
  }

  async function select(record) {
    state.selected = record.index;
    draw();
    await showRecord(detail, stream, state.partition, { ...record });
    if (matchMedia("(max-width: 1000px)").matches) detail.scrollIntoView(); // it stands below the list there
  }

  async function send() {
    const answer = await ask(
      `Send a record to ${stream}`,
      [
        h("label", { class: "block" }, "Payload", h("textarea", { name: "payload" })),
        choice("The payload is", "form", [
          ["text", "text"],
          ["hex", "bytes in hex"],
        ]),
        h("div", { class: "fields" }, field("Type", "type"), field("Key", "key")),
      ],
      {
        ok: "Send",
        check: (values) =>
          values.form === "hex" && !/^([0-9a-f]{2}\s*)*$/i.test(values.payload.trim())
            ? "That is not hex: two digits for each byte."
            : null,
      },
    );
    if (!answer) return;
    const record =
      answer.form === "text"
        ? { text: answer.payload }
        : { payload: encode((answer.payload.match(/[0-9a-f]{2}/gi) ?? []).map((pair) => parseInt(pair, 16))) };
    if (answer.type) record.type = answer.type;
    if (answer.key) record.key = encode(utf8(answer.key));
    await attempt(async () => {
      await call("stream.append", { stream, partition: state.partition, records: [record] });
      if (!state.following) await follow();
    }, "Sent, and on disk.");
  }

  await follow();
  await view.every(async () => about.update(await call("console.stream", { stream })));
}

function filterFields(changed) {
  const input = (label, placeholder) =>
    h("input", { type: "search", "aria-label": label, placeholder, oninput: () => changed() });
  const text = input("Filter by text", "Text in the payload");
  const type = input("Filter by type", "Type");
  const key = input("Filter by key", "Key");
  const json = input("Filter by JSON field", "JSON field: item.count=3");
  const values = () => ({
    text: text.value.trim(),
    type: type.value.trim(),
    key: key.value.trim(),
    json: json.value.trim(),
  });
  return {
    element: h("div", { class: "filters" }, text, type, key, json),
    values,
    used: () => Object.values(values()).some(Boolean),
  };
}

// What changes while one looks: figures, who writes, who reads.
function aboutStream() {
  const quiet = h("span", {});
  const chart = new LineChart("Records per second", (value) => `${number(value)} records/s`);
  const numbers = h("div", { class: "numbers" });
  const figures = h("div", { class: "card summary" }, numbers, chart.element);
  const writers = liveTable(
    [
      { title: "Who", cell: (one) => one.name },
      { title: "How", cell: (one) => one.how },
      {
        title: "Last sequence",
        number: true,
        cell: (one) => (one.sequence === undefined ? "–" : number(one.sequence)),
      },
    ],
    {
      label: "Who writes",
      key: (one) => one.key,
      empty: empty(
        "Nobody that the hub can name.",
        "Sessions that have written and are still open, and producers that number their records.",
      ),
    },
  );
  const readers = liveTable(
    [
      { title: "Who", wrap: true, cell: (one) => one.name },
      {
        title: "Next index",
        number: true,
        minor: true,
        cell: (one) => (one.index === undefined ? "–" : number(one.index)),
      },
      { title: "Behind", number: true, cell: (one) => (one.index === undefined ? "–" : count(one.lag, "record")) },
      { title: "State", wrap: true, cell: (one) => (one.index === undefined ? pill(one.protocol) : cursorState(one)) },
    ],
    {
      label: "Who reads",
      key: (one) => one.key,
      empty: empty("Nobody.", "Cursors and sessions that read are shown here."),
    },
  );
  const users = h(
    "div",
    { class: "halves" },
    h("section", { class: "card" }, h("h2", {}, "Who writes"), writers.element),
    h("section", { class: "card" }, h("h2", {}, "Who reads"), readers.element),
  );

  function update({ row, producers, writers: writing, readers: reading, cursors, created_us, rates, bounds }) {
    quiet.textContent = `${count(row.partitions, "partition")} · kept ${row.retention} · acknowledged when ${row.ack} · created ${moment(created_us).slice(0, 16)} UTC`;
    const range =
      bounds.length === 1
        ? `${number(bounds[0][0])} to ${number(bounds[0][1])}`
        : bounds.map(([first, next], at) => `${at}: ${number(first)} to ${number(next)}`).join(", ");
    fill(
      numbers,
      facts([
        ["Records", number(row.records)],
        ["Size", bytes(row.bytes)],
        ["Rate", `${number(row.rate)} records/s`],
        ["First and next index", range],
        ["Furthest behind", row.cursors ? count(row.lag, "record") : "no cursors"],
      ]),
    );
    chart.update([rates.length ? rates : [0]]);
    writers.update([
      ...writing.map((one) => ({
        key: `s${one.session}`,
        name: one.peer,
        how: [pill(one.protocol), " ", h("a", { href: `#/sessions/${one.session}` }, "session")],
      })),
      ...producers.map((one) => ({
        key: `p${one.partition}/${one.name}`,
        name: one.name,
        how: bounds.length > 1 ? `producer, partition ${one.partition}` : "producer",
        sequence: one.sequence,
      })),
    ]);
    readers.update([
      ...cursors.map((one) => ({
        ...one,
        key: `c${one.partition}/${one.name}`,
        name: [one.name, h("div", { class: "quiet" }, `moved ${seconds(one.age_s)} ago`)],
      })),
      ...reading.map((one) => ({
        key: `s${one.session}`,
        name: h("a", { href: `#/sessions/${one.session}` }, one.peer),
        protocol: one.protocol,
      })),
    ]);
  }
  return { quiet, figures, users, update };
}

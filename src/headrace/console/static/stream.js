// One stream: its records, live or anywhere in its past, who writes and who reads.

import { call, callIfThere } from "./api.js";
import { LineChart, Recent } from "./charts.js";
import { cursorState } from "./cursors.js";
import { ask, attempt, choice, curl, field, form, line, menu, NOT_HEX } from "./dialogs.js";
import {
  ago,
  allow,
  bytes,
  count,
  empty,
  encode,
  facts,
  fill,
  h,
  head,
  hide,
  hubMs,
  moment,
  number,
  pill,
  place,
  today,
  unhex,
  utf8,
} from "./dom.js";
import { fits, isNumber, short, showRecord } from "./record.js";
import { Reading } from "./reading.js";
import { deleteStream, editOptions, growStream, rewindStream, trimStream } from "./streams.js";
import { liveTable } from "./table.js";

const PAGE = 200;
const LIVE_KEPT = 1000; // and filtered
const LIVE_SHOWN = 100; // of them: a page with thousands of elements cannot keep up with what comes
const PAST_S = 300; // of the rate's chart
const SEARCH_PAGE = 1000;
const SEARCH_PAGES = 50;
const FEW_PARTITIONS = 4; // more than these are not told one by one

export async function streamPage(root, [stream], view) {
  const seen = await call("console.stream", { stream });
  const many = seen.bounds.length > 1;
  const state = { records: [], following: false, selected: null };
  if (!seen.bounds[view.shown.partition]) delete view.shown.partition; // an old address, or one that was typed
  const chosen = () => (view.shown.partition === undefined ? seen.bounds.map((_, at) => at) : [Number(view.shown.partition)]);
  let reading = new Reading(stream, chosen());
  const detail = h(
    "section",
    { class: "card detail", "aria-live": "polite", "aria-label": "Record", tabindex: -1 },
    empty("Choose a record.", "Click it, or Tab to it and press Enter."),
  );
  const said = h("span", { class: "quiet", role: "status" });
  const filters = filterFields(view, () => draw());
  const rows = liveTable(
    [
      { title: "Index", number: true, place: true, cell: (one) => number(one.index) },
      many ? { title: "Partition", number: true, place: true, cell: (one) => one.partition } : null,
      {
        title: "Time (UTC)",
        cell: (one) => h("span", { class: "still", title: moment(one.time_us) }, today(one.time_us)),
      },
      { title: "Type", cell: typeCell },
      { title: "Payload", wrap: true, cell: (one) => h("code", {}, short(one)) },
    ].filter(Boolean),
    {
      label: "Records",
      key: (one) => `${one.partition}/${one.index}`,
      stamp: () => "a record never changes",
      empty: empty("No records here.", "Send one with the button above, or wait for a producer."),
      onOpen: select,
      isOpen: (one) => state.selected === `${one.partition}/${one.index}`,
    },
  );
  const live = h("button", { type: "button", "aria-pressed": "true", onclick: () => attempt(follow) }, "Live");
  const earlier = h("button", { type: "button", onclick: () => go(() => reading.earlier(PAGE)) }, "Earlier");
  const later = h("button", { type: "button", onclick: () => go(() => reading.on(PAGE)) }, "Later");
  const search = h("button", { type: "button", hidden: true, onclick: () => attempt(searchOn) }, "Search on");
  const partition = h(
    "select",
    {
      "aria-label": "Partition",
      hidden: !many,
      value: view.shown.partition ?? "",
      onchange: () => {
        view.keep({ partition: partition.value, index: null });
        reading = new Reading(stream, chosen());
        attempt(follow);
      },
    },
    h("option", { value: "" }, `all ${seen.bounds.length} partitions`),
    seen.bounds.map((_, at) => h("option", { value: at }, `partition ${at}`)),
  );
  const about = aboutStream(stream);
  fill(
    root,
    head(
      stream,
      about.quiet,
      h("a", { class: "button", href: place(["query"], { stream }) }, "Open in Query"),
      h("button", { type: "button", class: "main", onclick: send }, "Send a record"),
      menu("What to do with this stream", [
        { title: "Change options…", on: () => editOptions(stream).then((done) => done && view.now()) },
        { title: "Rate over the last day", on: () => (location.hash = place(["events"], { stream, last: 86400 })) },
        { title: "More partitions…", on: () => growStream(stream).then((done) => done && location.reload()) },
        { title: "Trim…", on: () => trimStream(stream) },
        seen.writers.some((one) => one.protocol === "wallaroo") ? { title: "Have records sent again…", on: () => rewindStream(stream) } : null,
        {
          title: "Delete…",
          danger: true,
          on: async () => {
            if (await deleteStream(stream)) location.hash = "#/streams";
          },
        },
      ]),
    ),
    about.figures,
    h(
      "div",
      { class: "bar" },
      live,
      partition,
      h("button", { type: "button", onclick: () => go(() => reading.from(reading.each("earliest"), PAGE)) }, "Earliest"),
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

  const go = (read) =>
    attempt(async () => {
      await reading.bounds();
      const records = await read();
      pause();
      state.records = records;
      draw();
    });
  function pause() {
    if (state.following && !many) view.follow(null);
    state.following = false;
    live.setAttribute("aria-pressed", "false");
  }
  async function follow() {
    state.records = await reading.last(PAGE);
    state.following = true;
    live.setAttribute("aria-pressed", "true");
    view.keep({ index: null, time: null });
    draw();
    const [only] = reading.chosen;
    // a word when there are new records; with several partitions they are looked for with every pulse
    if (reading.chosen.length === 1) view.follow(stream, only, reading.next.get(only), () => more().catch((error) => view.say(error)));
  }
  let underWay = null;
  async function more() {
    if (underWay) {
      await underWay.catch(() => {}); // one at a time: news that come while reading are read after it
    }
    if (!state.following || underWay) return;
    const from = reading;
    underWay = from.fresh(PAGE);
    try {
      const fresh = await underWay;
      if (!state.following || from !== reading || !fresh.length) return;
      state.records = [...state.records, ...fresh].slice(-LIVE_KEPT);
      draw();
    } finally {
      underWay = null;
    }
    if (!reading.atEnd) await more();
  }
  async function seekIndex() {
    const answer = await ask(
      "Go to index",
      [
        field("Index", "index", { type: "number", min: 0, required: true, value: state.records[0]?.index ?? 0 }),
        reading.chosen.length > 1 ? h("p", { class: "quiet" }, "In every partition; choose one above the list to see only that.") : null,
      ],
      { ok: "Go" },
    );
    if (!answer) return;
    view.keep({ index: answer.index });
    await go(() => reading.from(reading.each(Number(answer.index)), PAGE));
  }
  async function seekTime() {
    const answer = await ask(
      "Go to time",
      field("Time (UTC)", "time", { type: "datetime-local", step: 1, required: true }),
      { ok: "Go" },
    );
    if (!answer) return;
    const time = Date.parse(`${answer.time}Z`) * 1000;
    view.keep({ time });
    await go(async () => reading.from(await reading.atTime(time), PAGE));
  }
  // Read on until there is a page of records that fit, or until the end.
  async function searchOn() {
    pause();
    const wanted = filters.values();
    const found = [];
    state.records = [];
    for (let pages = 0; pages < SEARCH_PAGES && found.length < PAGE; pages += 1) {
      const records = await reading.on(SEARCH_PAGE);
      found.push(...records.filter((record) => fits(record, wanted)));
      said.textContent = `Searched to ${where()}.`;
      if (reading.atEnd || !records.length) break;
    }
    state.records = found;
    draw(`${count(found.length, "record matches", "records match")}, searched to ${where()}.`);
  }
  function where() {
    const [sum, end] = [reading.next, reading.ends].map((places) =>
      reading.chosen.reduce((all, one) => all + (places.get(one) ?? 0), 0),
    );
    return reading.chosen.length === 1 ? `index ${number(sum)} of ${number(end)}` : `${number(sum)} of ${number(end)} records`;
  }

  function draw(words = null) {
    const wanted = filters.values();
    const kept = filters.used() ? state.records.filter((record) => fits(record, wanted)) : state.records;
    rows.update(state.following ? kept.slice(-LIVE_SHOWN).reverse() : kept);
    hide(search, !filters.used() || (reading.atEnd && !state.following));
    allow(earlier, !state.following && !reading.atStart);
    allow(later, !state.following && !reading.atEnd);
    const range = state.records.length
      ? `${number(state.records[0].index)} to ${number(state.records.at(-1).index)}`
      : "nothing";
    said.textContent =
      words ??
      (state.following
        ? `Live: ${count(Math.min(kept.length, LIVE_SHOWN), "record")} of the last ${number(state.records.length)}`
        : reading.chosen.length === 1
          ? `Index ${range}: ${count(kept.length, "record")}`
          : `${count(kept.length, "record")}, oldest first`);
  }

  async function select(record) {
    state.selected = `${record.partition}/${record.index}`;
    draw();
    view.keep({ record: state.selected });
    await showRecord(detail, stream, record.partition, { ...record });
    if (matchMedia("(max-width: 1000px)").matches) detail.scrollIntoView(); // it is below the list there
  }

  function asked(answer) {
    const record =
      answer.form === "text"
        ? { text: answer.payload }
        : { payload: encode(unhex(answer.payload) ?? []) };
    if (answer.type) record.type = answer.type;
    if (answer.key) record.key = encode(utf8(answer.key));
    return { stream, partition: Number(answer.partition ?? 0), records: [record] };
  }

  async function send() {
    const answer = await ask(
      `Send a record to ${stream}`,
      form(
        [
          h("label", { class: "block" }, "Payload", h("textarea", { name: "payload" })),
          choice("The payload is", "form", [
            ["text", "text"],
            ["hex", "bytes in hex"],
          ]),
          h("div", { class: "fields" }, field("Type", "type"), field("Key", "key")),
          many ? choice("Partition", "partition", seen.bounds.map((_, at) => [at, String(at)]), { value: reading.chosen[0] }) : null,
        ],
        (values) =>
          values.form === "text"
            ? line(["append", stream, values.payload], { type: values.type, key: values.key, partition: many ? values.partition : null })
            : curl("stream.append", asked(values)),
      ),
      {
        ok: "Send",
        check: (values) =>
          values.form === "hex" && !unhex(values.payload) ? NOT_HEX : null,
      },
    );
    if (!answer) return;
    await attempt(async () => {
      await call("stream.append", asked(answer));
      if (!state.following) await follow();
    }, "Sent, and on disk.");
  }

  // The address may name a record, an index or a time.
  async function begin() {
    const { record, index, time } = view.shown;
    const [, inside, at] = /^(\d+)\/(\d+)$/.exec(record ?? "") ?? [];
    if (at !== undefined) {
      const named = await reading.part(Number(inside), Number(at), 1);
      const [found] = named.records.filter((one) => one.index === Number(at));
      if (found) {
        const before = new Map(reading.chosen.map((one) => [one, one === found.partition ? Math.max(0, found.index - PAGE / 4) : 0]));
        if (reading.chosen.length > 1) {
          const places = await reading.atTime(found.time_us);
          for (const [one, from] of places) if (one !== found.partition) before.set(one, from);
        }
        state.records = await reading.from(before, PAGE);
        pause();
        await select(found);
        return;
      }
    }
    if (index !== undefined) await go(() => reading.from(reading.each(Number(index)), PAGE));
    else if (time !== undefined) await go(async () => reading.from(await reading.atTime(Number(time)), PAGE));
    else await follow();
  }
  await begin();
  await view.every(async () => {
    about.update(await call("console.stream", { stream }));
    if (state.following && reading.chosen.length > 1) await more();
  });
}

function typeCell(one) {
  const type = one.type ?? "";
  return h("span", { class: isNumber(type) ? "clip quiet" : "clip", title: type }, isNumber(type) ? `#${type.slice(0, 6)}…` : type);
}

function filterFields(view, changed) {
  const input = (label, placeholder, name) =>
    h("input", {
      type: "search",
      "aria-label": label,
      placeholder,
      value: view.shown[name] ?? "",
      oninput: () => {
        view.keep(values());
        changed();
      },
    });
  const text = input("Filter by text", "Text in the payload", "text");
  const type = input("Filter by type", "Type", "type");
  const key = input("Filter by key", "Key", "key");
  const json = input("Filter by JSON field", "JSON: item.count=3", "json");
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

// The rate of the last minutes, a value for each second, as the hub's history has it.
async function ratesBefore(stream) {
  const nowUs = hubMs() * 1000;
  const found = await callIfThere("console.history", { since_us: nowUs - PAST_S * 1e6, until_us: nowUs, stream }, null).catch(() => null);
  const seconds = Math.round((found?.step_us ?? 0) / 1e6);
  const known = (found?.moments ?? []).map((one) => one?.rates[stream] ?? null);
  const first = known.findIndex((rate) => rate !== null); // before it the hub or the stream was not there
  const last = known.findLastIndex((rate) => rate !== null);
  const filled = known.map((rate, at) => (at > last ? known[last] : rate)); // what came since then is not written yet
  return first < 0 ? [] : filled.slice(first).flatMap((rate) => Array(seconds).fill(rate));
}

// What changes while one looks: figures, who writes, who reads.
function aboutStream(stream) {
  const quiet = h("span", {});
  const kept = h("button", { type: "button", class: "quiet-button edit", title: "Change", onclick: () => editOptions(stream) });
  const chart = new LineChart("Records per second", (value) => `${number(value)} records/s`).linkTo({ stream });
  const recent = new Recent(PAST_S);
  let past = [];
  ratesBefore(stream).then((found) => {
    past = found;
  });
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
        "Nobody the hub knows of.",
        "Open sessions that have written, and producers that number their records, are shown here.",
      ),
    },
  );
  const readers = liveTable(
    [
      { title: "Who", wrap: true, cell: (one) => one.name },
      {
        title: "Next index",
        number: true,
        place: true,
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
    kept.textContent = `kept ${row.retention}`;
    if (!kept.isConnected) fill(quiet, h("span", {}), kept, h("span", {}));
    quiet.firstChild.textContent = `${count(row.partitions, "partition")} · `;
    quiet.lastChild.textContent = ` · acknowledged when ${row.ack} · created ${moment(created_us).slice(0, 16)} UTC`;
    const range =
      bounds.length === 1
        ? `${number(bounds[0][0])} to ${number(bounds[0][1])}`
        : bounds.length <= FEW_PARTITIONS
          ? bounds.map(([first, next], at) => `${at}: ${number(first)} to ${number(next)}`).join(", ")
          : `${number(Math.min(...bounds.map(([first]) => first)))} to ${number(Math.max(...bounds.map(([, next]) => next)))} at most, in ${count(bounds.length, "partition")}`;
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
    chart.update([[...past, ...(rates.length || past.length ? rates : [0])].slice(-PAST_S)], 1, null, recent.now());
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
        name: [one.name, h("div", { class: "quiet" }, `moved ${ago(one.age_s)}`)],
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

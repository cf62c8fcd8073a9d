// Who is connected, in which state, and how the last ones ended.

import { call } from "./api.js";
import { empty, facts, fill, h, head, json, links, meter, moment, number, pill, refill, searchField, seconds } from "./dom.js";
import { diagram } from "./machine.js";
import { liveTable, pager } from "./table.js";

const ROWS = 100;

export async function sessionsPage(root, [chosen, ...rest], view) {
  const machines = new Map((await call("console.machines")).map((one) => [`${one.protocol}/${one.name}`, one]));
  const state = { id: chosen ? Number(chosen) : null, drawn: null, offset: 0 };
  const which = h(
    "select",
    {
      "aria-label": "Which sessions",
      value: view.shown.which ?? "open",
      onchange: () => {
        view.keep({ which: which.value === "open" ? null : which.value });
        state.offset = 0;
        view.now();
      },
    },
    h("option", { value: "open" }, "Open now"),
    h("option", { value: "ended" }, "Ended lately"),
  );
  const search = searchField(view, "Filter sessions", "Protocol, peer or stream", () => {
    state.offset = 0;
    view.now();
  });
  const places = pager(ROWS, "session", (offset) => {
    state.offset = offset;
    view.now();
  });
  const title = h("h2", {});
  const about = h("div", {});
  const diagrams = h("div", {});
  const detail = h(
    "section",
    { class: "card", "aria-label": "Session", hidden: true },
    h(
      "div",
      { class: "bar" },
      title,
      h("span", { class: "push" }),
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            state.id = null;
            view.at(["sessions"]);
            view.now();
          },
        },
        "Close",
      ),
    ),
    about,
    diagrams,
  );
  const none = h("div", {});
  const rows = liveTable(
    [
      { title: "Protocol", cell: (row) => pill(row.protocol) },
      { title: "Peer", cell: (row) => h("code", { class: "still" }, row.peer) },
      { title: "State", cell: (row) => row.state },
      {
        title: "Credits",
        cell: (row) => row.flow.filter((one) => one.value || one.most).map((one) => h("div", {}, flow(one))),
      },
      { title: "Streams", wide: true, cell: (row) => uses(row) },
      {
        title: "Since (UTC)",
        least: true,
        cell: (row) => h("span", { class: "still" }, moment(row.opened_us).slice(0, 19)),
      },
      { title: "Last error", wrap: true, cell: (row) => h("span", { class: "bad" }, row.reason ?? row.error ?? "") },
    ],
    {
      label: "Sessions",
      key: (row) => row.id,
      stamp: (row) => json(row),
      empty: none,
      onOpen: async (row) => {
        state.id = row.id;
        view.at(["sessions", row.id]);
        await view.now();
        detail.scrollIntoView({ block: "nearest" });
      },
      isOpen: (row) => row.id === state.id,
    },
  );
  fill(
    root,
    head("Sessions", "Connections of every protocol. Open one to see where it is in its protocol's state machine."),
    h("div", { class: "bar" }, which, search, places.element),
    h("div", { class: "card" }, rows.element),
    detail,
  );

  async function refresh() {
    const ended = which.value === "ended";
    const page = await call("console.sessions", { text: search.value, ended, offset: state.offset, limit: ROWS, id: state.id });
    fill(
      none,
      ended
        ? empty("No session has ended since the hub started.")
        : empty("Nobody is connected.", "The addresses of the listeners are on the overview."),
    );
    rows.update(page.rows);
    places.update(state.offset, page.total);
    show(page.chosen);
  }

  function show(row) {
    detail.hidden = !row;
    if (!row) {
      state.drawn = null;
      return;
    }
    title.textContent = `${row.protocol} · ${row.peer}`;
    const given = [
      ["State", row.state],
      row.closed_us
        ? ["Was open for", `${seconds((row.closed_us - row.opened_us) / 1e6)}, until ${moment(row.closed_us).slice(0, 19)} UTC`]
        : ["Open since", `${moment(row.opened_us).slice(0, 19)} UTC`],
      ["Why it ended", row.reason],
      ["Last error", row.error ? h("span", { class: "bad" }, row.error) : "none"],
      ["Writes", row.writes.length ? links(row.writes) : null],
      ["Reads", row.reads.length ? links(row.reads) : null],
      ...row.flow.map((one) => [titled(one.name), flow({ ...one, name: "" })]),
      ...Object.entries(row.facts).map(([name, value]) => [titled(name), value]),
    ];
    const places = JSON.stringify([row.id, row.places]);
    if (places !== state.drawn) {
      // another session, or another state: only then there is something else to draw
      state.drawn = places;
      fill(about, facts(given));
      fill(diagrams, machinesOf(row));
    } else refill(about, facts(given));
  }

  function machinesOf(row) {
    const used = new Map();
    for (const place of row.places) {
      const marks = used.get(place.machine) ?? used.set(place.machine, new Map()).get(place.machine);
      marks.set(place.state, [...(marks.get(place.state) ?? []), place.what]);
    }
    return [...used]
      .filter(([name]) => machines.has(name))
      .map(([name, marks]) => {
        const machine = machines.get(name);
        return h(
          "section",
          { class: "machine-of" },
          h("h3", {}, `States of ${machine.of}`),
          diagram(machine, marks),
        );
      });
  }

  await view.every(refresh);
}

const flow = (one) =>
  h(
    "span",
    { class: "flow" },
    one.most ? meter(one.value, one.most) : null,
    `${number(one.value)}${one.most ? ` of ${number(one.most)}` : ""} ${one.name}`,
  );

const titled = (name) => name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");

function uses(row) {
  const said = [];
  if (row.writes.length)
    said.push(
      h(
        "div",
        {},
        h("span", { class: "quiet" }, "writes "),
        links(row.writes.slice(0, 3)),
        row.writes.length > 3 ? ` and ${row.writes.length - 3} more` : "",
      ),
    );
  if (row.reads.length)
    said.push(
      h(
        "div",
        {},
        h("span", { class: "quiet" }, "reads "),
        links(row.reads.slice(0, 3)),
        row.reads.length > 3 ? ` and ${row.reads.length - 3} more` : "",
      ),
    );
  return said;
}

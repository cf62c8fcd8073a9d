// AMBROSIA immortals: their state, the timeline of their calls and checkpoints, and replays for debugging.

import { call, callIfThere } from "./api.js";
import { attempt, menu } from "./dialogs.js";
import { allow, bytes, count, empty, facts, fill, h, head, hide, meter, moment, number, pill, refill, seconds, streamLink, today } from "./dom.js";
import { liveTable } from "./table.js";
import { callMethod, checkpoint, compare, forget, handOver, register, replay } from "./immortal_actions.js";
import { lookPanel } from "./immortal_look.js";
import { said, timeline, title as named } from "./timeline.js";

const kinds = { running: "good", debugging: "good", standby: "good", absent: "warn", unregistered: "" };
const ENTRIES = 200;
const AROUND = 20; // messages before the one that was asked for

export async function immortalsPage(root, [chosen], view) {
  const state = { name: chosen ?? null, one: null, start: null, first: 0, at: null, drawn: null }; // start: where the shown part of the log begins, null for its end
  const none = h("div", {});
  const rows = liveTable(
    [
      { title: "Immortal", cell: (row) => row.name },
      { title: "State", cell: (row) => pill(row.state, kinds[row.state] ?? "warn") },
      { title: "Receive port", minor: true, cell: (row) => h("code", {}, row.receive ?? "") },
      { title: "Send port", minor: true, cell: (row) => h("code", {}, row.send ?? "") },
      { title: "Messages", number: true, cell: (row) => number(row.log_next - row.log_first) },
      { title: "Not delivered", number: true, cell: (row) => number(row.undelivered + row.pending) },
      { title: "Checkpoints", number: true, cell: (row) => number(row.checkpoints.length) },
      { title: "Last error", wrap: true, cell: (row) => h("span", { class: "bad" }, row.last_error ?? "") },
    ],
    {
      label: "Immortals",
      key: (row) => row.name,
      empty: none,
      onOpen: async (row) => {
        Object.assign(state, { name: row.name, start: null, at: null });
        view.at(["immortals", row.name]);
        fill(list);
        await view.now();
        detail.scrollIntoView({ block: "nearest" });
      },
      isOpen: (row) => row.name === state.name,
    },
  );
  const debugging = liveTable(
    [
      { title: "Immortal", cell: (one) => one.name },
      { title: "State", cell: (one) => pill(one.state, one.state === "replayed" ? "good" : "warn") },
      { title: "Receive port", cell: (one) => h("code", {}, one.receive) },
      { title: "Send port", cell: (one) => h("code", {}, one.send) },
      {
        title: "Replayed",
        cell: (one) =>
          h(
            "span",
            { class: "flow" },
            meter(one.position - one.first, one.next - one.first),
            `${number(one.position - one.first)} of ${count(one.next - one.first, "message")}`,
          ),
      },
      {
        title: "",
        cell: (one) =>
          h(
            "span",
            { class: "actions" },
            h(
              "button",
              { type: "button", onclick: () => end(one), "aria-label": `End the debugging session at ${one.receive}` },
              "End",
            ),
          ),
      },
    ],
    { label: "Debugging sessions", key: (one) => one.receive },
  );
  const replays = h(
    "section",
    { class: "card", hidden: true },
    h("h2", {}, "Debugging sessions"),
    h(
      "p",
      { class: "quiet" },
      "Each replays the past to one binding, from a checkpoint on. Whatever the binding sends is discarded.",
    ),
    debugging.element,
  );
  const title = h("h2", {});
  const badge = h("span", {});
  const after = (work) => async () => {
    if (await work(state.one)) await view.now();
  };
  const take = h("button", { type: "button", onclick: after(checkpoint) }, "Take a checkpoint");
  const again = h("button", { type: "button", onclick: after(replay) }, "Replay");
  const ring = h("button", { type: "button", class: "main", onclick: () => state.methods && callMethod(state.one, state.methods).then(() => view.now()) }, "Call a method");
  const more = menu("What else to do with this immortal", () => [
    state.one.standbys ? { title: "Hand over to a standby…", on: after(handOver) } : null,
    { title: "What-if: compare two programs…", on: after(compare) },
    { title: "Forget…", danger: true, on: after(forget) },
  ]);
  const inside = lookPanel(view);
  const about = h("div", {});
  const picture = h("div", {});
  const text = h(
    "p",
    { class: "quiet", role: "status" },
    "Choose a message to see it here; all of them are in the list below.",
  );
  const earlier = h(
    "button",
    { type: "button", onclick: () => look(Math.max(state.one.log_first, state.first - ENTRIES)) },
    "Earlier",
  );
  const newest = h("button", { type: "button", onclick: () => look(null) }, "Newest");
  const range = h("span", { class: "quiet" });
  const list = h("ol", { class: "events" });
  const detail = h(
    "section",
    { class: "card", "aria-label": "Timeline", hidden: true },
    h("div", { class: "bar" }, title, badge, h("span", { class: "push" }), ring, take, again, more),
    about,
    inside.element,
    picture,
    text,
    h("div", { class: "bar" }, earlier, newest, range),
    list,
  );
  fill(
    root,
    head(
      "Immortals",
      "Services that survive a crash without losing a call: every message is logged before it is delivered.",
      h("button", { type: "button", class: "main", onclick: () => register().then((done) => done && view.now()) }, "Register an immortal"),
    ),
    h("div", { class: "card" }, rows.element),
    replays,
    detail,
  );

  async function refresh() {
    const found = await callIfThere("immortal.list", {}, null);
    fill(
      none,
      found === null
        ? empty("This hub does not serve immortals.", "listen.ambrosia is off.")
        : empty("No immortals are registered.", "headrace immortal register NAME"),
    );
    rows.update(found ?? []);
    const open = found === null ? [] : await call("immortal.debugging");
    replays.hidden = !open.length;
    debugging.update(open);
    const one = found?.find((row) => row.name === state.name);
    detail.hidden = !one;
    if (one) await show(one);
  }

  async function show(one) {
    state.one = one;
    const asked = JSON.stringify([one.name, one.described, one.state]); // another program may have other methods
    if (state.asked !== asked) {
      state.asked = asked;
      state.methods = await methodsOf(one);
    }
    await inside.update(one, state.methods);
    const now = JSON.stringify([one, state.start]);
    if (now === state.drawn) return;
    const logged = one.registered ? await call("immortal.log", { name: one.name, start: state.start === null ? null : Math.max(one.log_first, state.start), limit: ENTRIES }) : [];
    const entries = logged.filter((entry) => entry.name !== "clock"); // what time it was; each message has that already
    state.drawn = now;
    state.first = entries[0]?.index ?? one.log_first;
    title.textContent = one.name;
    fill(badge, pill(one.state, kinds[one.state] ?? "warn"));
    allow(take, one.state === "running");
    allow(again, one.checkpoints.length > 0);
    hide(ring, !state.methods?.methods.length);
    refill(
      about,
      facts([
        [
          "Log",
          one.registered
            ? [streamLink(`immortal/${one.name}/log`), ` index ${number(one.log_first)} to ${number(one.log_next)}`]
            : "not registered: calls wait for it",
        ],
        ["Next sequence", number(one.sequence)],
        ["Version", one.version],
        ["Standbys", one.standbys ? number(one.standbys) : null],
        [
          "Called by",
          one.senders
            .map((peer) => `${peer.name}: ${count(peer.calls, "call")}, ${count(peer.impulses, "impulse")}`)
            .join(" · "),
        ],
        ["Last error", one.last_error ? h("span", { class: "bad" }, one.last_error) : null],
      ]),
    );
    refill(
      picture,
      entries.length
        ? timeline(entries, one.checkpoints, (entry) => {
            text.textContent = `#${entry.sequence} ${moment(entry.time_us)} UTC: ${said(entry)} ${short(entry)}${answered(entry)}`;
          })
        : empty("Nothing logged yet."),
    );
    const strip = picture.querySelector(".timeline-scroll");
    if (strip && state.start === null) strip.scrollLeft = strip.scrollWidth; // the newest
    allow(earlier, state.first > one.log_first);
    allow(newest, state.start !== null);
    range.textContent = entries.length
      ? `index ${number(state.first)} to ${number(entries.at(-1).index)} of ${number(one.log_next)}`
      : "";
    const checkpoints = one.checkpoints.filter(
      (checkpoint) => checkpoint.position >= state.first || state.start === null,
    );
    const marks = [
      ...entries.map((entry) => ({ at: entry.index + 0.5, entry })),
      ...checkpoints.map((checkpoint) => ({ at: checkpoint.position, checkpoint })),
    ].sort((one, other) => other.at - one.at);
    refill(
      list,
      marks.map((mark) => line(mark, one)),
    );
  }

  // A button that leads to a message of this immortal or another one.
  function jump(how, { name, index }) {
    const go = async () => {
      Object.assign(state, { name, at: index, start: Math.max(0, index - AROUND), drawn: null });
      view.at(["immortals", name]);
      document.activeElement?.blur(); // what is about to be drawn anew has the focus
      await view.now();
      list.querySelector(".chosen")?.scrollIntoView({ block: "center" });
    };
    return h("button", { type: "button", class: "quiet-button", onclick: go }, `${how} ${name} ${number(index)}`);
  }

  function look(start) {
    state.start = start;
    list.scrollTop = 0;
    view.now();
  }

  function line({ entry, checkpoint: saved }, one) {
    if (saved) {
      return h(
        "li",
        { class: "checkpoint" },
        h("span", { class: "still", title: moment(saved.time_us) }, today(saved.time_us)),
        " ",
        pill("checkpoint", "warn"),
        ` ${saved.id}, ${bytes(saved.size)}, covers everything before index ${number(saved.position)} `,
        h("button", { type: "button", onclick: () => replay(one, saved.id).then((done) => done && view.now()) }, "Replay from here"),
      );
    }
    const isChosen = state.at === entry.index;
    return h(
      "li",
      isChosen ? { class: "chosen", "aria-current": "true" } : {},
      h("span", { class: "still", title: moment(entry.time_us) }, today(entry.time_us)),
      ` #${number(entry.sequence)} `,
      pill(entry.kind),
      " ",
      named(entry) === entry.kind ? "" : h("b", {}, named(entry)),
      entry.sender ? ` from ${entry.sender}` : entry.caller === "@outside" ? " from outside" : "",
      " ",
      h("code", {}, short(entry)),
      entry.answer ? h("span", { class: entry.answer.raised ? "bad" : "good" }, answered(entry)) : "",
      h("span", { class: "quiet" }, ` ${bytes(entry.bytes)}`),
      entry.cause ? [" ", jump("caused by", entry.cause)] : "",
      entry.led_to.map((place) => [" ", jump("led to", place)]),
      state.methods?.methods.some((each) => each.name === entry.name)
        ? h("button", { type: "button", class: "quiet-button", onclick: () => callMethod(one, state.methods, entry).then(() => view.now()) }, "Call again…")
        : "",
    );
  }

  async function end(one) {
    await attempt(
      () => call("immortal.end-replay", { name: one.name, receive: one.receive }),
      "Ended the debugging session.",
    );
    await view.now();
  }
  await view.every(refresh);
}

const short = (entry) => (entry.text ?? entry.base64 ?? "").slice(0, 160);

const answered = ({ answer }) => (answer ? ` ${answer.raised ? "raised" : "returned"} ${answer.text.slice(0, 160) || "nothing"} after ${seconds(answer.after_us / 1e6)}` : "");

// What can be called of it, if its program has said so.
const methodsOf = async (one) => (one.described ? call("immortal.methods", { name: one.name }) : null);

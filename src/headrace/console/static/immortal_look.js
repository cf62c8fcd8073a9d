// An immortal from inside, as its program says it: the state now and in each checkpoint, what waits for what, timers to come,
// what is being done outside.

import { call } from "./api.js";
import { choice } from "./dialogs.js";
import { allow, count, empty, fill, h, hubMs, json, moment, pill, refill, seconds } from "./dom.js";
import { cancel, fulfil } from "./immortal_actions.js";
import { table } from "./table.js";

const KEYS = 200;
const BRIEF = ["checkpointing", "storing"];

// The element, and update(one, methods).
export function lookPanel(view) {
  const state = { name: null, key: null, at: null, drawn: null };
  const keys = h("div", {});
  const scrub = h("input", {
    type: "range",
    min: 0,
    step: 1,
    "aria-label": "State in which checkpoint",
    oninput: () => {
      state.at = Number(scrub.value);
      state.drawn = null;
      view.now();
    },
  });
  const when = h("span", { class: "quiet", role: "status" });
  const shown = h("pre", { tabindex: 0, "aria-label": "State" });
  const waits = h("div", {});
  const element = h(
    "div",
    { class: "look", hidden: true },
    keys,
    h(
      "div",
      { class: "halves" },
      h("section", { "aria-label": "State of the immortal" }, h("div", { class: "bar" }, h("h3", {}, "State"), scrub, when), shown),
      h("section", { "aria-label": "What it waits for" }, h("h3", {}, "What it waits for"), waits),
    ),
  );

  async function update(one, methods) {
    if (state.name !== one.name) Object.assign(state, { name: one.name, key: null, at: null, drawn: null });
    element.hidden = !methods;
    if (!methods) return;
    if (methods.keyed) await chooseKey(one);
    const places = [...one.checkpoints, null]; // the last is now
    const at = Math.min(state.at ?? places.length - 1, places.length - 1);
    Object.assign(scrub, { max: places.length - 1, value: at });
    allow(scrub, places.length > 1);
    try {
      await (places[at] === null ? now(one, methods) : saved(one, places[at]));
    } catch (error) {
      if (error.code === "away") throw error;
      shown.textContent = "";
      when.textContent = "";
      state.drawn = null;
      fill(waits, h("p", { class: "quiet" }, error.message));
    }
  }

  async function chooseKey(one) {
    if (state.key !== null) return;
    const found = one.state === "running" ? await call("immortal.instances", { name: one.name, limit: KEYS }) : [];
    state.key = found[0] ?? "";
    const field = choice("Instance", "key", found.map((key) => [key, key]), { value: state.key });
    field.addEventListener("input", (event) => {
      state.key = event.target.value;
      state.drawn = null;
      view.now();
    });
    fill(keys, found.length ? field : h("p", { class: "quiet" }, "No instances."));
  }

  const keyed = () => (state.key ? { key: state.key } : {});

  async function now(one, methods) {
    if (BRIEF.includes(one.state)) return; // and running again in a moment
    if (one.state !== "running") {
      state.drawn = null;
      when.textContent = "no program runs: slide back to a checkpoint";
      shown.textContent = "";
      fill(waits, h("p", { class: "quiet" }, "Nobody can be asked while its program is away."));
      return;
    }
    const found = await call("immortal.look", { name: one.name, ...keyed() });
    when.textContent = "now";
    say(found.state === null ? `${count(found.state_bytes, "byte")}, too large or not in a form to show` : json(found.state, 2));
    const drawn = json([found.methods, found.timers, found.effects, found.queued]);
    if (drawn !== state.drawn) refill(waits, waiting(one, found, methods));
    state.drawn = drawn;
  }

  async function saved(one, checkpoint) {
    const drawn = `${checkpoint.id} ${state.key}`;
    if (state.drawn === drawn) return;
    const found = await call("immortal.state", { name: one.name, checkpoint: checkpoint.id, ...keyed() });
    state.drawn = drawn;
    when.textContent = `checkpoint ${found.checkpoint}, before index ${found.position}, ${moment(found.time_us).slice(0, 19)} UTC`;
    say(found.keys ? `It had no instance ${state.key} yet.` : json(found.state, 2));
    fill(
      waits,
      h("p", {}, found.since ? `Methods waited then: ${count(found.since, "message")} came after the state that is shown.` : "No method waited then."),
      h("p", {}, `${count(found.timers, "timer")} to come.`),
    );
  }

  function say(text) {
    if (shown.textContent !== text) shown.textContent = text;
  }

  function waiting(one, found, { methods }) {
    const name = (id) => methods.find((each) => each.id === id)?.name ?? `method ${id}`;
    async function again(work) {
      if (!(await work)) return;
      document.activeElement?.blur(); // what is about to be drawn anew has the focus
      state.drawn = null;
      await view.now();
    }
    if (!found.methods.length && !found.timers.length && !found.effects.length) return empty("Nothing.", "Waiting methods, pending timers and effects in progress appear here.");
    return [
      found.methods.map((each) =>
        h(
          "p",
          {},
          pill(each.method),
          ` waits for ${each.waits_for.replace(/method (-?\d+)/, (_, id) => name(Number(id)))} `,
          each.call ? h("button", { type: "button", class: "quiet-button", onclick: () => again(cancel(one, each.method)) }, "Cancel…") : null,
        ),
      ),
      found.queued ? h("p", {}, `${count(found.queued, "call waits", "calls wait")} until it is done.`) : null,
      found.effects.length
        ? table(
            [
              { title: "Effect", wrap: true, cell: (each) => each.what },
              { title: "Attempts failed", number: true, cell: (each) => each.attempts ?? 0 },
              { title: "Last error", wrap: true, cell: (each) => h("span", { class: "bad" }, each.last_error ?? "") },
              {
                title: "",
                cell: (each) => (each.token ? h("button", { type: "button", onclick: () => again(fulfil(one, each.token)) }, "Fulfil…") : each.deadline_s ? `ends ${until(each.deadline_s)}` : each.not_before_s ? `again ${until(each.not_before_s)}` : null),
              },
            ],
            found.effects,
            { label: "Effects" },
          )
        : null,
      found.timers.length
        ? table(
            [
              { title: "Timer", cell: (each) => (each.destination === one.name ? name(each.method) : `${each.destination}, method ${each.method}`) },
              { title: "Due (UTC)", cell: (each) => h("span", { class: "still" }, moment(each.deadline_us).slice(0, 19)) },
              { title: "Every", cell: (each) => each.cron ?? "once" },
              { title: "Arguments", wrap: true, cell: (each) => h("code", {}, each.arguments ?? "") },
            ],
            found.timers,
            { label: "Pending timers" },
          )
        : null,
      found.more ? h("p", { class: "quiet" }, `and ${found.more} more`) : null,
    ];
  }
  return { element, update };
}

const until = (atS) => {
  const left = atS - hubMs() / 1000;
  return left > 0 ? `in ${seconds(Math.round(left))}` : "now";
};

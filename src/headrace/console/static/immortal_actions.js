// What can be done to immortals: register, call, fulfil, cancel, take a checkpoint, replay, forget.

import { call } from "./api.js";
import { ask, attempt, choice, command, copy, field, form, line } from "./dialogs.js";
import { count, facts, fill, h, json, moment, number } from "./dom.js";
import { table } from "./table.js";

export async function register() {
  const asked = (values) => ({ name: values.name, options: { standby: values.standby === "yes", clock: values.clock === "yes" } });
  const answer = await ask(
    "Register an immortal",
    form(
      [
        field("Name", "name", { required: true }),
        choice("Its program", "clock", [
          ["yes", "is written with headrace.immortals"],
          ["no", "speaks AMBROSIA by itself (C, Node)"],
        ]),
        choice("A second program may follow, and take over", "standby", [
          ["no", "no"],
          ["yes", "yes"],
        ]),
      ],
      (values) => line(["immortal", "register", values.name || "NAME"], { clock: values.clock === "yes", standby: values.standby === "yes" }),
      () => "The hub opens two ports for its program, and from then on keeps every message sent to it. A program that uses headrace.immortals.run registers itself.",
    ),
    { ok: "Register" },
  );
  return Boolean(answer) && attempt(() => call("immortal.register", asked(answer)), `Registered ${answer.name}.`);
}

export async function forget(one) {
  const answer = await ask(
    `Forget ${one.name}`,
    [
      h(
        "p",
        {},
        `Its log (${count(one.log_next - one.log_first, "message")}), ${count(one.checkpoints.length, "checkpoint")} and ${count(one.undelivered + one.pending, "message")} that wait for it go, and cannot be brought back.`,
      ),
      field("Type its name to confirm", "name", { required: true }),
      command(line(["immortal", "forget", one.name])),
    ],
    { ok: "Forget", danger: true, check: (values) => (values.name === one.name ? null : "The names do not match; nothing was removed.") },
  );
  return Boolean(answer) && attempt(() => call("immortal.forget", { name: one.name }), `Forgot ${one.name}.`);
}

export async function handOver(one) {
  const sure = await ask(
    `Hand ${one.name} over`,
    [h("p", {}, `Its standby, of which it has ${number(one.standbys)}, takes over now, and the program that runs now ends. No call is lost or made twice.`), command(line(["immortal", "hand-over", one.name]))],
    { ok: "Hand over", danger: true },
  );
  return Boolean(sure) && attempt(() => call("immortal.hand-over", { name: one.name }), `${one.name} was handed over.`);
}

export async function checkpoint(one) {
  const sure = await ask(
    `A checkpoint of ${one.name}`,
    [h("p", {}, "Its program is asked for its state, and the next recovery begins there. Older checkpoints are removed as its settings say."), command(line(["immortal", "checkpoint", one.name]))],
    { ok: "Take it" },
  );
  return Boolean(sure) && attempt(() => call("immortal.checkpoint", { name: one.name }), "The checkpoint is on disk.");
}

// Call a method by its name; `again` is a logged call whose arguments are a beginning.
export async function callMethod(one, methods, again = null) {
  const given = again?.text ? parsed(again.text) : {};
  const { "@key": key, ...known } = given ?? {};
  const takes = (name) => {
    const method = methods.methods.find((each) => each.name === name);
    const parts = Object.entries(method?.parameters ?? {}).map(([each, schema]) => `${each}: ${schema.type ?? "…"}`);
    return `${method?.query ? "A query: it reads, and leaves no trace. " : "Logged, and done exactly once. "}${method?.summary ?? ""} It takes ${parts.join(", ") || "no arguments"}.`;
  };
  const asked = (values) => ({
    name: one.name,
    method: values.method,
    arguments: JSON.parse(values.arguments || "{}"),
    ...(methods.keyed ? { key: values.key } : {}),
    ...(values.idempotency ? { idempotency_key: values.idempotency } : {}),
  });
  const answer = await ask(
    again ? `Call ${one.name} again` : `Call ${one.name}`,
    form(
      [
        choice("Method", "method", methods.methods.map((each) => [each.name, each.query ? `${each.name} (query)` : each.name]), { value: again?.name ?? methods.methods[0]?.name }),
        methods.keyed ? field("Key of the instance", "key", { required: true, value: key ?? "" }) : null,
        h("label", { class: "block" }, "Arguments, as JSON", h("textarea", { name: "arguments", value: JSON.stringify(known, null, 2) })),
        field("Idempotency key (the same key again is the same call)", "idempotency"),
      ],
      (values) => line(["immortal", "call", one.name, values.method, values.arguments.replace(/\s*\n\s*/g, " ")], { key: methods.keyed ? values.key : null, "idempotency-key": values.idempotency }),
      (values) => takes(values.method),
    ),
    { ok: "Call", check: (values) => (parsed(values.arguments || "{}") === null ? "The arguments are not a JSON object." : null) },
  );
  if (!answer) return false;
  return attempt(async () => {
    const { value = null } = await call("immortal.call", asked(answer));
    await ask(`${one.name}.${answer.method} returned`, h("pre", { tabindex: 0 }, json(value, 2)), { ok: "Close", cancel: false });
  });
}

// A JSON object, or null; with `anything` whatever JSON can say, or undefined.
function parsed(text, anything = false) {
  try {
    const found = JSON.parse(text);
    return anything || (found && typeof found === "object" && !Array.isArray(found)) ? found : null;
  } catch {
    return anything ? undefined : null;
  }
}

export async function fulfil(one, token) {
  const asked = (values) => ({ name: one.name, token, ...(values.how === "error" ? { error: values.value } : { value: JSON.parse(values.value || "null") }) });
  const answer = await ask(
    `Fulfil a token of ${one.name}`,
    form(
      [
        h("p", {}, "A method waits for it: ", h("code", {}, token)),
        choice("With", "how", [
          ["value", "a value, as JSON"],
          ["error", "a reason why there is none"],
        ]),
        h("label", { class: "block" }, "Value", h("textarea", { name: "value", value: "true" })),
      ],
      (values) => line(["immortal", "fulfil", one.name, token, ...(values.how === "error" ? [] : [values.value || "null"])], { error: values.how === "error" ? values.value : null }),
      (values) => (values.how === "error" ? "The method gets an exception with these words." : "The method continues with this value. It is logged, and counts once."),
    ),
    { ok: "Fulfil", check: (values) => (values.how === "value" && parsed(values.value || "null", true) === undefined ? "That is not JSON." : null) },
  );
  return Boolean(answer) && attempt(() => call("immortal.fulfil", asked(answer)), "Fulfilled.");
}

// A call that is under way can be cancelled by the idempotency key that it was made with.
export async function cancel(one, method) {
  const asked = (values) => ({ name: one.name, idempotency_key: values.key, ...(values.reason ? { reason: values.reason } : {}) });
  const answer = await ask(
    `Cancel ${method}`,
    form(
      [field("Idempotency key that it was called with", "key", { required: true }), field("Reason", "reason")],
      (values) => line(["immortal", "cancel", one.name, values.key || "KEY"], { reason: values.reason }),
      () => "Cancelled is raised where the method waits. What it has done stays done, unless it undoes it.",
    ),
    { ok: "Cancel it", danger: true },
  );
  return Boolean(answer) && attempt(() => call("immortal.cancel", asked(answer)), `Cancelled ${method}.`);
}

// What two programs do with the same messages, side by side: the command line runs them, where the code is, and writes what is drawn here.
export async function compare(one) {
  const shown = h("div", {});
  async function draw({ target }) {
    try {
      const { steps, not_logged: other, difference } = JSON.parse(await target.files[0].text());
      const did = (each) => [each.results ?? [], each.calls ?? []].flat().map((text) => h("p", {}, text));
      const side = (title, of) => ({ title, wrap: true, cell: (step) => [did(step[of]), h("code", {}, "state" in step[of] ? json(step[of].state) : "")] });
      fill(
        shown,
        [other ? `The first is not the program that ran: ${other}` : null, difference].filter(Boolean).map((text) => h("p", { class: "bad" }, text)),
        table(
          [
            { title: "Index", number: true, cell: (step) => number(step.index) },
            { title: "Call", wrap: true, cell: (step) => [h("code", {}, step.message), step.differs ? " differs" : ""] },
            side("Before", "before"),
            side("After", "after"),
          ],
          steps,
          { label: "Both programs", empty: "Both do the same." },
        ),
      );
    } catch {
      fill(shown, h("p", { class: "bad" }, "That is not what the command writes with --json."));
    }
  }
  await ask(
    `What-if: two programs of ${one.name}`,
    [
      h("p", {}, "Both go through the logged messages, on the machine where this is typed. Nothing that they say leaves it."),
      command(`${line(["immortal", "check", one.name, "NEW.py"], { beside: "OLD.py" })} --json > compared.json`),
      h("label", { class: "block" }, "What it wrote", h("input", { type: "file", accept: ".json", onchange: draw })),
      shown,
    ],
    { ok: "Close", cancel: false },
  );
  return false;
}

// Serve a debugging binding the past. Whether ports were opened.
export async function replay(one, from = null) {
  const answer = await ask(
    `Replay ${one.name} for debugging`,
    form(
      [
        h(
          "p",
          {},
          "The hub opens a pair of ports. A binding that connects to them gets the checkpoint and every message logged after it, as if it were the immortal; what it answers goes nowhere.",
        ),
        choice(
          "From",
          "checkpoint",
          [...one.checkpoints]
            .reverse()
            .map((each) => [each.id, `checkpoint ${each.id}, before index ${number(each.position)}, ${moment(each.time_us)} UTC`]),
          { value: from },
        ),
        field("Before index (empty: all that is logged)", "until", { type: "number", min: 0 }),
        choice("As", "upgrade", [
          ["no", "the same code: find out what happened"],
          ["yes", "upgraded code: find out what would have happened"],
        ]),
      ],
      (values) => line(["immortal", "replay", one.name], { from: values.checkpoint, until: values.until, upgrade: values.upgrade === "yes" }),
    ),
    { ok: "Open the ports" },
  );
  if (!answer) return false;
  return attempt(async () => {
    const ports = await call("immortal.replay", {
      name: one.name,
      checkpoint: Number(answer.checkpoint),
      upgrade: answer.upgrade === "yes",
      ...(answer.until ? { until: Number(answer.until) } : {}),
    });
    const told = `run(YourImmortal, name="${one.name}", receive="${ports.receive}", send="${ports.send}")`;
    await ask(
      "The ports are open",
      [
        facts([
          ["Receive", h("code", {}, ports.receive)],
          ["Send", h("code", {}, ports.send)],
          ["Replays", `${count(ports.next - ports.first, "message")} after checkpoint ${ports.checkpoint}`],
        ]),
        h("p", {}, "Connect the binding, for instance in a debugger:"),
        h("pre", {}, told),
        h("button", { type: "button", onclick: () => copy(told, "the call") }, "Copy"),
      ],
      { ok: "Close", cancel: false },
    );
  });
}

// What somebody should look at, in groups, each a way to where it can be seen and mended.

import { call } from "./api.js";
import { ask, attempt, choice, curl, field, form, menu } from "./dialogs.js";
import { count, fill, h, hubMs, moment, place, seconds } from "./dom.js";

const SHOWN = 4;
const GROUPS = {
  unready: ["The hub is not ready", "bad"],
  disk: ["The disk is nearly full", "bad"],
  pipeline: ["Pipelines need attention", "bad"],
  cursor: ["Consumers have stopped", "warn"],
  note: ["Worth knowing", "warn"],
  warning: ["Open to others", "warn"],
};

export const loud = (sample) => (sample?.alarms ?? []).filter((one) => !one.muted);

// The element, and update(sample).
export function alarmsPanel(view) {
  const element = h("section", { class: "alarms", "aria-label": "Alarms", "aria-live": "polite" });
  const open = new Set();
  let drawn = null;

  function update(sample) {
    const now = JSON.stringify([sample?.alarms, [...open], Math.floor(Date.now() / 10000)]);
    if (!sample || now === drawn) return;
    drawn = now;
    const held = element.contains(document.activeElement) ? document.activeElement : null;
    const key = held?.closest("[data-key]")?.dataset.key;
    const groups = new Map();
    for (const one of loud(sample)) groups.set(one.kind, [...(groups.get(one.kind) ?? []), one]);
    const muted = sample.alarms.filter((one) => one.muted);
    fill(
      element,
      [...groups].map(([kind, alarms]) => group(kind, alarms)),
      groups.size ? null : h("p", { class: "well" }, "All is well."),
      muted.length ? silence(muted) : null,
    );
    if (key) element.querySelector(`[data-key="${CSS.escape(key)}"] ${held.matches("a") ? "a" : "button"}`)?.focus();
  }

  function more(key) {
    open[open.has(key) ? "delete" : "add"](key);
    document.activeElement?.blur();
    drawn = null;
    update(view.samples().at(-1));
  }

  function group(kind, alarms) {
    const [title, severity] = GROUPS[kind];
    const shown = open.has(kind) ? alarms : alarms.slice(0, SHOWN);
    return h(
      "div",
      { class: `alarm ${severity}`, "data-kind": kind },
      h("h2", {}, title, alarms.length > 1 ? h("span", { class: "count" }, alarms.length) : null),
      h(
        "ul",
        {},
        shown.map((one) => line(one)),
      ),
      alarms.length > SHOWN
        ? h(
            "button",
            { type: "button", class: "quiet-button", onclick: () => more(kind) },
            open.has(kind) ? "Show fewer" : `Show all ${alarms.length}`,
          )
        : null,
    );
  }

  function silence(muted) {
    const shown = open.has("muted");
    return h(
      "div",
      { class: "muted" },
      h(
        "button",
        { type: "button", class: "quiet-button", "aria-expanded": String(shown), onclick: () => more("muted") },
        count(muted.length, "muted alarm"),
      ),
      shown
        ? h(
            "ul",
            {},
            muted.map((one) => line(one)),
          )
        : null,
    );
  }

  function line(one) {
    const words = one.page?.length ? h("a", { href: place(one.page) }, one.title) : h("b", {}, one.title);
    return h(
      "li",
      { "data-key": one.key },
      h(
        "span",
        {},
        words,
        one.detail ? `: ${one.detail}` : "",
        one.since_us ? h("span", { class: "quiet" }, ` Not moved for ${lasting(one.since_us)}.`) : null,
        one.muted
          ? h(
              "span",
              { class: "quiet" },
              ` Muted by ${one.muted.by} until ${moment(one.muted.until_us).slice(0, 16)} UTC${one.muted.note ? `: ${one.muted.note}` : "."}`,
            )
          : null,
      ),
      menu(`What to do about: ${one.title}`, [
        { title: "What changed before this", on: () => (location.hash = place(["events"], { before: one.since_us ?? hubMs() * 1000 })) },
        one.muted ? { title: "Unmute", on: () => unmute(one) } : { title: "Mute…", on: () => mute(one) },
      ]),
    );
  }

  async function mute(one) {
    const asked = (values) => ({ alarm: one.key, for_s: Number(values.for), note: values.note });
    const answer = await ask(
      "Mute this alarm",
      form(
        [
          h("p", {}, one.title, ". Everyone who opens the console sees who muted it, until when and why."),
          choice("For", "for", [
            ["3600", "an hour"],
            ["86400", "a day"],
            ["604800", "a week"],
          ]),
          field("Why", "note", { maxlength: 500, placeholder: "consumer is being replaced" }),
        ],
        (values) => curl("alarm.mute", asked(values)),
      ),
      { ok: "Mute" },
    );
    if (!answer) return;
    await attempt(
      () => call("alarm.mute", asked(answer)),
      "Muted. It comes back when the time is over.",
    );
  }

  const unmute = (one) => attempt(() => call("alarm.unmute", { alarm: one.key }), "Unmuted.");
  return { element, update };
}

const lasting = (micros) => seconds(Math.max(1, Math.round(hubMs() / 1000 - Number(micros) / 1e6)));

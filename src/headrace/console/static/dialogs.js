// Questions, refusals and short notes.

import { fill, h } from "./dom.js";

// A dialog with fields; resolves to their values, or null when it is closed. `check(values)` may return what is wrong.
export function ask(title, body, { ok = "OK", danger = false, cancel = true, check = null } = {}) {
  return new Promise((resolve) => {
    const wrong = h("p", { class: "bad", role: "alert" });
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, title),
      body,
      wrong,
      h(
        "div",
        { class: "dialog-buttons" },
        cancel ? h("button", { type: "button", onclick: () => dialog.close() }, "Cancel") : null,
        h("button", { type: "submit", class: danger ? "main danger" : "main" }, ok),
      ),
    );
    const dialog = h("dialog", { "aria-label": title }, form);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const values = Object.fromEntries(new FormData(form));
      wrong.textContent = (await check?.(values)) ?? "";
      if (wrong.textContent) return;
      resolve(values);
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      resolve(null);
      dialog.remove();
    });
    document.getElementById("dialogs").append(dialog);
    dialog.showModal();
  });
}

// What may be done with something, behind one button: { title, on, danger }, or a function that tells these.
export function menu(label, items, shown = "⋯") {
  const list = h("div", { class: "menu", role: "menu", popover: "auto", "aria-label": label });
  const button = h(
    "button",
    { type: "button", class: shown === "⋯" ? "menu-button" : null, "aria-haspopup": "menu", "aria-label": label, title: label, onclick: open },
    shown,
  );
  function open() {
    fill(
      list,
      (typeof items === "function" ? items() : items)
        .filter(Boolean)
        .map((item) =>
          h(
            "button",
            { type: "button", role: "menuitem", class: item.danger ? "danger" : null, onclick: () => chosen(item) },
            item.title,
          ),
        ),
    );
    (button.closest("main") ?? document.getElementById("dialogs")).append(list); // what is on a page is within a landmark
    list.showPopover();
    const place = button.getBoundingClientRect();
    list.style.top = `${Math.min(place.bottom + 4, innerHeight - list.offsetHeight - 8)}px`;
    list.style.left = `${Math.max(8, place.right - list.offsetWidth)}px`;
    list.firstChild?.focus();
  }
  function chosen(item) {
    list.hidePopover();
    item.on();
  }
  list.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    if (list.contains(document.activeElement)) button.focus();
    list.remove();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (!step) return;
    event.preventDefault();
    document.activeElement[step]?.focus();
  });
  return button;
}

// The command that does the same, to be copied.
export const command = (text, scrolls = false) =>
  h(
    "div",
    { class: "command" },
    h("code", { tabindex: scrolls ? 0 : null }, text),
    h("button", { type: "button", class: "quiet-button", onclick: () => copy(text, "the command") }, "Copy"),
  );

// A verb that the command line has no word for.
export const curl = (verb, request) =>
  `curl --fail-with-body ${location.origin}/api/v1/${verb} --json ${quoted(JSON.stringify(request))}`;

// As a shell reads it.
export const quoted = (text) => (/^[\w.,:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// The same on the command line. An option without a value is left out, `true` is a flag, a list is said once for each.
export function line(words, options = {}) {
  const given = Object.entries(options).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const said = given.flatMap(([name, value]) => (value === true ? [`--${name}`] : [value].flat().map((one) => `--${name} ${quoted(String(one))}`)));
  return ["headrace", ...words.map((word) => quoted(String(word))), ...said].join(" ");
}

// Fields, what will happen and the command that does the same, both updated with every key. `preview(values)` returns words,
// elements or a promise of these.
export function form(fields, tell, preview = null) {
  const shown = preview ? h("div", { role: "status", "data-preview": "" }) : null;
  const told = h("div", {});
  const body = h("div", {}, fields, shown, told);
  let asked = 0;
  async function say() {
    asked += 1;
    const mine = asked;
    const said = [...body.querySelectorAll("[name]")].filter((one) => !["radio", "checkbox"].includes(one.type) || one.checked);
    const values = Object.fromEntries(said.map((one) => [one.name, one.value]));
    fill(told, command(tell(values)));
    if (!preview) return;
    let words;
    try {
      words = await preview(values);
    } catch (error) {
      words = h("p", { class: "bad" }, error.message);
    }
    if (mine === asked) fill(shown, typeof words === "string" ? h("p", {}, words) : words);
  }
  body.addEventListener("input", say);
  say();
  return body;
}

export const NOT_HEX = "That is not hex: two digits for each byte.";

export const field = (title, name, attributes = {}) =>
  h("label", { class: "block" }, title, h("input", { name, autocomplete: "off", ...attributes }));

export const choice = (title, name, options, attributes = {}) =>
  h(
    "label",
    { class: "block" },
    title,
    h(
      "select",
      { name, ...attributes },
      options.map(([value, text]) => h("option", { value }, text)),
    ),
  );

// The same with all of them in view: one click. The first is chosen.
export const ways = (title, name, options) =>
  h(
    "fieldset",
    {},
    h("legend", {}, title),
    options.map(([value, text], at) => h("label", {}, h("input", { type: "radio", name, value, checked: at === 0 }), " ", text)),
  );

export function report(error) {
  return ask("That did not work", h("p", {}, String(error.message ?? error)), { ok: "Close", cancel: false });
}

// Do something and say what went wrong, if something does; whether all went well.
export async function attempt(work, done = null) {
  try {
    await work();
  } catch (error) {
    await report(error);
    return false;
  }
  if (done) note(done);
  return true;
}

let gone = null;
export function note(text) {
  const place = document.getElementById("note");
  place.textContent = text;
  clearTimeout(gone);
  gone = setTimeout(() => {
    place.textContent = "";
  }, 4000);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // not allowed, or not a secure page: the old way
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" }, text);
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) {
      note("This browser does not let the page copy.");
      return;
    }
  }
  note(`Copied ${what}.`);
}

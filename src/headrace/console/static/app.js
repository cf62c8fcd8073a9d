// Routes, sign-in, theme and the live connection that every page may listen to.

import { Live, isSignedIn, onUnauthenticated, signIn, signOut } from "./api.js";
import { ask, field } from "./dialogs.js";
import { ago, count, empty, fill, h, head, hubMs, moment, number, place } from "./dom.js";
import { loud } from "./alarms.js";
import { clusterPage } from "./cluster.js";
import { cursorsPage } from "./cursors.js";
import { deadPage } from "./dead.js";
import { eventsPage } from "./events.js";
import { executionsPage } from "./executions.js";
import { immortalsPage } from "./immortals.js";
import { mapPage } from "./map.js";
import { openPalette } from "./palette.js";
import { overviewPage } from "./overview.js";
import { pipelinesPage } from "./pipelines.js";
import { queryPage } from "./query.js";
import { sessionsPage } from "./sessions.js";
import { settingsPage } from "./settings.js";
import { streamPage } from "./stream.js";
import { streamsPage } from "./streams.js";
import { tablePage, tablesPage } from "./tables.js";
import { usersPage } from "./users.js";

// Path, title, page, and the heading that it is listed under.
const PAGES = [
  ["", "Map", mapPage, "Flow"],
  ["streams", "Streams", streamsPage, "Flow"],
  ["tables", "Tables", tablesPage, "Flow"],
  ["query", "Query", queryPage, "Flow"],
  ["cursors", "Cursors", cursorsPage, "Flow"],
  ["pipelines", "Pipelines", pipelinesPage, "Flow"],
  ["dead", "Dead letters", deadPage, "Flow"],
  ["sessions", "Sessions", sessionsPage, "Peers"],
  ["immortals", "Immortals", immortalsPage, "Peers"],
  ["executions", "Executions", executionsPage, "Peers"],
  ["overview", "Overview", overviewPage, "Hub"],
  ["events", "History", eventsPage, "Hub"],
  ["cluster", "Cluster", clusterPage, "Hub"],
  ["users", "Users", usersPage, "Hub"],
  ["settings", "Settings", settingsPage, "Hub"],
];
const INSIDE = { stream: ["streams", "Stream", streamPage], table: ["tables", "Table", tablePage] };
const HISTORY = 300;
const SILENT_MS = 6000;

const main = document.getElementById("main");
const state = { samples: [], view: null, heardMs: null, lost: null };
let live = null;

// A page is a function (root, parts, view). `view` is this look at it:
//   samples()      the last minutes of the hub
//   every(work)    do it now and with every pulse, never twice at once; what goes wrong is said above the page
//   now()          do that now, or once more after what is under way
//   onPulse(work)  be given the samples with every pulse
//   follow(stream, partition, next, work)  hear of new records
//   onLeave(work)  when another page is shown
//   shown          what the address says behind the path: filters, a record
//   keep(shown)    say it there, so that the address leads back here
class View {
  constructor(root, shown) {
    this.root = root;
    this.shown = shown;
    this.trouble = h("div", { class: "alarm bad", role: "alert", hidden: true });
    this.leaving = [];
    this.pulses = [];
    this.moved = null;
    this.running = null;
    this.again = false;
    this.current = true;
  }

  samples() {
    return state.samples;
  }

  async every(work) {
    this.work = work;
    this.pulses.push(() => {
      if (!document.hidden && !this.running) this.now();
    });
    await work();
  }

  now() {
    if (this.running) {
      this.again = true;
      return this.running;
    }
    this.running = this.look();
    return this.running;
  }

  async look() {
    do {
      this.again = false;
      try {
        await this.work();
        this.trouble.hidden = true;
      } catch (error) {
        this.say(error);
      }
    } while (this.again && this.current);
    this.running = null;
  }

  onPulse(work) {
    this.pulses.push(() => work(state.samples));
    work(state.samples);
  }

  follow(stream, partition, next, work) {
    this.moved = work;
    live.show(stream, partition, next);
  }

  keep(shown) {
    for (const [name, value] of Object.entries(shown)) {
      if (value === null || value === undefined || value === "") delete this.shown[name];
      else this.shown[name] = String(value);
    }
    if (!this.current) return;
    const [path] = location.hash.split("?");
    const query = new URLSearchParams(this.shown).toString();
    history.replaceState(null, "", query ? `${path || "#/"}?${query}` : path || "#/");
  }

  // The same page shows something else: the address says so.
  at(parts) {
    history.replaceState(null, "", place(parts, this.shown));
  }

  onLeave(work) {
    this.leaving.push(work);
  }

  // That the hub is away is said above every page, once. A page that one may not see says nothing else: what an empty
  // list says would not be true.
  say(error) {
    this.failed = true;
    if (error.code === "forbidden") {
      this.pulses = [];
      this.trouble.hidden = true;
      fill(this.root, head(this.root.dataset.page), h("div", { class: "card" }, empty("You do not have access to this page.", `${error.message}${/'read'$/.test(error.message) && !/ on stream /.test(error.message) ? " on every stream" : ""}.`, "Ask whoever runs the hub.")));
      return;
    }
    this.trouble.textContent = error.message;
    this.trouble.hidden = error.code === "away" || error.code === "unauthenticated";
  }

  leave() {
    this.current = false;
    if (this.moved) live.show(null);
    for (const work of this.leaving) work();
  }
}

async function show() {
  const [path, query = ""] = location.hash.replace(/^#\//, "").split("?");
  const parts = path.split("/").map(decoded);
  state.view?.leave();
  const page = INSIDE[parts[0]] ?? PAGES.find(([name]) => name === parts[0]) ?? PAGES[0];
  document.title = `${page[1]} · Headrace`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.path === page[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  openNav(false);
  const root = h("div", { "data-page": page[1] });
  const view = new View(root, Object.fromEntries(new URLSearchParams(query)));
  state.view = view;
  fill(main, view.trouble, root);
  try {
    await page[2](root, parts.slice(1), view);
    if (view.current && parts[1]) document.title = `${parts[1]} · ${page[1]} · Headrace`;
  } catch (error) {
    view.say(error);
  }
}

// An address that somebody has typed may have a % in it.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function heard(name, data) {
  const pulse = document.getElementById("pulse");
  if (name === "lost") {
    lose("away");
  } else if (name === "refused") {
    lose("refused", data.message);
  } else if (name === "pulse") {
    state.heardMs = Date.now();
    found();
    const last = state.samples.at(-1)?.time_ms ?? 0;
    state.samples = [...state.samples, ...data.filter((sample) => sample.time_ms > last)].slice(-HISTORY);
    pulse.className = "pulse on";
    const rate = state.samples.at(-1)?.records_in ?? null; // not for whoever may read some streams only
    pulse.classList.toggle("rate", rate !== null);
    fill(pulse, rate === null ? "connected" : [number(rate), h("span", {}, " records/s in")]);
    ring();
    for (const work of state.view?.pulses ?? []) work();
  } else if (name === "moved") {
    state.heardMs = Date.now();
    state.view?.moved?.(data);
  }
}

function ring() {
  const bell = document.getElementById("bell");
  const alarms = loud(state.samples.at(-1)).length;
  bell.hidden = !alarms;
  bell.textContent = count(alarms, "alarm");
}

// Nothing on the page is true any more: all of it says so, until the hub is heard again.
function lose(why, words = "") {
  const pulse = document.getElementById("pulse");
  pulse.className = "pulse off";
  pulse.textContent = why === "away" ? "not connected" : "no access";
  document.getElementById("bell").hidden = true;
  state.lost = { why, words };
  document.body.classList.add("lost");
  document.body.classList.toggle("refused", why === "refused");
  sayLost();
}

function sayLost() {
  if (!state.lost) return;
  const banner = document.getElementById("lost");
  const { why, words } = state.lost;
  const parts =
    why === "refused"
      ? [
          h("b", {}, "You do not have access to this hub."),
          `${words[0].toUpperCase()}${words.slice(1)}. Ask whoever runs this hub for it.`,
          h("button", { type: "button", onclick: leaveHub }, "Sign in as someone else"),
        ]
      : [
          h("b", {}, "The hub does not answer."),
          state.heardMs === null
            ? "Nothing has been heard from it."
            : `What you see is from ${moment((hubMs() - Date.now() + state.heardMs) * 1000).slice(11, 19)} UTC, ${ago((Date.now() - state.heardMs) / 1000)}.`,
          "This page tries again every second.",
        ];
  const said = parts.map((part) => part.textContent ?? part).join(" ");
  if (banner.textContent !== said) fill(banner, parts.map((part) => [part, " "]));
  banner.hidden = asking;
}

function found() {
  if (!state.lost) return;
  state.lost = null;
  document.body.classList.remove("lost", "refused");
  document.getElementById("lost").hidden = true;
  if (state.view?.failed) show();
  else if (state.view?.work) state.view.now();
}

function leaveHub() {
  signOut();
  location.reload();
}

let asking = false;
async function askWho() {
  if (asking) return;
  asking = true;
  document.getElementById("lost").hidden = true;
  const wrong = isSignedIn();
  signOut();
  const answer = await ask(
    "Sign in",
    h(
      "div",
      {},
      wrong
        ? h("p", { class: "bad", role: "alert" }, "Wrong user name or password.")
        : h("p", {}, "This hub requires you to sign in."),
      field("User", "user", { autocomplete: "username", required: true }),
      field("Password or token", "secret", { type: "password", autocomplete: "current-password" }),
    ),
    { ok: "Sign in", cancel: false },
  );
  asking = false;
  if (answer) signIn(answer.user, answer.secret);
  document.getElementById("leave").hidden = !isSignedIn();
  if (!answer) return;
  live.wake();
  show();
}

function openNav(open) {
  document.body.classList.toggle("nav-open", open);
  document.getElementById("pages").setAttribute("aria-expanded", String(open));
}

function chosenTheme() {
  const wanted = localStorage.getItem("headrace.theme");
  return wanted ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function start() {
  document.documentElement.dataset.theme = chosenTheme();
  document.getElementById("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("headrace.theme", other);
    document.documentElement.dataset.theme = other;
  });
  const leave = document.getElementById("leave");
  leave.hidden = !isSignedIn();
  leave.addEventListener("click", leaveHub);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document.getElementById("pages").addEventListener("click", () => openNav(!document.body.classList.contains("nav-open")));
  fill(document.getElementById("nav"), [...new Set(PAGES.map((page) => page[3]))].map(navGroup));
  const find = () => openPalette(PAGES.map(([path, title]) => [path, title]));
  document.getElementById("find").addEventListener("click", find);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select, dialog, [contenteditable]")) return;
    event.preventDefault();
    find();
  });
  onUnauthenticated(askWho);
  addEventListener("hashchange", () => {
    if (!asking) for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // it belongs to the page that was left
    show();
    main.focus();
  });
  live = new Live(heard);
  setInterval(() => {
    if (!state.lost && state.heardMs !== null && Date.now() - state.heardMs > SILENT_MS && !document.hidden) lose("away");
    sayLost();
  }, 1000);
  show();
}

const navGroup = (title) =>
  h(
    "div",
    { class: "nav-group", role: "group", "aria-label": title },
    h("span", { class: "nav-title", "aria-hidden": "true" }, title),
    PAGES.filter((page) => page[3] === title).map(([path, name]) => h("a", { href: `#/${path}`, "data-path": path }, name)),
  );

start();

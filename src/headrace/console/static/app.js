// Routes, sign-in, theme and the live connection that every page may listen to.

import { Live, isSignedIn, onUnauthenticated, signIn, signOut } from "./api.js";
import { ask, field } from "./dialogs.js";
import { fill, h, number } from "./dom.js";
import { clusterPage } from "./cluster.js";
import { cursorsPage } from "./cursors.js";
import { deadPage } from "./dead.js";
import { executionsPage } from "./executions.js";
import { immortalsPage } from "./immortals.js";
import { overviewPage } from "./overview.js";
import { pipelinesPage } from "./pipelines.js";
import { sessionsPage } from "./sessions.js";
import { settingsPage } from "./settings.js";
import { streamPage } from "./stream.js";
import { streamsPage } from "./streams.js";

const PAGES = [
  ["", "Overview", overviewPage],
  ["streams", "Streams", streamsPage],
  ["cursors", "Cursors", cursorsPage],
  ["dead", "Dead letters", deadPage],
  ["sessions", "Sessions", sessionsPage],
  ["immortals", "Immortals", immortalsPage],
  ["executions", "Executions", executionsPage],
  ["pipelines", "Pipelines", pipelinesPage],
  ["cluster", "Cluster", clusterPage],
  ["settings", "Settings", settingsPage],
];
const HISTORY = 300;

const main = document.getElementById("main");
const state = { samples: [], view: null };
let live = null;

// A page is a function (root, parts, view). `view` is this look at it:
//   samples()      the last minutes of the hub
//   every(work)    do it now and with every pulse, never twice at once; what goes wrong is said above the page
//   now()          do that now, or once more after what is under way
//   onPulse(work)  be given the samples with every pulse
//   follow(stream, partition, next, work)  hear of new records
//   onLeave(work)  when another page is shown
class View {
  constructor(root) {
    this.root = root;
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

  onLeave(work) {
    this.leaving.push(work);
  }

  say(error) {
    this.trouble.textContent = error.message;
    this.trouble.hidden = false;
  }

  leave() {
    this.current = false;
    if (this.moved) live.show(null);
    for (const work of this.leaving) work();
  }
}

async function show() {
  const parts = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  state.view?.leave();
  const page =
    parts[0] === "stream" ? ["streams", "Stream", streamPage] : (PAGES.find(([path]) => path === parts[0]) ?? PAGES[0]);
  document.title = `${page[1]} · Headrace`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.path === page[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = h("div", { "data-page": page[1] });
  const view = new View(root);
  state.view = view;
  fill(main, view.trouble, root);
  try {
    await page[2](root, parts.slice(1), view);
  } catch (error) {
    view.say(error);
  }
}

function heard(name, data) {
  const shown = document.getElementById("pulse");
  if (name === "lost") {
    shown.className = "pulse off";
    shown.textContent = "not connected";
  } else if (name === "pulse") {
    const last = state.samples.at(-1)?.time_ms ?? 0;
    state.samples = [...state.samples, ...data.filter((sample) => sample.time_ms > last)].slice(-HISTORY);
    shown.className = "pulse on";
    shown.textContent = `${number(state.samples.at(-1)?.records_in ?? 0)} records/s in`;
    for (const work of state.view?.pulses ?? []) work();
  } else if (name === "moved") {
    state.view?.moved?.(data);
  }
}

let asking = false;
async function askWho() {
  if (asking) return;
  asking = true;
  const wrong = isSignedIn();
  signOut();
  const answer = await ask(
    "Sign in",
    h(
      "div",
      {},
      wrong
        ? h("p", { class: "bad", role: "alert" }, "The name or the password is wrong.")
        : h("p", {}, "This hub wants to know who you are."),
      field("User", "user", { autocomplete: "username", required: true }),
      field("Password or token", "secret", { type: "password", autocomplete: "current-password" }),
    ),
    { ok: "Sign in", cancel: false },
  );
  asking = false;
  if (answer) signIn(answer.user, answer.secret);
  document.getElementById("leave").hidden = !isSignedIn();
  if (answer) show();
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
  leave.addEventListener("click", () => {
    signOut();
    location.reload();
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  fill(
    document.getElementById("nav"),
    PAGES.map(([path, title]) => h("a", { href: `#/${path}`, "data-path": path }, title)),
  );
  onUnauthenticated(askWho);
  addEventListener("hashchange", () => {
    show();
    main.focus();
  });
  live = new Live(heard);
  show();
}

start();

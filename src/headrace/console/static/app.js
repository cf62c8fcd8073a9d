// Routes, sign-in, theme and the pulse that every page may listen to.

import { isSignedIn, onUnauthenticated, signIn, signOut, watchPulse } from "./api.js";
import { ask, field, fill, h, number } from "./dom.js";
import { cursorsPage } from "./cursors.js";
import { deadPage } from "./dead.js";
import { executionsPage, immortalsPage } from "./services.js";
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
  ["sessions", "Sessions", sessionsPage],
  ["immortals", "Immortals", immortalsPage],
  ["executions", "Executions", executionsPage],
  ["pipelines", "Pipelines", pipelinesPage],
  ["dead", "Dead letters", deadPage],
  ["settings", "Settings", settingsPage],
];
const HISTORY = 300;

const main = document.getElementById("main");
const state = { samples: [], listener: null };
let leave = null;

// A page is a function (root, parts, context) that may return a function to be called when it is left.
async function show() {
  const parts = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  leave?.();
  leave = null;
  state.listener = null;
  const page = parts[0] === "stream" ? ["streams", "Stream", streamPage] : PAGES.find(([path]) => path === parts[0]) ?? PAGES[0];
  document.title = `${page[1]} · Headrace`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.path === page[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = h("div", { "data-page": page[1] });
  fill(main, root);
  const context = { samples: () => state.samples, onPulse: (listener) => { state.listener = listener; } };
  try {
    const left = await page[2](root, parts.slice(1), context);
    if (main.firstChild === root) leave = left ?? null;
    else left?.();
  } catch (error) {
    fill(root, h("div", { class: "alarm bad", role: "alert" }, error.message));
  }
}

function pulse(samples) {
  const shown = document.getElementById("pulse");
  if (samples === null) {
    shown.className = "pulse off";
    shown.textContent = "not connected";
    return;
  }
  state.samples = [...state.samples, ...samples].slice(-HISTORY);
  shown.className = "pulse on";
  shown.textContent = `${number(state.samples.at(-1)?.records_in ?? 0)} records/s in`;
  state.listener?.(state.samples);
}

let asking = false;
async function askWho() {
  if (asking) return;
  asking = true;
  const wrong = isSignedIn();
  signOut();
  const answer = await ask("Sign in", h("div", {},
    wrong ? h("p", { class: "bad", role: "alert" }, "The name or the password is wrong.") : h("p", {}, "This hub wants to know who you are."),
    field("User", "user", { autocomplete: "username", required: true }),
    field("Password or token", "secret", { type: "password", autocomplete: "current-password" })), { ok: "Sign in" });
  asking = false;
  if (answer) { signIn(answer.user, answer.secret); show(); }
}

function theme(name) {
  document.documentElement.dataset.theme = name;
}

function start() {
  const wanted = localStorage.getItem("headrace.theme");
  theme(wanted ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("headrace.theme", other);
    theme(other);
  });
  fill(document.getElementById("nav"), PAGES.map(([path, title]) => h("a", { href: `#/${path}`, "data-path": path }, title)));
  onUnauthenticated(askWho);
  addEventListener("hashchange", () => { show(); main.focus(); });
  show();
  watchPulse(pulse);
}

start();

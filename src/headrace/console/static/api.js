// The hub's admin verbs, and the one live connection.

import { setClock } from "./dom.js";

let authorization = sessionStorage.getItem("headrace.authorization");
let askWho = null;

export class ApiError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export function onUnauthenticated(handler) {
  askWho = handler;
}

export function signIn(user, secret) {
  const utf8 = new TextEncoder().encode(`${user}:${secret}`);
  authorization = `Basic ${btoa(String.fromCharCode(...utf8))}`;
  sessionStorage.setItem("headrace.authorization", authorization);
}

export function signOut() {
  authorization = null;
  sessionStorage.removeItem("headrace.authorization");
}

export const isSignedIn = () => authorization !== null;

const headers = () => (authorization ? { Authorization: authorization } : {});

export async function call(verb, request = {}) {
  let response;
  const askedMs = Date.now();
  try {
    response = await fetch(`/api/v1/${verb}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(request),
    });
  } catch {
    throw new ApiError("away", "The hub does not answer.");
  }
  setClock(response.headers.get("date"), askedMs);
  if (response.ok) return JSON.parse(await response.text(), exactIntegers);
  throw await refusal(response);
}

async function refusal(response) {
  let error = { code: "http", message: `${response.status} ${response.statusText}` };
  try {
    error = JSON.parse(await response.text()).error;
  } catch {
    /* not ours */
  }
  if (response.status === 401) askWho?.();
  return new ApiError(error.code, error.message);
}

// The same, or `otherwise` where this hub does not have the verb.
export async function callIfThere(verb, request, otherwise) {
  try {
    return await call(verb, request);
  } catch (error) {
    if (error.code !== "unknown-verb") throw error;
    return otherwise;
  }
}

// Ids use all 64 bits, more than a JavaScript number holds: keep the digits of those.
function exactIntegers(key, value, context) {
  if (typeof value === "number" && !Number.isSafeInteger(value) && Number.isInteger(value) && context?.source)
    return BigInt(context.source);
  return value;
}

// Server-sent events, read by fetch since EventSource cannot say who asks. One connection, opened again when it is lost
// or when the page shows another stream.
export class Live {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.shown = null;
    this.opened = 0;
    this.abort = new AbortController();
    this.run();
  }

  // Hear of new records in a stream partition from an index on; null for none.
  show(stream, partition, next) {
    const shown = stream === null ? null : { stream, partition, next };
    if (shown === null && this.shown === null) return;
    this.shown = shown;
    this.abort.abort();
  }

  async run() {
    for (;;) {
      this.abort = new AbortController();
      const shown = this.shown;
      let refused = null;
      try {
        const query = shown ? `?${new URLSearchParams(shown)}` : "";
        const response = await fetch(`/console/live${query}`, { headers: headers(), signal: this.abort.signal });
        if (response.ok) await this.read(response.body);
        else refused = await refusal(response);
      } catch {
        /* the hub is away, or another stream is shown */
      }
      if (this.abort.signal.aborted) continue;
      if (refused && shown) this.shown = null;
      else if (refused) this.onEvent("refused", refused);
      else this.onEvent("lost", null);
      await Promise.race([pause(1000), this.woken()]);
    }
  }

  // Try again now: somebody has signed in.
  wake() {
    this.wakes?.();
  }

  woken() {
    return new Promise((resolve) => {
      this.wakes = resolve;
    });
  }

  async read(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const one of events) {
        const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(one) ?? [];
        if (name) this.onEvent(name, JSON.parse(data, exactIntegers));
      }
    }
  }
}

const pause = (milliseconds) =>
  new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
  });

// The hub's admin verbs, and its pulse.

let authorization = sessionStorage.getItem("headrace.authorization");
let askWho = null;

export class ApiError extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

export function onUnauthenticated(handler) { askWho = handler; }

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
  const response = await fetch(`/api/v1/${verb}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(request),
  });
  const body = await response.text();
  if (response.ok) return JSON.parse(body, exactIntegers);
  let error = { code: "http", message: `${response.status} ${response.statusText}` };
  try { error = JSON.parse(body).error; } catch { /* not ours */ }
  if (response.status === 401) askWho?.();
  throw new ApiError(error.code, error.message);
}

// Ids use all 64 bits, more than a JavaScript number holds: keep the digits of those.
function exactIntegers(key, value, context) {
  if (typeof value === "number" && !Number.isSafeInteger(value) && Number.isInteger(value) && context?.source) return BigInt(context.source);
  return value;
}

// Calls back with arrays of samples, and with null whenever the connection is lost; tries again by itself.
export async function watchPulse(onSamples) {
  for (;;) {
    try {
      const response = await fetch("/console/live", { headers: headers() });
      if (response.status === 401) { askWho?.(); onSamples(null); await pause(2000); continue; }
      if (!response.ok) throw new Error(response.statusText);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) onSamples(JSON.parse(line));
      }
    } catch { /* the hub is away */ }
    onSamples(null);
    await pause(1000);
  }
}

const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

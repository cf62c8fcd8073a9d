// Who is connected, in which state, and how the last ones ended.

import { call } from "./api.js";
import { fill, h, moment, pill, table } from "./dom.js";

export async function sessionsPage(root) {
  const ended = h("input", { type: "checkbox", onchange: () => refresh() });
  const body = h("div", { class: "card" });
  fill(root, h("h1", {}, "Sessions"), h("div", { class: "bar" }, h("label", {}, ended, "Show the ones that ended")), body);

  async function refresh() {
    const rows = await call("session.list", { ended: ended.checked });
    fill(body, table([
      { title: "Protocol", cell: (row) => pill(row.protocol) },
      { title: "Peer", cell: (row) => h("code", {}, row.peer) },
      { title: "Since (UTC)", cell: (row) => moment(row.opened_us) },
      ended.checked ? { title: "Ended", cell: (row) => moment(row.closed_us) } : null,
      ended.checked ? { title: "Why", wrap: true, cell: (row) => row.reason ?? "" } : null,
      { title: "State", cell: (row) => String(row.details.state ?? "") },
      { title: "Details", wrap: true, cell: (row) => Object.entries(row.details).filter(([name]) => name !== "state").map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ") },
    ].filter(Boolean), rows, { label: "Sessions", empty: "Nobody is connected." }));
  }
  await refresh();
  const timer = setInterval(() => refresh().catch(() => {}), 2000);
  return () => clearInterval(timer);
}

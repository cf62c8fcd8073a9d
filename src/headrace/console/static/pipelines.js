// The Spark pipelines that this hub knows: how they do, and start, stop, reset.

import { call } from "./api.js";
import { LineChart } from "./charts.js";
import { ask, attempt, choice, field } from "./dialogs.js";
import { bytes, count, empty, facts, fill, h, head, number, pill, refill, seconds, streamLink } from "./dom.js";
import { table } from "./table.js";

const kinds = { running: "good", failed: "bad", lost: "bad", starting: "warn", restarting: "warn" };
const ALIVE = ["starting", "running", "restarting"];

const CHARTS = [
  ["Rows", "rows_per_s", (value) => `${number(value)} rows/s`],
  ["Batch time", "batch_ms", (value) => seconds(value / 1000)],
  ["Behind", "lag", (value) => count(value, "record")],
  ["State", "state_bytes", bytes],
];

export async function pipelinesPage(root, parts, view) {
  const body = h("div", {});
  const cards = new Map();
  const none = h(
    "div",
    { class: "card" },
    empty(
      "No pipelines.",
      "Create one here, with headrace pipeline create, or in the hub's settings file; one that runs elsewhere shows up by itself.",
    ),
  );
  fill(
    root,
    head(
      "Pipelines",
      "Spark reads streams, and writes results to streams or files, each record exactly once.",
      h("button", { type: "button", class: "main", onclick: create }, "Create a pipeline"),
    ),
    body,
  );

  async function refresh() {
    const rows = await call("console.pipelines");
    for (const name of cards.keys()) {
      if (!rows.some((row) => row.status.name === name)) {
        cards.get(name).element.remove();
        cards.delete(name);
      }
    }
    for (const row of rows) {
      if (!cards.has(row.status.name)) cards.set(row.status.name, card(row.status.name));
      const one = cards.get(row.status.name);
      one.update(row);
      if (!one.element.isConnected) {
        body.append(one.element);
        if (row.status.name === parts[0]) one.element.scrollIntoView();
      }
    }
    if (rows.length) none.remove();
    else body.append(none);
  }

  function card(name) {
    const badge = h("span", {});
    const charts = CHARTS.map(([title, key, format]) => ({
      key,
      format,
      figure: h("div", { class: "figure small" }),
      chart: new LineChart(`${title} of ${name}`, format),
      title,
    }));
    const about = h("div", {});
    const failure = h("div", { class: "alarm bad", hidden: true });
    const start = h(
      "button",
      {
        type: "button",
        class: "main",
        onclick: () => act("pipeline.start", name, `Started ${name}; Spark needs some seconds.`),
      },
      "Start",
    );
    const stop = h("button", { type: "button", onclick: () => stopped(name) }, "Stop");
    const reset = h("button", { type: "button", onclick: () => resetPipeline(name) }, "Reset");
    const element = h(
      "section",
      { class: "card pipeline", "aria-label": `Pipeline ${name}` },
      h("div", { class: "bar" }, h("h2", {}, name), badge, h("span", { class: "push" }), start, stop, reset),
      failure,
      h(
        "div",
        { class: "grid four" },
        charts.map((one) => h("div", {}, h("h3", {}, one.title), one.figure, one.chart.element)),
      ),
      about,
    );
    function update({ status, history }) {
      const { report, definition } = status;
      fill(badge, pill(status.state, kinds[status.state] ?? ""));
      failure.hidden = !report?.error;
      failure.textContent = report?.error ? `Last error: ${report.error}` : "";
      for (const one of charts) {
        one.figure.textContent = one.format(report?.[one.key] ?? 0);
        one.chart.update([history.length ? history.map((moment) => moment[one.key]) : [0]]);
      }
      start.disabled = ALIVE.includes(status.state) || definition === null;
      start.title = definition === null ? "It is not defined at this hub: start it where it ran." : "";
      stop.disabled = !ALIVE.includes(status.state);
      reset.disabled = ALIVE.includes(status.state);
      reset.title = reset.disabled ? "Stop it first." : "";
      refill(
        about,
        facts([
          ["Batch", report && report.batch >= 0 ? number(report.batch) : "none yet"],
          ["Rows so far", report ? number(report.rows) : null],
          ["Rows of state", report?.state_rows ? number(report.state_rows) : null],
          ["Restarts", report?.restarts ? number(report.restarts) : null],
          ["Results go to", definition?.into ? streamLink(definition.into) : null],
          ["Runs every", definition?.trigger],
          ["File", definition?.file ? h("code", {}, definition.file) : null],
          ["SQL", definition?.sql ? h("code", {}, definition.sql) : null],
          ["Defined", definition === null ? "where it runs, not at this hub" : null],
        ]),
      );
    }
    return { element, update };
  }

  async function act(verb, name, done) {
    await attempt(() => call(verb, { name }), done);
    await view.now();
  }

  async function stopped(name) {
    const sure = await ask(
      `Stop ${name}`,
      h("p", {}, "It ends after the batch under way, and goes on from there when it is started again."),
      { ok: "Stop" },
    );
    if (sure) await act("pipeline.stop", name, `Asked ${name} to stop.`);
  }

  async function resetPipeline(name) {
    const to = choice("Where it goes on", "to", [
      ["cursor", "where its stored results end"],
      ["earliest", "at the earliest record: results are stored again"],
      ["latest", "at the end: what waits is left out"],
      ["time", "at a time (UTC)"],
    ]);
    const time = field("Time (UTC)", "time", { type: "datetime-local", step: 1 });
    const shown = h("div", { role: "status", "data-preview": "" });
    const select = to.querySelector("select");
    const input = time.querySelector("input");
    const target = () => (select.value === "time" ? { time_us: Date.parse(`${input.value}Z`) * 1000 } : select.value);
    async function preview() {
      time.hidden = select.value !== "time";
      if (select.value === "time" && !input.value) {
        fill(shown, "Choose a time.");
        return;
      }
      try {
        fill(shown, previewed(await call("pipeline.reset", { name, to: target(), dry_run: true })));
      } catch (error) {
        fill(shown, h("p", { class: "bad" }, error.message));
      }
    }
    select.addEventListener("change", preview);
    input.addEventListener("input", preview);
    preview();
    const answer = await ask(
      `Reset ${name}`,
      [
        h(
          "p",
          {},
          "Its checkpoint is forgotten, as after a change of what it computes. Open windows and other state are lost.",
        ),
        to,
        time,
        shown,
      ],
      { ok: "Reset", danger: true },
    );
    if (!answer) return;
    await attempt(() => call("pipeline.reset", { name, to: target() }), `Reset ${name}.`);
    await view.now();
  }

  async function create() {
    const answer = await ask(
      "Create a pipeline",
      [
        field("Name", "name", { required: true }),
        h(
          "label",
          { class: "block" },
          "SQL",
          h("textarea", {
            name: "sql",
            required: true,
            placeholder: "SELECT type, count(*) AS n FROM stream('orders') GROUP BY type",
          }),
        ),
        field("Stream for the results", "into", { required: true }),
        h(
          "div",
          { class: "fields" },
          field("A batch every", "trigger", { placeholder: "1 second" }),
          choice("Output mode", "output_mode", [
            ["append", "append"],
            ["update", "update"],
            ["complete", "complete"],
          ]),
        ),
      ],
      { ok: "Create" },
    );
    if (!answer) return;
    await attempt(() => call("pipeline.create", answer), `Created ${answer.name}.`);
    await view.now();
  }

  await view.every(refresh);
}

function previewed(plan) {
  const checkpoint = plan.checkpoint_found
    ? `The checkpoint at ${plan.checkpoint} is removed.`
    : `There is no checkpoint at ${plan.checkpoint}: it has not run here.`;
  return [
    h("p", {}, checkpoint),
    plan.moves.length
      ? table(
          [
            { title: "Stream", wrap: true, cell: (move) => move.stream },
            { title: "Partition", number: true, cell: (move) => move.partition },
            { title: "From", number: true, cell: (move) => number(move.before) },
            { title: "To", number: true, cell: (move) => number(move.after) },
            { title: "Read again", number: true, cell: (move) => count(move.read_again, "record") },
            { title: "Left out", number: true, cell: (move) => count(move.skipped, "record") },
          ],
          plan.moves,
          { label: "What the reset does" },
        )
      : h("p", {}, "It has no cursors: it has read nothing yet."),
  ];
}

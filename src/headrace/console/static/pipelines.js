// The Spark pipelines that this hub knows: how they do, and start, stop, reset.

import { call } from "./api.js";
import { LineChart, Recent } from "./charts.js";
import { ask, attempt, choice, command, field, form, line, menu, note, ways } from "./dialogs.js";
import { bytes, count, empty, facts, fill, h, head, hide, hubMs, links, number, pill, refill, seconds, streamLink } from "./dom.js";
import { table } from "./table.js";

const kinds = { running: "good", failed: "bad", lost: "bad", starting: "warn", restarting: "warn" };
const ALIVE = ["starting", "running", "restarting"];
const STOP_MS = 60000;

const CHARTS = [
  ["Rows", "rows_per_s", (value) => `${number(value)} rows/s`],
  ["Batch time", "batch_ms", (value) => seconds(value / 1000)],
  ["Behind", "lag", (value) => count(value, "record")],
  ["State", "state_bytes", bytes],
];

export async function pipelinesPage(root, parts, view) {
  const body = h("div", {});
  const cards = new Map();
  let known = new Map();
  const recent = new Recent(180);
  const none = h(
    "div",
    { class: "card" },
    empty(
      "No pipelines.",
      "Create one here, with headrace pipeline create, or in the hub's settings file; one that runs elsewhere appears on its own.",
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
    known = new Map(rows.map((row) => [row.status.name, row]));
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
      chart: new LineChart(`${title} of ${name}`, format).linkTo(),
      title,
    }));
    const about = h("div", {});
    const failure = h("div", { class: "alarm bad", hidden: true });
    const [begin, end, back] = [
      h("button", { type: "button", class: "main", onclick: () => start(name) }, "Start"),
      h("button", { type: "button", onclick: () => stop(name) }, "Stop"),
      h("button", { type: "button", onclick: () => reset(name) }, "Reset"),
    ];
    const more = menu(`What else to do with ${name}`, [{ title: "Delete…", danger: true, on: () => remove(name) }]);
    const element = h(
      "section",
      { class: "card pipeline", "aria-label": `Pipeline ${name}` },
      h("div", { class: "bar" }, h("h2", {}, name), badge, h("span", { class: "push" }), begin, end, back, more),
      failure,
      h(
        "div",
        { class: "grid four" },
        charts.map((one) => h("div", {}, h("h3", {}, one.title), one.figure, one.chart.element)),
      ),
      about,
    );
    function update({ status, history, reads, writes }) {
      const { report, definition } = status;
      fill(badge, pill(status.state, kinds[status.state] ?? ""));
      failure.hidden = !report?.error;
      failure.textContent = report?.error ? `Last error: ${report.error}` : "";
      for (const one of charts) {
        one.figure.textContent = one.format(report?.[one.key] ?? 0);
        one.chart.update([history.length ? history.map((moment) => moment[one.key]) : [0]], 1, null, recent.now());
      }
      const runs = ALIVE.includes(status.state);
      hide(begin, runs || definition === null); // one that is defined elsewhere is started there
      hide(more, definition === null);
      hide(end, !runs);
      refill(
        about,
        facts([
          ["Reads", reads.length ? links(reads) : null],
          ["Writes", writes.length ? links(writes) : null],
          ["Batch", report && report.batch >= 0 ? number(report.batch) : "none yet"],
          ["Rows so far", report ? number(report.rows) : null],
          ["State rows", report?.state_rows ? number(report.state_rows) : null],
          ["Restarts", report?.restarts ? number(report.restarts) : null],
          ["Runs every", definition?.trigger],
          ["File", definition?.file ? h("code", {}, definition.file) : null],
          ["Project", definition?.project ? h("code", {}, definition.project) : null],
          ["SQL", definition?.sql ? h("code", {}, definition.sql) : null],
          ["Defined", definition === null ? "where it runs, not on this hub" : null],
        ]),
      );
    }
    return { element, update };
  }

  async function sure(title, words, told, options, work, done) {
    if (!(await ask(title, [h("p", {}, words), command(told)], options))) return;
    await attempt(work, done);
    await view.now();
  }

  const start = (name) =>
    sure(
      `Start ${name}`,
      "The hub runs it in a separate process. It continues where its stored results end; Spark takes a few seconds to start.",
      line(["pipeline", "start", name]),
      { ok: "Start" },
      () => call("pipeline.start", { name }),
      `Started ${name}; Spark takes a few seconds.`,
    );

  const stop = (name) =>
    sure(
      `Stop ${name}`,
      "It ends after the current batch, and continues from there when it is started again.",
      line(["pipeline", "stop", name]),
      { ok: "Stop" },
      () => call("pipeline.stop", { name }),
      `Asked ${name} to stop.`,
    );

  const remove = (name) =>
    sure(
      `Delete ${name}`,
      "Its definition is removed; if it is running, it stops. Its results stay, and so do its cursors: a pipeline with the same name continues where this one stopped.",
      line(["pipeline", "delete", name]),
      { ok: "Delete", danger: true },
      () => call("pipeline.delete", { name }),
      `Deleted ${name}.`,
    );

  async function reset(name) {
    const { status } = known.get(name);
    const runs = ALIVE.includes(status.state);
    const startable = status.definition !== null; // one that is defined elsewhere is started there
    const yesterday = new Date(hubMs() - 86400e3).toISOString().slice(0, 19);
    const time = field("Time (UTC)", "time", { type: "datetime-local", step: 1, value: yesterday });
    const target = (values) => (values.to === "time" ? { time_us: Date.parse(`${values.time}Z`) * 1000 } : values.to);
    const answer = await ask(
      `Reset ${name}`,
      form(
        [
          h("p", {}, "Its checkpoint is forgotten, as after a change of what it computes. Open windows and other state are lost."),
          runs ? h("p", {}, "It is stopped first, after the current batch.") : null,
          ways("Where it continues", "to", [
            ["cursor", "where its stored results end"],
            ["earliest", "at the earliest record: results are stored again"],
            ["time", "at a time: yesterday, or another"],
            ["latest", "at the end: what is waiting is skipped"],
          ]),
          time,
          startable ? h("label", {}, h("input", { type: "checkbox", name: "start", value: "1", checked: true }), " Start it then") : null,
        ],
        (values) =>
          [
            runs ? line(["pipeline", "stop", name]) : null,
            line(["pipeline", "reset", name], { start: values.to === "cursor" ? null : values.to === "time" ? `${values.time}Z` : values.to }),
            values.start ? line(["pipeline", "start", name]) : null,
          ]
            .filter(Boolean)
            .join(" &&\n"),
        async (values) => {
          time.hidden = values.to !== "time";
          if (values.to === "time" && !values.time) return "Choose a time.";
          return previewed(await call("pipeline.reset", { name, to: target(values), dry_run: true }));
        },
      ),
      { ok: "Reset", danger: true },
    );
    if (!answer) return;
    const begins = answer.start ? ` and started ${name}; Spark takes a few seconds.` : ` ${name}.`;
    await attempt(async () => {
      if (runs) await end(name);
      await call("pipeline.reset", { name, to: target(answer) });
      if (answer.start) await call("pipeline.start", { name });
    }, `Reset${begins}`);
    await view.now();
  }

  async function end(name) {
    note(`${name} stops…`);
    await call("pipeline.stop", { name });
    const until = Date.now() + STOP_MS;
    while (ALIVE.includes(known.get(name)?.status.state)) {
      if (Date.now() > until) throw new Error(`${name} has not stopped yet. Nothing was reset; try again when it has.`);
      await new Promise((done) => setTimeout(done, 300));
      await view.now();
    }
  }

  async function create() {
    const answer = await ask(
      "Create a pipeline",
      form(
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
        (values) =>
          line(["pipeline", "create", values.name || "NAME"], {
            sql: values.sql,
            into: values.into,
            trigger: values.trigger,
            "output-mode": values.output_mode === "append" ? null : values.output_mode,
          }),
      ),
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
            { title: "Skipped", number: true, cell: (move) => count(move.skipped, "record") },
          ],
          plan.moves,
          { label: "What the reset does" },
        )
      : h("p", {}, "It has no cursors: it has read nothing yet."),
  ];
}

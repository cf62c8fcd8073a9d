// Tables that change under the reader's hands: rows and cells that stay the same are left alone, with their focus.

import { allow, count, fill, h, number } from "./dom.js";

// columns: { title, cell(row), number (0 is grey, unless it is a place), wrap, minor and least (left out where it is narrow), sort }; sort: { by, descending, on(by) }.
// options: label, key(row), empty (an element), onOpen(row), isOpen(row), and stamp(row): rows with the same stamp look the same,
// and their cells are not made again.
export function liveTable(columns, options) {
  const lines = new Map();
  const body = h("tbody", {});
  const heads = columns.map((column) =>
    h(
      "th",
      { class: classes(column), scope: "col" },
      column.sort
        ? h("button", { type: "button", onclick: () => options.sort.on(column.sort) }, column.title)
        : column.title || h("span", { class: "offscreen" }, "Actions"),
    ),
  );
  const table = h(
    "div",
    { class: "table" },
    h("table", { "aria-label": options.label }, h("thead", {}, h("tr", {}, heads)), body),
  );
  const element = h("div", {});

  function update(rows) {
    markSort();
    const focused = document.activeElement;
    const seen = new Set(rows.map((row) => String(options.key(row))));
    for (const [key, line] of lines) {
      if (!seen.has(key)) {
        line.element.remove();
        lines.delete(key);
      }
    }
    rows.forEach((row, place) => {
      const key = String(options.key(row));
      const line = lines.get(key) ?? made(key);
      Object.assign(line.row, row);
      const stamp = options.stamp?.(row);
      if (stamp === undefined || stamp !== line.stamp) cells(line);
      line.stamp = stamp;
      if (options.onOpen) line.element.setAttribute("aria-selected", String(options.isOpen?.(line.row) ?? false));
      if (body.children[place] !== line.element) body.insertBefore(line.element, body.children[place] ?? null);
    });
    // A row that changes its place takes the focus along.
    if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
    const shown = rows.length || !options.empty ? table : options.empty;
    if (element.firstChild !== shown) fill(element, shown);
  }

  function made(key) {
    const line = { row: {}, element: h("tr", { "data-key": key }), contents: [] };
    if (options.onOpen) opens(line);
    lines.set(key, line);
    return line;
  }

  function opens({ element: tr, row }) {
    tr.tabIndex = 0;
    tr.classList.add("opens");
    tr.addEventListener("click", (event) => {
      if (!event.target.closest("button, a, input, select")) options.onOpen(row);
    });
    tr.addEventListener("keydown", (event) => {
      if (event.target !== tr) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        options.onOpen(row);
      }
      if (event.key === "ArrowDown") {
        event.preventDefault();
        tr.nextElementSibling?.focus();
      }
      if (event.key === "ArrowUp") {
        event.preventDefault();
        tr.previousElementSibling?.focus();
      }
    });
  }

  function cells(line) {
    columns.forEach((column, at) => {
      const fresh = h("td", { class: classes(column), "data-title": column.title || null }, column.cell(line.row));
      if (["", "–"].includes(fresh.textContent)) fresh.classList.add("none"); // nothing to say where there is little room
      if (column.number && !column.place && fresh.textContent.startsWith("0") && !parseFloat(fresh.textContent)) fresh.classList.add("zero");
      const old = line.contents[at];
      if (old?.isEqualNode(fresh)) return;
      if (old && old.contains(document.activeElement)) {
        refill(old, fresh);
        return;
      }
      line.contents[at] = fresh;
      if (old) old.replaceWith(fresh);
      else line.element.append(fresh);
    });
  }

  function markSort() {
    columns.forEach((column, at) => {
      if (!column.sort) return;
      if (options.sort.by === column.sort)
        heads[at].setAttribute("aria-sort", options.sort.descending ? "descending" : "ascending");
      else heads[at].removeAttribute("aria-sort");
    });
  }

  update([]);
  return { element, update };
}

// A cell whose button has the focus is not replaced: only what its controls say and allow.
function refill(old, fresh) {
  const controls = fresh.querySelectorAll("button, a");
  old.querySelectorAll("button, a").forEach((control, at) => {
    if (!controls[at]) return;
    control.textContent = controls[at].textContent;
    allow(control, !controls[at].ariaDisabled);
  });
}

const classes = (column) =>
  [
    column.number && "number",
    column.wrap && "wrap",
    column.wide && "wide",
    column.minor && "minor",
    column.least && "least",
  ]
    .filter(Boolean)
    .join(" ") || null;

// The same for a list that does not change by itself.
export function table(columns, rows, options) {
  const made = liveTable(columns, { key: (row) => rows.indexOf(row), ...options, key: options.key ?? counter() });
  made.update(rows);
  return made.element;
}

// Which page of a list this is, and the way to the others; only how many there are where one page holds all. Of a list
// whose length nobody knows (`open`), `total` is what is known of it: one more than the page if there is another.
export function pager(rows, thing, go, things = `${thing}s`) {
  let at = 0;
  const button = (title, by) => h("button", { type: "button", onclick: () => go(Math.max(0, at + by)) }, title);
  const [previous, next] = [button("Previous", -rows), button("Next", rows)];
  const said = h("span", { class: "quiet", role: "status" });
  function update(offset, total, open = false) {
    at = offset;
    const to = Math.min(offset + rows, total);
    previous.hidden = next.hidden = total <= rows && !offset;
    allow(previous, offset > 0);
    allow(next, to < total);
    const range = to > offset ? `${number(offset + 1)} to ${number(to)}` : "none";
    said.textContent = next.hidden ? count(total, thing, things) : open && to < total ? range : `${range} of ${number(total)}`;
  }
  return { element: h("div", { class: "bar push" }, previous, said, next), update };
}

function counter() {
  let next = 0;
  return () => {
    next += 1;
    return next;
  };
}

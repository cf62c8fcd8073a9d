// Who may do what: users, their roles and tokens.

import { call } from "./api.js";
import { ask, attempt, command, copy, field, form, line, menu } from "./dialogs.js";
import { count, empty, facts, fill, h, head, pill } from "./dom.js";
import { liveTable } from "./table.js";

export async function usersPage(root, parts, view) {
  const me = await call("user.whoami");
  const rows = liveTable(
    [
      { title: "User", cell: (row) => [h("b", {}, row.user), row.user === me.user ? h("span", { class: "quiet" }, " you") : null] },
      { title: "Roles", cell: (row) => row.roles.map((role) => [pill(role), " "]) },
      { title: "Password", cell: (row) => (row.password ? "yes" : "none") },
      { title: "Tokens", number: true, cell: (row) => row.tokens },
      { title: "Kept in", cell: (row) => (row.editable ? "users file" : "settings") },
      {
        title: "",
        cell: (row) =>
          row.editable
            ? menu(`What to do with ${row.user}`, [
                { title: "New token…", on: () => token(row) },
                { title: "Change roles or password…", on: () => add(row) },
                { title: "Remove…", danger: true, on: () => remove(row) },
              ])
            : null,
      },
    ],
    {
      label: "Users",
      key: (row) => row.user,
      empty: empty("No users.", "Anyone who can reach this hub may do anything. Once there is a user, everyone has to sign in."),
    },
  );
  const said = h("span", {});
  fill(
    root,
    head("Users", said, h("button", { type: "button", class: "main", onclick: () => add(null) }, "Add a user")),
    h("div", { class: "card" }, rows.element),
  );

  async function refresh() {
    const users = await call("user.list");
    rows.update(users);
    said.textContent = users.length
      ? `${count(users.length, "user")}. You are ${me.user}.`
      : "Nobody has to sign in to this hub.";
  }

  async function add(row) {
    const name = field("Name", "user", { required: true, value: row?.user ?? "", readonly: Boolean(row) });
    const body = form(
      [
        row || rowsThere() ? null : h("p", {}, "This is the first user: from then on everyone has to sign in, including you. Give it the role admin."),
        name,
        field("Roles, separated by spaces", "roles", { required: true, value: row?.roles.join(" ") ?? (rowsThere() ? "reader" : "admin"), placeholder: "admin, writer, reader or your own" }),
        field(row ? "New password (empty: none)" : "Password (empty: only tokens)", "secret", { type: "password", autocomplete: "new-password" }),
      ],
      (values) => line(["user", "add", values.user || "NAME"], { role: values.roles.trim().split(/\s+/), token: !values.secret }),
    );
    const answer = await ask(row ? `Change ${row.user}` : "Add a user", body, { ok: row ? "Change" : "Add" });
    if (!answer) return;
    const request = { user: answer.user, roles: answer.roles.trim().split(/\s+/) };
    if (answer.secret) request.secret = answer.secret;
    await attempt(() => call("user.add", request), row ? `Changed ${answer.user}.` : `Added ${answer.user}.`);
    await view.now();
  }

  const rowsThere = () => rows.element.querySelector("tbody tr") !== null;

  async function token(row) {
    const sure = await ask(
      `A new token for ${row.user}`,
      [h("p", {}, `Whoever has it may do what ${row.user} may. Earlier tokens stay valid.`), command(line(["user", "token", row.user]))],
      { ok: "Create a token" },
    );
    if (!sure) return;
    await attempt(async () => {
      const made = await call("user.token", { user: row.user });
      await view.now();
      await ask(
        `A token for ${row.user}`,
        [
          h("p", {}, "It is shown only once: the hub keeps nothing but a hash of it."),
          facts([["Token", h("code", {}, made.token)]]),
          h("button", { type: "button", onclick: () => copy(made.token, "the token") }, "Copy"),
        ],
        { ok: "Close", cancel: false },
      );
    });
  }

  async function remove(row) {
    const sure = await ask(
      `Remove ${row.user}`,
      [h("p", {}, "This user's open connections end at once, and the tokens are gone."), command(line(["user", "rm", row.user]))],
      { ok: "Remove", danger: true },
    );
    if (!sure) return;
    await attempt(() => call("user.remove", { user: row.user }), `Removed ${row.user}.`);
    await view.now();
  }
  await view.every(refresh);
}

// Changes: all that a session has changed, file by file, with comments on lines that go back to the agent as one prompt.

import { classes, h } from "../lib/dom.js";
import { count, folder, plain, plural, visible } from "../lib/text.js";
import { bus, dispatch, go, store } from "../state/app.js";
import { changesOf, reviewText } from "../state/changes.js";
import { aboutLine, newReview, rowsOf } from "../state/review.js";
import { line as lineNode, operationWords } from "./diff.js";
import { Empty } from "./parts.js";
import "../lib/list.js";

/** @param {string} session @param {any} action */
const review = (session, action) => dispatch({ type: "review", session, ...action });

/** @param {{session: any, state: import("../state/reduce.js").State, canPrompt: boolean}} props */
export function Changes({ session, state, canPrompt }) {
  const files = changesOf(session, state.verdicts);
  const own = state.reviews[session.id] ?? newReview();
  if (files.length === 0) return h(Empty, { title: "Nothing was changed", text: "Changes that the agent tells of are put together here. What a command of its own has changed is not among them." });
  const [added, removed] = [files.reduce((sum, file) => sum + file.added, 0), files.reduce((sum, file) => sum + file.removed, 0)];
  const rows = rowsOf(files, own);
  const row = (one) => h(Row, { row: one, session: session.id, cwd: session.cwd, canPrompt });
  return h(
    "div",
    { class: "changes" },
    h("div", { class: "changes-head" }, h("span", null, plural(files.length, "file")), h("span", { class: "num added" }, `+${count(added)}`), h("span", { class: "num removed" }, `−${count(removed)}`), h("span", { class: "muted" }, canPrompt ? "Choose the number of a line to comment on it." : "")),
    h("sb-list", { class: "changes-list", key: session.id, data: { items: rows, row, keyOf, estimate: 20, label: "changes" } }),
    own.comments.length && canPrompt ? h("div", { class: "changes-foot" }, h("span", null, plural(own.comments.length, "comment")), h("span", { class: "spacer" }), h("button", { class: "button", type: "button", onclick: () => discard(session.id) }, "Discard"), h("button", { class: "button primary", type: "button", onclick: () => send(session, own.comments) }, "Send as one prompt")) : null,
  );
}

const keyOf = (row) => row.key;

/** @param {string} session */
const discard = (session) => dispatch({ type: "dialog", dialog: { kind: "confirm", title: "Discard all comments?", text: "They have not been sent.", label: "Discard them", act: () => review(session, { what: "clear" }) } });

/** @param {any} session @param {any[]} comments */
function send(session, comments) {
  bus.talk.prompt(session.id, reviewText(comments));
  review(session.id, { what: "clear" });
  go("sessions", session.label);
}

/** @param {{row: any, session: string, cwd: string, canPrompt: boolean}} props */
function Row({ row, session, cwd, canPrompt }) {
  if (row.kind === "file") return fileRow(row, session, cwd);
  if (row.kind === "part") return h("div", { class: "dl gap" }, h("span", { class: "muted" }, "⋯ another place"));
  if (row.kind === "comment") return commentRow(row, session, canPrompt);
  if (row.kind === "editor") return h(Editor, { comment: row.comment, session });
  if (row.line.kind === "gap" || !canPrompt) return lineNode(row.line);
  const about = aboutLine(row.path, row.line);
  return h("div", { class: "commented-line" }, h("button", { class: "comment-on num", type: "button", tabindex: "-1", "data-line": about.key, "aria-label": `comment on line ${about.line}`, onclick: () => review(session, { what: "edit", comment: about }) }, String(about.line)), lineNode(row.line));
}

/** @param {any} row @param {string} session @param {string} cwd */
function fileRow({ file, isFolded, comments }, session, cwd) {
  const name = cwd && file.path.startsWith(`${cwd}/`) ? file.path.slice(cwd.length + 1) : folder(file.path);
  return h(
    "button",
    { class: "file-head", type: "button", "aria-expanded": String(!isFolded), title: plain(file.path), onclick: () => review(session, { what: "fold", path: file.path }) },
    h("span", { class: "fold", "aria-hidden": "true" }, isFolded ? "▸" : "▾"),
    h("span", { class: "mono path" }, visible(name)),
    h("span", { class: "muted" }, visible(operationWords(file.operation))),
    h("span", { class: "num added" }, `+${count(file.added)}`),
    h("span", { class: "num removed" }, `−${count(file.removed)}`),
    file.times > 1 ? h("span", { class: "muted num" }, `in ${file.times} steps`) : null,
    comments ? h("span", { class: "chip" }, plural(comments, "comment")) : null,
  );
}

/** @param {any} row @param {string} session @param {boolean} canPrompt */
function commentRow({ comment, isStale }, session, canPrompt) {
  return h(
    "div",
    { class: classes("comment", isStale && "is-stale") },
    isStale ? h("p", { class: "warn" }, `The line has changed since: ${comment.line} `, h("span", { class: "mono" }, visible(comment.quote.slice(0, 120)))) : null,
    h("p", null, visible(comment.text)),
    canPrompt ? h("div", { class: "choices" }, isStale ? null : h("button", { class: "link", type: "button", onclick: () => review(session, { what: "edit", comment }) }, "change"), h("button", { class: "link", type: "button", onclick: () => review(session, { what: "remove", key: comment.key }) }, "remove")) : null,
  );
}

/** @param {{comment: any, session: string}} props */
function Editor({ comment, session }) {
  // Who has written goes on where the line is.
  const done = (action) => {
    review(session, action);
    requestAnimationFrame(() => requestAnimationFrame(() => /** @type {any} */ (document.querySelector(`[data-line="${CSS.escape(comment.key)}"]`))?.focus()));
  };
  const save = (area) => done({ what: "comment", comment: { ...comment, text: area.value } });
  const pressed = (event) => {
    event.stopPropagation();
    if (event.key === "Escape") done({ what: "edit", comment: null });
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey || (!event.shiftKey && !matchMedia("(pointer: coarse)").matches)) && !event.isComposing) save(event.target);
    else return;
    event.preventDefault();
  };
  const begin = (area) => {
    area.value = comment.text;
    setTimeout(() => area.focus());
  };
  return h(
    "div",
    { class: "comment" },
    h("textarea", { rows: "3", "aria-label": `comment on line ${comment.line}`, placeholder: "What should be different here?", ref: begin, onkeydown: pressed }),
    h("div", { class: "choices" }, h("button", { class: "button small primary", type: "button", onclick: (event) => save(event.target.closest(".comment").querySelector("textarea")) }, "Save"), h("button", { class: "button small", type: "button", onclick: () => done({ what: "edit", comment: null }) }, "Leave it")),
  );
}

/** Whether a session has told of any change. @param {any} session @returns {boolean} */
export const hasChanges = (session) => !!session.hasDiffs || Object.values(session.children).some(hasChanges) || !!store.state.reviews[session.id]?.comments.length;

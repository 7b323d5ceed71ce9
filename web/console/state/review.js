// A review of what a session has changed: comments on lines, which files are folded, and the rows that are shown of it. Pure.

import { look, put, table } from "../lib/table.js";
import { isStale } from "./changes.js";
import { objects } from "./transcript.js";

/** @typedef {import("./changes.js").Changed} Changed */
/** @typedef {import("./changes.js").Comment} Comment */
/** @typedef {{comments: Comment[], folded: Record<string, boolean>, editing: Omit<Comment, "text"> | null}} Review */

/** @returns {Review} */
export const newReview = () => ({ comments: [], folded: table(), editing: null });

/** @param {Review} review @param {any} action @returns {Review} */
export function changedReview(review, { what, ...more }) {
  switch (what) {
    case "fold":
      return { ...review, folded: put(review.folded, more.path, !look(review.folded, more.path)) };
    case "edit":
      return { ...review, editing: more.comment };
    case "comment": {
      const others = review.comments.filter((one) => one.key !== more.comment.key);
      return { ...review, editing: null, comments: more.comment.text.trim() ? [...others, more.comment] : others };
    }
    case "remove":
      return { ...review, comments: review.comments.filter((one) => one.key !== more.key) };
    case "clear":
      return { ...review, comments: [], editing: null };
    default:
      return review;
  }
}

/** Comments of a page that was loaded anew. @param {unknown} kept @returns {Record<string, Review>} */
export function restoredReviews(kept) {
  const reviews = table();
  for (const [session, review] of Object.entries(kept !== null && typeof kept === "object" ? kept : {})) {
    const comments = objects(review?.comments).filter((one) => [one.key, one.path, one.quote, one.text, one.sign].every((word) => typeof word === "string") && typeof one.line === "number");
    if (comments.length) reviews[session] = { ...newReview(), comments };
  }
  return reviews;
}

/** What a comment on this line would be. @param {string} path @param {import("../lib/diff.js").Line} line */
export const aboutLine = (path, line) => {
  const number = line.new ?? line.old ?? 0;
  const sign = line.kind === "add" ? "+" : line.kind === "del" ? "-" : " ";
  return { key: `${path} ${sign} ${number} ${line.text.slice(0, 200)}`, path, line: number, sign, quote: line.text };
};

/**
 * The rows of the review: for each file its name, comments whose line is gone, its lines, and below them what is said of them.
 * @param {Changed[]} files
 * @param {Review} review
 */
export function rowsOf(files, review) {
  const rows = /** @type {any[]} */ ([]);
  for (const file of files) {
    const comments = review.comments.filter((one) => one.path === file.path);
    const isFolded = !!look(review.folded, file.path);
    rows.push({ key: `file ${file.path}`, kind: "file", file, isFolded, comments: comments.length });
    for (const comment of comments.filter((one) => isFolded || isStale(one, files))) rows.push({ key: `comment ${comment.key}`, kind: "comment", comment, isStale: !isFolded });
    if (!isFolded) for (const [part, { lines }] of file.parts.entries()) addLines(rows, file.path, part, lines, comments, review.editing);
  }
  const gone = review.comments.filter((one) => !files.some((file) => file.path === one.path));
  return [...rows, ...gone.map((comment) => ({ key: `comment ${comment.key}`, kind: "comment", comment, isStale: true }))];
}

/** @param {any[]} rows @param {string} path @param {number} part @param {import("../lib/diff.js").Line[]} lines @param {Comment[]} comments @param {Review["editing"]} editing */
function addLines(rows, path, part, lines, comments, editing) {
  if (part > 0) rows.push({ key: `part ${path} ${part}`, kind: "part" });
  for (const [at, line] of lines.entries()) {
    rows.push({ key: `line ${path} ${part} ${at}`, kind: "line", line, path });
    if (line.kind === "gap" || (comments.length === 0 && editing?.path !== path)) continue;
    const { key } = aboutLine(path, line);
    for (const comment of comments) if (comment.key === key && editing?.key !== key) rows.push({ key: `comment ${key}`, kind: "comment", comment, isStale: false });
    if (editing?.key === key) rows.push({ key: `editor ${key}`, kind: "editor", comment: { text: comments.find((one) => one.key === key)?.text ?? "", ...editing } });
  }
}

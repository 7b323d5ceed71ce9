// Patches as git writes them, read into the lines that a diff is shown by. Pure.

/** @typedef {import("./diff.js").Line} Line */
/** @typedef {{path: string, old: string, operation: string, lines: Line[], added: number, removed: number}} File */

/** @param {string} name */
const bare = (name) => {
  const plain = name.replace(/\t.*$/, "").replace(/^"(.*)"$/, "$1");
  return plain === "/dev/null" ? "" : plain.replace(/^[ab]\//, "");
};

/**
 * The files of a patch. Lines that belong to no file are not of it, and are left out.
 * @param {string} text
 * @returns {File[]}
 */
export function readPatch(text) {
  const files = /** @type {File[]} */ ([]);
  let file = /** @type {File | null} */ (null);
  let [old, now, left, right] = [0, 0, 0, 0];
  const begin = (path) => {
    file = { path, old: "", operation: "modify", lines: [], added: 0, removed: 0 };
    files.push(file);
  };
  for (const line of text.split("\n")) {
    const hunk = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
    if (file && (left > 0 || right > 0) && /^[-+ ]|^$/.test(line)) {
      const kind = line[0] === "+" ? "add" : line[0] === "-" ? "del" : "same";
      file.lines.push({ kind, text: line.slice(1), ...(kind === "add" ? {} : { old }), ...(kind === "del" ? {} : { new: now }) });
      if (kind !== "add") [old, left] = [old + 1, left - 1];
      if (kind !== "del") [now, right] = [now + 1, right - 1];
      if (kind === "add") file.added += 1;
      if (kind === "del") file.removed += 1;
    } else if (hunk && file) {
      const from = Number(hunk[1]);
      const skipped = from - (file.lines.length ? old : 1);
      if (skipped > 0) file.lines.push({ kind: "gap", text: "", count: skipped });
      [old, now, left, right] = [from, Number(hunk[3]), Number(hunk[2] ?? 1), Number(hunk[4] ?? 1)];
    } else if (line.startsWith("diff --git ")) {
      begin(bare(/ (?:"b\/.*"|b\/.*)$/.exec(line)?.[0].trim() ?? ""));
    } else if (line.startsWith("--- ")) {
      if (!file || file.lines.length) begin("");
      if (file) file.old = bare(line.slice(4));
    } else if (file) {
      header(file, line);
    }
  }
  return files.map((one) => ({ ...one, path: one.path || one.old }));
}

/** @param {File} file @param {string} line */
function header(file, line) {
  if (line.startsWith("+++ ")) {
    const path = bare(line.slice(4));
    if (!path) file.operation = "delete";
    else file.path = path;
    if (!file.old) file.operation = "add";
  } else if (line.startsWith("new file")) file.operation = "add";
  else if (line.startsWith("deleted file")) file.operation = "delete";
  else if (line.startsWith("rename from ")) [file.operation, file.old] = ["move", bare(line.slice(12))];
  else if (line.startsWith("copy from ")) [file.operation, file.old] = ["copy", bare(line.slice(10))];
}

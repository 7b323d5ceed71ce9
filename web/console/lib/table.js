// Tables that are looked up by words of others. A plain object also has what it inherits, such as `__proto__` and `constructor`,
// and an agent may call anything by these names; a table has the names that it was given and no others.

/**
 * A table of these rows.
 * @template T
 * @param {Record<string, T>} [rows]
 * @returns {Record<string, T>}
 */
export const table = (rows) => Object.assign(Object.create(null), rows);

/** The row of a word. Only a string is one: another value could be turned into any. @template T @param {Record<string, T>} rows @param {unknown} word @returns {T | undefined} */
export const look = (rows, word) => (typeof word === "string" && Object.hasOwn(rows, word) ? rows[word] : undefined);

/** The table with one row more, or with another one under this name. @template T @param {Record<string, T>} rows @param {string} name @param {T} row */
export const put = (rows, name, row) => {
  const next = table(rows);
  next[name] = row;
  return next;
};

/** The table without a row. @template T @param {Record<string, T>} rows @param {string} name */
export const without = (rows, name) => {
  const next = table(rows);
  delete next[name];
  return next;
};

/** The table with every row changed. @template T @param {Record<string, T>} rows @param {(row: T) => T} by */
export const mapped = (rows, by) => {
  const next = table();
  for (const name of Object.keys(rows)) next[name] = by(rows[name]);
  return next;
};

// What the tests of the console's pure parts share.

/** The text that a tree would show. */
export function textOf(node) {
  if (Array.isArray(node)) return node.map(textOf).join("");
  if (node === null || node === undefined || typeof node === "boolean") return "";
  if (typeof node !== "object") return String(node);
  if (node.tag === "#text") return node.props.text;
  if (typeof node.tag === "function") return textOf(node.tag(node.props, node.children));
  return textOf(node.children);
}

/** All elements of a tree: their names and props. */
export function elementsOf(node) {
  if (Array.isArray(node)) return node.flatMap(elementsOf);
  if (node === null || typeof node !== "object" || node.tag === "#text") return [];
  if (typeof node.tag === "function") return elementsOf(node.tag(node.props, node.children));
  return [{ tag: node.tag, props: node.props }, ...node.children.flatMap(elementsOf)];
}

/** A small generator of numbers below a bound, always the same for a seed. */
export function numbers(seed) {
  let state = seed >>> 0 || 1;
  return (bound) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * bound);
  };
}

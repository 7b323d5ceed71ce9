// The renderer: trees of plain objects become DOM nodes. Text is always a text node; nothing here parses markup.

/** @typedef {string | number | boolean | null | undefined | VNode} Child */
/** @typedef {Child | Children[]} Children */

/** A node of the tree. Being one cannot be claimed by what an agent sends: that is plain data, and is shown as text. */
export class VNode {
  /** @param {any} tag @param {Record<string, any>} props @param {any} key @param {VNode[]} children */
  constructor(tag, props, key, children) {
    this.tag = tag;
    this.props = props;
    this.key = key;
    this.children = children;
    /** @type {any} */ this.el = undefined;
    /** @type {VNode | undefined} */ this.out = undefined;
  }
}

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "hidden", "selected", "open", "indeterminate"]);
const NOTHING = /** @type {Record<string, any>} */ (Object.freeze({}));

/**
 * A node of the tree. `tag` is an element's name, or a function of its props that returns one node; such a function is
 * not called again while its props are the same.
 * @param {any} tag
 * @param {Record<string, any> | null} [props]
 * @param {...Children} children
 * @returns {VNode}
 */
export function h(tag, props, ...children) {
  const own = props ?? NOTHING;
  const flat = /** @type {VNode[]} */ ([]);
  flatten(children, flat);
  return new VNode(tag, own, own.key, flat);
}

/** @param {string} words */
const textNode = (words) => new VNode("#text", { text: words }, undefined, []);

/** @param {any[]} children @param {VNode[]} into */
function flatten(children, into) {
  for (const child of children) {
    if (Array.isArray(child)) flatten(child, into);
    else if (child === null || child === undefined || typeof child === "boolean") continue;
    else if (child instanceof VNode) into.push(child);
    else into.push(textNode(typeof child === "object" ? asJson(child, 200) : String(child)));
  }
}

/**
 * Makes the children of an element those of the tree.
 * @param {any} parent
 * @param {...Children} children
 */
export function render(parent, ...children) {
  const next = /** @type {VNode[]} */ ([]);
  flatten(children, next);
  patchChildren(parent, parent.rendered ?? [], next, parent.namespaceURI === SVG);
  parent.rendered = next;
}

/** @param {VNode} node @param {boolean} svg @returns {any} */
function create(node, svg) {
  if (typeof node.tag === "function") {
    return (node.el = created(node, svg));
  }
  if (node.tag === "#text") return (node.el = document.createTextNode(node.props.text));
  const inSvg = svg || node.tag === "svg";
  const el = inSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  node.el = el;
  for (const name in node.props) set(el, name, undefined, node.props[name]);
  patchChildren(el, [], node.children, inSvg);
  node.props.ref?.(el);
  return el;
}

/**
 * What a function makes of its props, drawn. What an agent sends may be of any shape, so each function is a boundary: if it, or
 * what it returns, cannot be drawn, that is said in its place, and all the rest of the page is drawn as usual.
 * @param {VNode} node @param {boolean} svg
 */
function created(node, svg) {
  try {
    node.out = node.tag(node.props, node.children);
    return create(/** @type {VNode} */ (node.out), svg);
  } catch (fault) {
    node.out = unshown(node.props, fault);
    return create(node.out, svg);
  }
}

/** A folded line in place of what could not be drawn. @param {Record<string, any>} props @param {unknown} fault */
function unshown(props, fault) {
  console.warn(fault);
  const { item, question, call } = props;
  const what = item ?? question?.params ?? call ?? null;
  return h("details", { class: "unshown muted" }, h("summary", null, "this could not be shown"), h("pre", { class: "code", tabindex: "0" }, what ? asJson(what, 20_000) : String(fault)));
}

/** Data as JSON; what is too long is cut, and says so. @param {unknown} data @param {number} longest */
export function asJson(data, longest) {
  let text;
  try {
    text = JSON.stringify(data, null, 2) ?? String(data);
  } catch {
    return "(too deep to be written down)";
  }
  return text.length > longest ? `${text.slice(0, longest)}\n⋯ ${text.length - longest} more characters` : text;
}

/** @param {VNode} before @param {VNode} after @param {boolean} svg */
function patch(before, after, svg) {
  if (typeof after.tag === "function") {
    const isSame = after.children.length === 0 && before.children.length === 0 && shallowEqual(before.props, after.props);
    if (isSame) {
      after.out = before.out;
      after.el = before.el;
      return;
    }
    patchCalled(before, after, svg);
    return;
  }
  const el = (after.el = before.el);
  if (after.tag === "#text") {
    if (before.props.text !== after.props.text) el.data = after.props.text;
    return;
  }
  for (const name in before.props) if (!(name in after.props)) set(el, name, before.props[name], undefined);
  for (const name in after.props) {
    // What a person has typed since is not in the tree, so these are compared with the element itself.
    const old = name === "value" || name === "checked" ? el[name] : before.props[name];
    if (old !== after.props[name]) set(el, name, before.props[name], after.props[name]);
  }
  if (before.children !== after.children) patchChildren(el, before.children, after.children, svg || after.tag === "svg");
}

/** @param {VNode} before @param {VNode} after @param {boolean} svg */
function patchCalled(before, after, svg) {
  const was = before.el;
  try {
    after.out = after.tag(after.props, after.children);
    const [one, other] = /** @type {VNode[]} */ ([before.out, after.out]);
    if (one.tag === other.tag && one.key === other.key) patch(one, other, svg);
    else one.el.replaceWith(create(other, svg));
    after.el = other.el;
  } catch (fault) {
    // It may be half changed by now, so nothing of it is kept.
    after.out = unshown(after.props, fault);
    was.replaceWith(create(after.out, svg));
    after.el = after.out.el;
  }
}

/** @param {any} parent @param {VNode[]} before @param {VNode[]} after @param {boolean} svg */
function patchChildren(parent, before, after, svg) {
  const olds = paired(before, after);
  const kept = new Set(olds);
  let place = null;
  // What is gone goes first: an element that stays where it is keeps its focus, one that is moved does not.
  for (let at = before.length - 1; at >= 0; at--) {
    if (kept.has(before[at])) place = before[at].el;
    else before[at].el.remove();
  }
  for (const [at, node] of after.entries()) {
    const old = olds[at];
    if (!old) {
      parent.insertBefore(create(node, svg), place);
      continue;
    }
    const was = old.el;
    patch(old, node, svg);
    if (was === place) place = node.el.nextSibling;
    else if (node.el.nextSibling !== place || node.el.parentNode !== parent) parent.insertBefore(node.el, place);
  }
}

/** Which node each one was before: by its key, else the next one of its kind. @param {VNode[]} before @param {VNode[]} after */
function paired(before, after) {
  const keyed = new Map();
  const unkeyed = /** @type {VNode[]} */ ([]);
  for (const node of before) {
    if (node.key === undefined) unkeyed.push(node);
    // What agents name may have one name twice.
    else if (!keyed.has(node.key)) keyed.set(node.key, node);
  }
  let next = 0;
  return after.map((node, at) => {
    if (node.key !== undefined) {
      const old = keyed.get(node.key);
      keyed.delete(node.key);
      return old?.tag === node.tag ? old : undefined;
    }
    // One of a kind that does not come any more is gone; those behind it stay the elements that they are, with what was typed.
    const isGone = ({ tag }) => tag !== node.tag && !after.some((later, where) => where > at && later.key === undefined && later.tag === tag);
    while (next < unkeyed.length && isGone(unkeyed[next])) next++;
    return unkeyed[next]?.tag === node.tag ? unkeyed[next++] : undefined;
  });
}

/** @param {any} el @param {string} name @param {any} before @param {any} value */
function set(el, name, before, value) {
  if (name === "key" || name === "ref") return;
  if (name === "css") {
    for (const key in before ?? NOTHING) if (!(key in (value ?? NOTHING))) el.style.removeProperty(key);
    for (const key in value ?? NOTHING) if (before?.[key] !== value[key]) el.style.setProperty(key, value[key]);
  } else if (name.startsWith("on")) {
    el[name] = value ?? null;
  } else if (AS_PROPERTY.has(name) || (typeof value === "object" && value !== null) || typeof value === "function") {
    el[name] = value ?? (typeof before === "boolean" ? false : "");
  } else if (value === undefined || value === null || value === false) {
    el.removeAttribute(name);
  } else if (name === "href" && !/^(https?:|#|blob:)/i.test(value)) {
    el.removeAttribute(name);
  } else {
    el.setAttribute(name, value === true ? "" : value);
  }
}

/** @param {any} one @param {any} other */
export function shallowEqual(one, other) {
  if (one === other) return true;
  const names = Object.keys(one);
  if (names.length !== Object.keys(other).length) return false;
  return names.every((name) => Object.is(one[name], other[name]));
}

/**
 * Class names, without those that do not apply.
 * @param {...(string | false | null | undefined)} names
 */
export const classes = (...names) => names.filter(Boolean).join(" ");

/** A word from elsewhere as a part of a class name: it names one class, and none of another kind. @param {unknown} word */
export const classWord = (word) => String(word).replace(/[^\w-]/g, "_").slice(0, 40);

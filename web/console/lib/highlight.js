// Colours for code: keywords, strings, numbers, comments. A few patterns per family of languages, no grammar: what is not known stays plain.

import { h } from "./dom.js";
import { look, table } from "./table.js";

/** So much of a block is coloured, and so many parts of it: it is drawn anew with each piece that comes. */
const LONGEST = 16_000;
const PARTS = 1200;

/** The end of the text; a `$` would be that of a line. */
const END = `(?![\\s\\S])`;
const STRING = `"(?:\\\\.|[^"\\\\\\n])*"?`;
const SINGLE = `'(?:\\\\.|[^'\\\\\\n])*'?`;
const SLASHES = `\\/\\/.*|\\/\\*[\\s\\S]*?(?:\\*\\/|${END})`;
const HASH = `(?<![\\w$&{])#.*`;
const NUMBER = `(?<![\\w$])\\d[\\w.]*`;
const WORD = `[A-Za-z_$][\\w$]*`;

/**
 * What a language is made of: `c` comments, `s` strings, `k` words that mean something, `f` names of tags and keys, `n` numbers. The first
 * that fits wins, so comments and strings come first.
 * @typedef {{parts: [string, string][], words?: string, isCaseless?: boolean}} Language
 */

/** @param {string} comments @param {string} strings @param {string} words @param {Partial<Language>} [more] @returns {Language} */
const program = (comments, strings, words, more) => ({ parts: [["c", comments], ["s", strings], ["n", NUMBER], ["w", WORD]], words, ...more });

const COMMON = "if else for while do switch case default break continue return try catch finally throw new this true false null class extends static import ";
const JS = `${COMMON}const let var function async await of in from export as typeof instanceof delete void yield super undefined interface type enum implements readonly public private protected declare namespace keyof satisfies`;
const JAVA = `${COMMON}package public private protected final abstract interface implements enum record void int long double float boolean char byte short throws instanceof super synchronized var val fun object when in is override open data sealed string bool using namespace get set ref out async await func let guard protocol struct extension self nil init echo foreach fn`;
const C = `${COMMON}auto const struct union enum typedef sizeof int long short char float double void unsigned signed bool extern inline volatile template typename namespace using public private protected virtual override constexpr nullptr operator delete`;
const RUST = "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool char str String Option Result Some None Ok Err";
const GO = "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var true false nil string int int64 bool byte error any";
const PYTHON = "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return True try while with yield match case self";
const RUBY = "alias and begin break case class def do else elsif end ensure false for if in module next nil not or require rescue return self super then true unless until when while yield";
const SHELL = "if then else elif fi for in do done while until case esac function return export local set unset shift exit cd echo source sudo";
const SQL = "select from where insert into values update set delete create table index view drop alter add primary key foreign references join left right inner outer on group by order having limit offset distinct union all and or not null is in like between as case when then else end begin commit with exists default unique integer text varchar";

const js = program(SLASHES, `${STRING}|${SINGLE}|\`(?:\\\\[\\s\\S]|[^\`\\\\])*\`?`, JS);
const java = program(SLASHES, `"""[\\s\\S]*?(?:"""|${END})|${STRING}|${SINGLE}`, JAVA);
const c = /** @type {Language} */ ({ parts: [["c", SLASHES], ["k", `^[ \\t]*#[ \\t]*\\w+`], ["s", `${STRING}|${SINGLE}`], ["n", NUMBER], ["w", WORD]], words: C });
const rust = program(SLASHES, `\\br#+"[\\s\\S]*?(?:"#|${END})|"(?:\\\\[\\s\\S]|[^"\\\\])*"?|'(?:\\\\[^'\\n]{1,12}|[^'\\\\\\n])'`, RUST);
const go = program(SLASHES, `${STRING}|\`[^\`]*\`?|'(?:\\\\.|[^'\\\\\\n]){1,12}'`, GO);
const python = program(HASH, `"""[\\s\\S]*?(?:"""|${END})|'''[\\s\\S]*?(?:'''|${END})|${STRING}|${SINGLE}`, PYTHON);
const ruby = program(HASH, `${STRING}|${SINGLE}`, RUBY);
const shell = program(HASH, `"(?:\\\\[\\s\\S]|[^"\\\\])*"?|'[^']*'?`, SHELL);
const sql = program(`--.*|\\/\\*[\\s\\S]*?(?:\\*\\/|${END})`, `'[^']*'?|${STRING}`, SQL, { isCaseless: true });
const json = /** @type {Language} */ ({ parts: [["c", SLASHES], ["f", `"(?:\\\\.|[^"\\\\\\n])*"(?=\\s{0,20}:)`], ["s", STRING], ["n", `-?\\b\\d[\\d.eE+-]*`], ["w", WORD]], words: "true false null" });
const yaml = /** @type {Language} */ ({ parts: [["c", HASH], ["f", `^[ \\t]*(?:- )*[\\w./$][\\w./$-]*(?=[ \\t]{0,20}:)|^\\[{1,2}[^\\]\\n]*\\]{1,2}|^[\\w.-]+(?=[ \\t]{0,20}=)`], ["s", `"""[\\s\\S]*?(?:"""|${END})|${STRING}|${SINGLE}`], ["n", NUMBER], ["w", WORD]], words: "true false null yes no on off" });
const markup = /** @type {Language} */ ({ parts: [["c", `<!--[\\s\\S]*?(?:-->|${END})`], ["k", `<[\\/!?]?[\\w:.-]+|[\\/?]?>`], ["f", `(?<![\\w:.-])[\\w:.-]+(?==["'])`], ["s", `"[^"<>]*"|'[^'<>]*'`]] });
const css = /** @type {Language} */ ({ parts: [["c", `\\/\\*[\\s\\S]*?(?:\\*\\/|${END})`], ["s", `${STRING}|${SINGLE}`], ["k", `@[\\w-]+|!important`], ["f", `(?<![\\w-])[\\w-]+(?=[ \\t]{0,20}:[ \\t])`], ["n", `#[\\da-fA-F]{3,8}\\b|-?\\b\\d[\\w.%]*`]] });
const diff = /** @type {Language} */ ({ parts: [["c", `^(?:@@|diff |index |--- |\\+\\+\\+ ).*`], ["a", `^\\+.*`], ["d", `^-.*`]] });

/** @type {Record<string, Language>} */
const LANGUAGES = table({
  js, jsx: js, mjs: js, cjs: js, ts: js, tsx: js, ["javascript"]: js, typescript: js, java, kotlin: java, kt: java, scala: java, swift: java, csharp: java, cs: java, php: java, dart: java,
  c, h: c, cpp: c, "c++": c, cc: c, hpp: c, rust, rs: rust, go, golang: go, python, py: python, ruby, rb: ruby, sh: shell, bash: shell, zsh: shell, shell, console: shell, dockerfile: shell, makefile: shell,
  sql, json, jsonc: json, json5: json, yaml, yml: yaml, toml: yaml, ini: yaml, html: markup, xml: markup, svg: markup, vue: markup, css, scss: css, less: css, diff, patch: diff,
});

/** The pattern and the words of a language, made when it is first seen. @type {Map<Language, {pattern: RegExp, kinds: string[], words: Set<string>}>} */
const made = new Map();

/** @param {Language} language */
function ready(language) {
  const before = made.get(language);
  if (before) return before;
  const pattern = new RegExp(language.parts.map(([, source]) => `(${source})`).join("|"), "gm");
  const one = { pattern, kinds: language.parts.map(([kind]) => kind), words: new Set(language.words?.split(" ")) };
  made.set(language, one);
  return one;
}

/**
 * The text of a block of code, in parts that have a class each.
 * @param {string} text
 * @param {string} info what stands behind the fence
 * @returns {import("./dom.js").Child[]}
 */
export function highlight(text, info) {
  const language = look(LANGUAGES, (/^[{.\s]*([\w+#-]+)/.exec(info)?.[1] ?? "").toLowerCase());
  if (!language) return [text];
  const { pattern, kinds, words } = ready(language);
  const out = /** @type {import("./dom.js").Child[]} */ ([]);
  const head = text.length > LONGEST ? text.slice(0, LONGEST) : text;
  let [from, count] = [0, 0];
  for (const found of head.matchAll(pattern)) {
    const kind = kinds[found.findIndex((part, at) => at > 0 && part !== undefined) - 1];
    const word = language.isCaseless ? found[0].toLowerCase() : found[0];
    if (!found[0] || (kind === "w" && !words.has(word))) continue;
    if (found.index > from) out.push(text.slice(from, found.index));
    out.push(h("span", { class: `hl-${kind === "w" ? "k" : kind}` }, found[0]));
    from = found.index + found[0].length;
    if (++count >= PARTS) break;
  }
  if (from < text.length) out.push(text.slice(from));
  return out;
}

import assert from "node:assert/strict";
import { test } from "node:test";
import { faultOf, fieldsOf, patternOf, valueOf } from "../../../web/console/state/form.js";

/** The only field of a form. */
const field = (schema, isRequired = false) => fieldsOf({ properties: { x: schema }, required: isRequired ? ["x"] : [] })[0];
const fault = (schema, written, isRequired) => {
  const of = field(schema, isRequired);
  return faultOf(of, valueOf(of, written));
};

test("several of some choices are an array, however the choices are named", () => {
  for (const items of [{ enum: ["a", "b", "c"] }, { anyOf: [{ const: "a", title: "A" }, { const: "b" }, { const: "c" }] }, { oneOf: [{ const: "a" }, { const: "b" }, { const: "c" }] }]) {
    const many = field({ type: "array", items, default: ["c", "no such"] });
    assert.deepEqual([many.kind, many.choices.map((one) => one.value), [...many.initial]], ["many", ["a", "b", "c"], [2]]);
    assert.deepEqual(valueOf(many, [0, 2]), ["a", "c"]);
    assert.deepEqual(valueOf(many, []), []);
  }
  assert.match(fault({ type: "array", items: { enum: [1, 2] }, minItems: 1 }, [], true), /at least 1/);
  assert.equal(fault({ type: "array", items: { enum: [1, 2] }, minItems: 1 }, []), "", "what is optional may be left out");
  assert.match(fault({ type: "array", items: { enum: [1, 2, 3] }, maxItems: 2 }, [0, 1, 2]), /at most 2/);
});

test("nothing is chosen for a person, and a default is", () => {
  const one = field({ type: "string", enum: ["a", "b"], enumNames: ["First"] }, true);
  assert.deepEqual([one.initial, one.choices.map((choice) => choice.title)], [-1, ["First", "b"]]);
  assert.match(faultOf(one, valueOf(one, -1)), /Choose one/);
  assert.equal(faultOf(one, valueOf(one, 1)), "");
  assert.equal(valueOf(field({ type: "integer", enum: [1, 2] }), 1), 2, "a number stays one");
  const initial = (schema) => field(schema).initial;
  assert.deepEqual([initial({ enum: ["a", "b"], default: "b" }), initial({ type: "boolean", default: true }), initial({ type: "boolean" }), initial({ type: "number", default: 0 }), initial({ type: "string", default: "x" }), initial({ type: "string", default: {} })], [1, true, false, "0", "x", ""]);
});

test("bounds are the browser's too, and are checked before anything is sent", () => {
  assert.deepEqual(field({ type: "integer", minimum: 1, maximum: 9 }).attributes, { min: "1", max: "9", step: "1" });
  assert.deepEqual(field({ type: "string", minLength: 2, maxLength: 4, pattern: "^[a-z]+$" }).attributes, { minlength: "2", maxlength: "4", pattern: "[\\s\\S]*(?:^[a-z]+$)[\\s\\S]*" });
  assert.deepEqual(["email", "uri", "date", "date-time", "color"].map((format) => field({ type: "string", format }).type), ["email", "url", "date", "datetime-local", "text"]);
  const cases = [
    [{ type: "integer", minimum: 1 }, ["0", "1.5", "x", "1e999"], ["1"]],
    [{ type: "number", maximum: 2, exclusiveMinimum: 0 }, ["2.1", "0"], ["0.5"]],
    [{ type: "string", minLength: 2, maxLength: 3 }, ["a", "abcd"], ["ab", "🙂🙂🙂"]],
    [{ type: "string", pattern: "^[a-z-]+$", maxLength: 9 }, ["A-B"], ["a-b"]],
    [{ type: "string", pattern: "b" }, ["xyz"], ["abc"]],
    [{ type: "string", format: "email" }, ["no address"], ["a@b.example"]],
    [{ type: "string", format: "uri" }, ["not one"], ["https://example.org/x"]],
    [{ type: "string", format: "date" }, ["tomorrow", "2030-13-01"], ["2030-12-31"]],
  ];
  for (const [schema, wrong, right] of cases) {
    for (const one of wrong) assert.notEqual(fault(schema, one), "", `${JSON.stringify(schema)} takes ${one}`);
    for (const one of right) assert.equal(fault(schema, one), "", `${JSON.stringify(schema)} refuses ${one}`);
  }
  assert.deepEqual([fault({ type: "string" }, "", true), fault({ type: "string", minLength: 3 }, "")], ["This is needed.", ""]);
  assert.equal(valueOf(field({ type: "string", format: "date-time" }), "2030-01-02T03:04"), new Date("2030-01-02T03:04").toISOString());
});

test("a pattern of an agent does not take the page's time", () => {
  for (const hostile of ["(a+)+$", "(a|a)*$", "(a*){9}", "a*a*a*a*b", "a{0,99}b", "a{9999}", "((a?)?)+", "[", 7, "x".repeat(300)]) {
    const pattern = patternOf(hostile);
    const began = process.cpuUsage().user;
    pattern?.test("a".repeat(128));
    assert.ok(process.cpuUsage().user - began < 5e5, String(hostile));
    if (/\)[*+]/.test(String(hostile))) assert.equal(pattern, null);
  }
  assert.ok(patternOf("^[A-Z]{2}-\\d+$")?.test("AB-12"));
});

test("a schema of any shape is read", () => {
  for (const requested of [undefined, null, 7, { properties: 7 }, { properties: { a: null, b: 7, __proto__x: {} }, required: "a" }, { properties: { a: { type: "array" }, b: { type: "array", items: 7 }, c: { enum: "abc" }, d: { oneOf: 7 }, e: { minLength: "x", maximum: {}, title: {}, description: [] } } }]) {
    for (const one of fieldsOf(requested)) assert.equal(typeof faultOf(one, valueOf(one, one.kind === "many" ? [] : one.kind === "one" ? -1 : "")), "string");
  }
});

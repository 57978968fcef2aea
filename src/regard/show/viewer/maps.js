// The maps of a page: reads the data of regard.show.viewer_data, and says what is in a map in words.

import { bytes, capital, digits, heaviest, make, plural, readable } from "./parts.js";

const TABLE_CELLS = 10000; // a larger table of numbers is of no use in a screen reader, so it is left out
const NAMED = 4; // number of partners that the readout names
const NULL = 4095; // code of a weight that is not finite
const UNMEASURED = "a difference of two maps is not measured; regard measure RUN measures the map that predictions show"; // as DIFFERENCE in regard/maps.py
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** The panels of a page: one for each model. */
export const readPanels = (data) => (data.panels ?? [data]).map(readPanel);

function readPanel(data) {
  const maps = data.maps.map((map) => readMap(map, data));
  const path = data.start?.length ? [...data.start] : [...(maps[0]?.path ?? [])];
  return { name: data.name ?? "", choices: data.choices ?? [], outputs: data.outputs ?? [], views: data.views ?? [], maps, path };
}

/** The map with its labels, its path, and its weights as rows of floats. */
function readMap(map, { labels, ends, honesty, views }) {
  const shared = (axis) => ({ rows: axis[map.rows], columns: axis[map.columns] });
  const axes = labels ? { ...shared(labels), ends: shared(ends) } : { rows: map.rows, columns: map.columns, ends: map.ends ?? {} };
  const whole = { path: [], honesty, ...map, ...axes, source: views?.[map.view] ?? null };
  whole.weights = rowsOf(map, axes.rows.length, axes.columns.length);
  return whole;
}

function rowsOf({ weights, unit = 1 }, rows, columns) {
  const numbers = new Float32Array(rows * columns);
  if (typeof weights === "string") decode(weights, unit, numbers);
  else weights.forEach((row, index) => row.forEach((weight, column) => (numbers[index * columns + column] = weight === null ? NaN : weight * unit)));
  return Array.from({ length: rows }, (_, row) => numbers.subarray(row * columns, (row + 1) * columns));
}

/** Reads weights of two letters each: the upper and the lower six bits of the thousandths, plus 1000. */
function decode(text, unit, numbers) {
  const values = new Uint8Array(128);
  for (let index = 0; index < 64; index++) values[LETTERS.charCodeAt(index)] = index;
  for (let index = 0; index < numbers.length; index++) {
    const code = (values[text.charCodeAt(2 * index)] << 6) | values[text.charCodeAt(2 * index + 1)];
    numbers[index] = code === NULL ? NaN : (code - 1000) * unit;
  }
}

/** Whether the path of a map begins like this one, in its first `length` choices. */
export const isBelow = (map, path, length) => path.slice(0, length).every((value, level) => value === map.path[level]);

/** The maps at a path: by tokens and, if they differ, by words. */
export const mapsAt = (panel, path = panel.path) => panel.maps.filter((map) => isBelow(map, path, panel.choices.length));

/** The weight that is drawn darkest in a row; on a picture, recording or series the scale may be another one. */
export const topOf = (map, row, onView = false) => (onView ? map.top?.[row] : map.tops?.[row]) ?? 1;

/** The first map less the second, or null if they have different axes. */
export function difference(one, other) {
  const isEqual = (first, second) => first.length === second.length && first.every((label, index) => label === second[index]);
  if (!isEqual(one.rows, other.rows) || !isEqual(one.columns, other.columns)) return null;
  const weights = one.weights.map((row, index) => row.map((weight, column) => weight - other.weights[index][column]));
  return { name: one.name, path: [], rows: one.rows, columns: one.columns, ends: one.ends, weights, signed: true, source: null, honesty: UNMEASURED };
}

/** The numbers of the first and the last token of a row or a column, counted from 1: a word may have several. */
export function tokensOf(map, axis, index) {
  const ends = map.ends[axis];
  return ends ? [(ends[index - 1] ?? 0) + 1, ends[index]] : [index + 1, index + 1];
}

// In words.

export function counted(map) {
  const [rows, columns] = map.size ?? [map.rows.length, map.columns.length];
  if (map.steps && !columns) return plural(rows, "step");
  return `${plural(rows, "output")} over ${plural(columns, "source")}`;
}

export function summary(map) {
  if (!map.rows.length || !map.columns.length) return counted(map);
  const parts = [counted(map)];
  if (map.signed) parts.push("difference of two maps", "blue: more weight in the first map; amber: in the second");
  else parts.push(`mean entropy ${digits(map.mean_entropy ?? mean(map.entropy))} nats`, `monotonicity ${digits(map.monotonicity)}`);
  return [...parts, ...(map.note ? [map.note] : [])].join(" · ");
}

const mean = (numbers) => (numbers.includes(null) ? null : numbers.reduce((sum, each) => sum + each, 0) / numbers.length);

/** The weights as a table for screen readers. */
export function table(map) {
  const body = make("table", {}, [make("caption", {}, [`Attention weights: ${counted(map)}`])]);
  if (map.rows.length * map.columns.length > TABLE_CELLS) return body;
  const heads = map.columns.map((label) => make("th", { scope: "col" }, [readable(label)]));
  body.append(make("tr", {}, [make("td"), ...heads]));
  map.rows.forEach((label, row) => {
    const cells = Array.from(map.weights[row], (weight) => make("td", {}, [digits(weight)]));
    body.append(make("tr", {}, [make("th", { scope: "row" }, [readable(label)]), ...cells]));
  });
  return body;
}

/** Describes a place for the readout: {row, column} is a cell, {row} an output, {column} a source. */
export function describe(map, { row, column }) {
  const label = (text) => make("bdi", {}, [readable(text)]); // a label may be written from right to left
  const strong = (text) => make("strong", {}, [label(text)]);
  const number = (value) => make("b", { class: "number" }, [digits(value)]);
  if (row !== null && column !== null) {
    return [strong(map.rows[row]), " ← ", strong(map.columns[column]), " ", number(map.weights[row][column])];
  }
  const outward = row !== null, labels = outward ? map.columns : map.rows;
  const weights = outward ? map.weights[row] : map.weights.map((each) => each[column]);
  const partners = heaviest(weights, NAMED).flatMap((index) => ["  ", label(labels[index]), " ", number(weights[index])]);
  const rest = weights.length > NAMED ? "  …" : "";
  const [name, value] = outward ? ["entropy", map.entropy?.[row]] : ["coverage", map.coverage?.[column]];
  const ending = map.signed || !weights.length ? [] : [`  · ${name} `, number(value)];
  return [strong(outward ? map.rows[row] : map.columns[column]), outward ? " ←" : " →", ...partners, rest, ...ending];
}

/** The name of a map for a button: its layer and head, or its whole path. */
export const placeName = (map) => capital(map.path.slice(-2).join(", "));

/** The pixels of a picture or the levels of a recording, decoded once. */
export function pixelsOf(view) {
  if (!decoded.has(view)) decoded.set(view, bytes(view.data));
  return decoded.get(view);
}

const decoded = new WeakMap();

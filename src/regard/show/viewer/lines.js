// Word-to-word lines: sources on the left, outputs on the right; the thickness of a line is its weight.

import { counted } from "./maps.js";
import { clipped, digits, labelled, make, shape, widest, within } from "./parts.js";

const FAINTEST = 0.01; // weights below it get no line, because it would be invisible
const NOTABLE_PARTNER = 0.05; // if a word is selected, partners with a smaller weight are not highlighted
const MOST_LINES = 20000; // more lines are too slow to draw, and nobody can tell them apart
export const MOST_WORDS = 400; // on a side: with more of them there are no lines

export function lines(map, room) {
  const [size, pitch, edge, top] = [15, 28, 48, 34];
  const [before, after] = [widest(map.columns, size), widest(map.rows, size)];
  const gap = within(Math.floor(room - before - after - 2 * edge - 30), 48, 320); // between sources and outputs
  const height = top + pitch * Math.max(map.rows.length, map.columns.length, 1) + 8;
  const start = edge + Math.ceil(before) + 12, stop = start + gap; // x of the lines' ends
  const width = stop + 12 + Math.ceil(after) + edge;
  const level = (index, count) => top + (height - 8 - top - pitch * count) / 2 + (index + 0.5) * pitch;

  const { paths, leftOut } = curves(map, start, stop, level);
  const side = (labels, axis, x, anchor, outer) =>
    labels.map((label, index) => {
      const common = { y: level(index, labels.length), "text-anchor": anchor, "dominant-baseline": "central" };
      const word = shape("text", { ...common, class: "word", x, [`data-${axis}`]: index }, [clipped(label)]);
      return { word, number: shape("text", { ...common, class: "number", x: outer }) };
    });
  const sources = side(map.columns, "column", start - 10, "end", edge - 10);
  const outputs = side(map.rows, "row", stop + 10, "start", width - edge + 10);
  const heads = [[start - 10, "end", "Source"], [stop + 10, "start", "Output"]].map(([x, anchor, text]) =>
    shape("text", { class: "head", x, y: 18, "text-anchor": anchor }, [text]),
  );
  const described = `Lines from sources to outputs, as thick as their weights: ${counted(map)}`;
  const words = [...sources, ...outputs].flatMap(({ word, number }) => [word, number]);
  const parts = [shape("g", { class: "paths" }, paths), ...heads, ...words];
  const svg = shape("svg", { class: "lines", width, height, "font-size": size, role: "img", "aria-label": described }, parts);
  const keys = `Lines, ${counted(map)}. Up and down move over words, left and right between sources and outputs.`;
  const picture = make("div", { class: "picture", "aria-label": keys }, [svg]);

  const mark = (place, revealed) => {
    const { row, column } = place ?? { row: null, column: null }, last = revealed ?? map.rows.length - 1;
    const meets = (other, own) => own === null || own === other;
    svg.classList.toggle("some", place !== null);
    for (const path of paths) {
      const ends = labelled(path);
      path.classList.toggle("on", place !== null && meets(ends.row, row) && meets(ends.column, column));
      path.classList.toggle("future", ends.row > last);
    }
    sources.forEach((each, index) => light(each, index === column, row !== null && meets(index, column) ? map.weights[row][index] : null));
    outputs.forEach((each, index) => {
      light(each, index === row, column !== null && meets(index, row) ? map.weights[index][column] : null);
      each.word.classList.toggle("future", index > last);
    });
  };
  const legend = [`line: weight from ${FAINTEST} on${leftOut ? `; the ${leftOut} weakest lines are left out` : ""}`];
  return { picture, find: (event) => labelled(event.target), move: overWords(map), mark, legend };
}

/** A curve for each visible weight; the strongest are drawn last, on top. */
function curves(map, start, stop, level) {
  const visible = [];
  map.weights.forEach((weights, row) =>
    weights.forEach((weight, column) => {
      if (Math.abs(weight) >= FAINTEST) visible.push([Math.abs(weight), row, column, weight < 0]);
    }),
  );
  visible.sort(([one], [other]) => one - other);
  const paths = visible.slice(-MOST_LINES).map(([weight, row, column, isMinus]) => {
    const [from, to, bend] = [level(column, map.columns.length), level(row, map.rows.length), (stop - start) * 0.45];
    const d = `M${start} ${from}C${start + bend} ${from} ${stop - bend} ${to} ${stop} ${to}`, strong = within(weight, 0, 1);
    const line = shape("path", { d, "data-row": row, "data-column": column, "stroke-width": 0.8 + 5.2 * strong });
    if (isMinus) line.classList.add("minus");
    line.style.setProperty("--weight", 0.06 + 0.84 * strong);
    return line;
  });
  return { paths, leftOut: visible.length - paths.length };
}

function light({ word, number }, isOwn, weight) {
  const isPartner = weight !== null && Math.abs(weight) >= NOTABLE_PARTNER;
  word.classList.toggle("on", isOwn);
  word.classList.toggle("partner", isPartner);
  number.textContent = weight === null ? "" : digits(weight);
  number.classList.toggle("partner", isPartner);
}

/** Moves over words; the first press chooses the first source, left and right go straight across. */
const overWords = (map) => (here, downward, onward) => {
  if (!map.rows.length || !map.columns.length) return null;
  if (!here) return { row: null, column: 0 };
  const right = onward ? onward > 0 : here.row !== null;
  const [at, from] = here.row !== null ? [here.row, map.rows.length] : [here.column, map.columns.length];
  const count = (right ? map.rows : map.columns).length;
  const crossed = Math.round(at + (count - from) / 2); // both sides are centred
  const index = within(right === (here.row !== null) ? at + downward : crossed, 0, count - 1);
  return right ? { row: index, column: null } : { row: null, column: index };
};

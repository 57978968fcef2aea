// Interactive viewer of an attention map: a heat map and word-to-word lines, with the numbers of each cell or word.
// One module without dependencies. Labels are inserted as text, never as markup.

const NAMESPACE = "http://www.w3.org/2000/svg";
const LONGEST = 24; // longest label that is drawn, in letters; the readout shows the whole label
const SINE = 0.866, COSINE = 0.5; // of 60 degrees, the angle of long column labels
const FAINTEST = 0.01; // weights below it get no line, because it would be invisible
const NOTABLE = 0.05; // if a word is selected, partners with a smaller weight are not highlighted
const TABLE_CELLS = 40000; // a larger table of numbers is of no use in a screen reader, so it is left out
const NAMED = 4; // number of partners that the readout names
const LEAST = 11; // least size of a cell with a label of its own, in pixels; the cells of large maps are smaller
const SMALL = 14; // least size of a cell that was made smaller because the window is narrow, in pixels
const LARGE = 400; // rows or columns above which cells are smaller
const MOST_LINES = 20000; // more lines are too slow to draw, and nobody can tell them apart
const HINT = "Point at a cell or a word to see its numbers, or focus the picture and use the arrow keys.";
const VIEWS = { heat: "Heat map", lines: "Lines" };
const NAMES = { picture: "Picture", recording: "Recording", series: "Forecast" };
const MOST_PANELS = 120; // rows above which words have no panels of their own
const STEP = 900; // milliseconds of a word while the words are played
const LUMA = [0.299, 0.587, 0.114], AMBER = [255, 176, 32], DIM = 0.5, PALE = 0.35, GLOW = 0.25; // as in show/views.py
const FORECAST = "Point at a step of the forecast to see its numbers, or focus the picture and use the arrow keys.";
const WALK = "Point at a word to see where its weight is, or focus the picture and use the arrow keys.";

/** Shows `page` ({title, maps: [{name, rows, columns, weights, entropy, coverage, monotonicity}]}) inside `root`.
 * The maps of large pages also have {unit, size, note, mean_entropy}: weights are multiples of `unit`, one for several cells.
 * Maps whose shades do not go from 0 to 1 have {tops, darkest}: the weight of the darkest shade in each row, and its name.
 * Pages of several maps have {choices, start, labels}: `path` says for each of the choices which one a map is, `start` is
 * the path of the first map that is shown, and `rows` and `columns` are indices of `labels`.
 * Pages with pictures or recordings have {views}; a map that is drawn on one has its index as `view`, and for each row the
 * weight `top` that is drawn brightest. Over a picture it has {grid: [height, width]}, over a recording {seconds, times}, over
 * a series {steps: [of a row, of a column], reach}: the last of its `reach` columns is the step before the last of the view. */
export function view(root, page, start = page.views ? "source" : "heat") {
  const pages = page.maps.map((map) => scaled(map, page.labels));
  const path = page.start?.length ? [...page.start] : [...pages[0].path];
  const state = { view: start, unit: page.views ? 1 : 0, map: pages[0] }; // on a picture, words are whole
  const readout = make("p", { class: "readout", role: "status" });
  const stage = make("div", { class: "stage" });
  const caption = make("p", { class: "caption" });
  const isDrawn = () => state.map.view !== undefined; // on a picture or a recording
  const current = () => (state.view === "source" && !isDrawn() ? "heat" : state.view);
  const hint = () => (current() !== "source" ? HINT : page.views[state.map.view].kind === "series" ? FORECAST : WALK);
  const say = (parts) => readout.replaceChildren(...(parts ?? [hint()]));

  const turn = () => {
    for (const figure of stage.querySelectorAll("figure")) figure.hidden = figure.dataset.view !== current();
    say(null);
  };
  let room = 0; // the width that a picture has without scrolling, in pixels
  const draw = () => {
    room = roomIn(root);
    const own = pages.filter((map) => isBelow(map, path, path.length));
    units.replaceChildren(...(own.length > 1 ? [unitChoice(own)] : []));
    state.map = own[Math.min(state.unit, own.length - 1)];
    const drawn = isDrawn() ? [sourceDrawing(state.map, page.views[state.map.view], say, room)] : [];
    const plain = [heatMap(state.map, say, room), lineDrawing(state.map, say, room), make("div", { class: "unseen" }, [table(state.map)])];
    stage.replaceChildren(...drawn, ...plain);
    caption.textContent = summary(state.map);
    turn();
  };
  const first = page.views ? { source: NAMES[page.views[0].kind] } : {};
  const others = page.views && pages.every((map) => !map.columns.length) ? {} : VIEWS; // a forecast without a map has none
  const views = choice("View", Object.entries({ ...first, ...others }), start, (name) => {
    state.view = name;
    turn();
  });
  const unitChoice = (own) => {
    const chosen = String(Math.min(state.unit, own.length - 1));
    return choice("Unit", own.map((map, index) => [String(index), capital(map.name)]), chosen, (index) => {
      state.unit = Number(index);
      draw();
    });
  };
  const units = make("div");
  const bar = make("div", { class: "bar" }, [...selects(page.choices ?? [], pages, path, draw), ...(views.children.length > 1 ? [views] : []), units]);
  const title = make("h1", {}, [page.title || "Attention map"]);
  root.classList.add("regard");
  root.replaceChildren(make("header", {}, [title, bar]), readout, stage, caption);
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", () => {
    if (roomIn(root) !== room) draw();
  });
}

// Parts of both views.

function make(name, attributes = {}, children = [], namespace = "http://www.w3.org/1999/xhtml") {
  const element = document.createElementNS(namespace, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const shape = (name, attributes, children) => make(name, attributes, children, NAMESPACE);

function choice(label, options, chosen, choose) {
  const group = make("div", { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = make("button", { type: "button", "aria-pressed": value === chosen, value }, [text]);
    button.addEventListener("click", () => {
      for (const each of group.children) each.setAttribute("aria-pressed", each === button);
      choose(value);
    });
    group.append(button);
  }
  return group;
}

/** Whether the path of a map begins like this one, in its first `length` choices. */
const isBelow = (map, path, length) => path.slice(0, length).every((value, level) => value === map.path[level]);

/** A select element for each choice; it has the options that maps have under the choices before it. */
function selects(names, pages, path, changed) {
  const boxes = names.map((name, level) => {
    const box = make("select", { "aria-label": name, title: name });
    box.addEventListener("change", () => {
      path[level] = box.value;
      fill();
      changed();
    });
    return box;
  });
  const fill = () =>
    boxes.forEach((box, level) => {
      const options = [...new Set(pages.filter((map) => isBelow(map, path, level)).map((map) => map.path[level]))];
      if (!options.includes(path[level])) path[level] = options[0];
      box.replaceChildren(...options.map((option) => make("option", { value: option }, [option])));
      box.value = path[level];
      box.disabled = options.length < 2;
    });
  fill();
  return boxes;
}

/** The map with its weights as numbers from 0 to 1, its labels and its path. */
function scaled(map, labels) {
  const axes = labels ? { rows: labels[map.rows], columns: labels[map.columns] } : {};
  const whole = { path: [], ...map, ...axes };
  if (!map.unit) return whole;
  return { ...whole, weights: map.weights.map((row) => row.map((weight) => (weight === null ? null : weight * map.unit))) };
}

/** The width inside the card if it is as wide as it may be: without its margin, border and padding. */
function roomIn(root) {
  const style = getComputedStyle(root);
  return root.parentElement.clientWidth - 18 - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const digits = (number) => (number === null ? "NaN" : number.toFixed(3));
const mean = (numbers) => (numbers.includes(null) ? null : numbers.reduce((sum, each) => sum + each, 0) / numbers.length);
const within = (number, least, most) => Math.min(Math.max(number, least), most);

function clipped(label) {
  const letters = [...label];
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join("") + "…" : label;
}

const single = (label) => [...label.normalize("NFC")].length === 1;

const ruler = document.createElement("canvas").getContext("2d");

function widest(labels, size) {
  ruler.font = `${size}px ${getComputedStyle(document.documentElement).getPropertyValue("--letters")}`;
  return Math.max(0, ...labels.map((label) => ruler.measureText(clipped(label)).width));
}

function counted(map) {
  const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const [rows, columns] = map.size ?? [map.rows.length, map.columns.length];
  if (map.steps && !columns) return plural(rows, "step");
  return `${plural(rows, "output")} over ${plural(columns, "source")}`;
}

function summary(map) {
  if (!map.rows.length || !map.columns.length) return counted(map);
  const entropy = `mean entropy ${digits(map.mean_entropy ?? mean(map.entropy))} nats`;
  return `${counted(map)} · ${entropy} · monotonicity ${digits(map.monotonicity)}` + (map.note ? ` · ${map.note}` : "");
}

function table(map) {
  const body = make("table", {}, [make("caption", {}, [`Attention weights: ${counted(map)}`])]);
  if (map.rows.length * map.columns.length > TABLE_CELLS) return body;
  const heads = map.columns.map((label) => make("th", { scope: "col" }, [label]));
  body.append(make("tr", {}, [make("td"), ...heads]));
  map.rows.forEach((label, row) => {
    const cells = map.weights[row].map((weight) => make("td", {}, [digits(weight)]));
    body.append(make("tr", {}, [make("th", { scope: "row" }, [label]), ...cells]));
  });
  return body;
}

/** Describes a place for the readout: {row, column} is a cell, {row} an output, {column} a source. */
function describe(map, { row, column }) {
  const strong = (text) => make("strong", {}, [make("bdi", {}, [text])]); // a label may be written from right to left
  const number = (value) => make("b", { class: "number" }, [digits(value)]);
  if (row !== null && column !== null) {
    return [strong(map.rows[row]), " ← ", strong(map.columns[column]), " ", number(map.weights[row][column])];
  }
  const outward = row !== null;
  const labels = outward ? map.columns : map.rows;
  const weights = outward ? map.weights[row] : map.weights.map((each) => each[column]);
  const order = [...weights.keys()].sort((one, other) => weights[other] - weights[one]).slice(0, NAMED);
  const partners = order.flatMap((index) => ["  ", make("bdi", {}, [labels[index]]), " ", number(weights[index])]);
  const rest = weights.length > NAMED ? "  …" : "";
  return outward
    ? [strong(map.rows[row]), " ←", ...partners, rest, "  · entropy ", number(map.entropy[row])]
    : [strong(map.columns[column]), " →", ...partners, rest, "  · coverage ", number(map.coverage[column])];
}

/** Adds pointer and keyboard control: `find` maps an event to a place, `move` a key, `mark` highlights the place. */
function explore(picture, { find, move, mark }) {
  let here = null;
  const go = (place) => {
    if (place?.row === here?.row && place?.column === here?.column) return; // a small move within one cell
    mark((here = place));
  };
  picture.addEventListener("pointermove", (event) => go(find(event)));
  picture.addEventListener("pointerdown", (event) => go(find(event)));
  picture.addEventListener("pointerleave", () => go(null));
  picture.addEventListener("blur", () => go(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key !== "Escape" && !step) return;
    event.preventDefault();
    go(step ? move(here, ...step) : null);
    const marked = picture.querySelector(".band[visibility='visible']") ?? picture.querySelector(".on");
    marked?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return go;
}

function labelled(target) {
  const number = (text) => (text === undefined ? null : Number(text));
  const place = { row: number(target.dataset.row), column: number(target.dataset.column) };
  return place.row === null && place.column === null ? null : place;
}

// The heat map: cells on a canvas, labels and highlights in an SVG on top of it.

function heatMap(map, say, room) {
  const [rows, columns] = [map.rows.length, map.columns.length];
  const [most, least] = Math.max(rows, columns) > LARGE ? [1600, 2] : [760, LEAST];
  const turned = map.columns.filter((label) => !single(label));
  const letter = (cell) => within(cell * 0.7, 9, 14); // font size of the labels
  const needed = (cell) => columns * cell + widest(map.rows, letter(cell)) + COSINE * widest(turned, letter(cell)) + 28;
  let cell = within(Math.floor(most / Math.max(rows, columns, 1)), least, 32);
  while (cell > SMALL && needed(cell) > room) cell--;
  const [wide, high] = [columns, rows].map((count) => (count > LARGE ? cell : Math.max(cell, LEAST)));
  const size = letter(cell);
  const rise = widest(turned, size);
  const left = Math.ceil(widest(map.rows, size)) + 14;
  const top = Math.ceil(turned.length ? SINE * rise + size : size) + 12;
  const [across, down] = [columns * wide, rows * high];
  const width = left + across + Math.ceil(COSINE * rise) + 12;

  const canvas = paint(map, wide, high);
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${across}px`, height: `${down}px` });
  const rowLabels = thinned(map.rows, high).map(([label, row]) => {
    const y = top + (row + 0.5) * high;
    const place = { x: left - 8, y, "text-anchor": "end", "dominant-baseline": "central", "data-row": row };
    return shape("text", place, [clipped(label)]);
  });
  const columnLabels = thinned(map.columns, wide).map(([label, column]) => {
    const [x, y] = [left + (column + 0.5) * wide, top - 9];
    const place = { x: x + size * 0.3, y, transform: `rotate(-60 ${x} ${y})` };
    const upright = { x, y, "text-anchor": "middle" };
    return shape("text", { ...(single(label) ? upright : place), "data-column": column }, [clipped(label)]);
  });
  const band = shape("rect", { class: "band", visibility: "hidden", rx: 3 });
  const frame = { class: "labels", width, height: top + down + 4, "font-size": size, "aria-hidden": "true" };
  const overlay = shape("svg", frame, [...rowLabels, ...columnLabels, band]);
  const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  const keys = `Heat map, ${counted(map)}. The arrow keys move over its cells.`;
  const picture = make("div", { class: "picture", tabindex: 0, role: "application", "aria-label": keys });
  Object.assign(picture.style, { width: `${width}px`, height: `${top + down + 4}px` });
  picture.append(canvas, overlay, tip);

  const find = (event) => {
    if (event.target !== canvas) return labelled(event.target);
    const box = canvas.getBoundingClientRect();
    const row = within(Math.floor((event.clientY - box.top) / high), 0, rows - 1);
    return { row, column: within(Math.floor((event.clientX - box.left) / wide), 0, columns - 1) };
  };
  const move = (here, downward, onward) => {
    if (!rows || !columns) return null;
    if (!here) return { row: 0, column: 0 };
    const row = within((here.row ?? 0) + downward, 0, rows - 1);
    return { row, column: within((here.column ?? 0) + onward, 0, columns - 1) };
  };
  const mark = (place) => {
    const { row, column } = place ?? { row: null, column: null };
    for (const label of rowLabels) label.classList.toggle("on", Number(label.dataset.row) === row);
    for (const label of columnLabels) label.classList.toggle("on", Number(label.dataset.column) === column);
    const box = {
      x: left + (column ?? 0) * wide, width: column === null ? across : wide,
      y: top + (row ?? 0) * high, height: row === null ? down : high,
      visibility: place ? "visible" : "hidden",
    };
    for (const [key, value] of Object.entries(box)) band.setAttribute(key, value);
    tip.hidden = row === null || column === null;
    if (!tip.hidden) {
      tip.textContent = digits(map.weights[row][column]);
      Object.assign(tip.style, { left: `${box.x + wide / 2}px`, top: `${box.y - 6}px` });
    }
    say(place && describe(map, place));
  };
  explore(picture, { find, move, mark });
  return make("figure", { "data-view": "heat" }, [make("div", { class: "scroll" }, [picture]), legend(map)]);
}

/** The labels that have room beside cells of that size, each with its index. */
function thinned(labels, cell) {
  const every = Math.ceil(LEAST / cell);
  return labels.map((label, index) => [label, index]).filter(([, index]) => index % every === 0);
}

function paint(map, wide, high) {
  const [across, down] = [map.columns.length * wide, map.rows.length * high];
  const canvas = make("canvas", { role: "img", "aria-label": `Heat map of attention weights, ${counted(map)}` });
  const dots = Math.min(devicePixelRatio, 16000 / Math.max(across, down, 1)); // browsers refuse larger canvases
  [canvas.width, canvas.height] = [Math.ceil(across * dots), Math.ceil(down * dots)];
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const ramp = [0, 1, 2, 3, 4].map((step) => style.getPropertyValue(`--ramp-${step}`).trim());
  const gap = Math.min(wide, high) < LEAST ? 0 : 1; // between cells, if there is room for it
  const shades = new Map(); // many weights are the same
  const shade = (weight, row) => {
    const part = (weight ?? 0) / (map.tops?.[row] ?? 1);
    if (!shades.has(part)) shades.set(part, tint(ramp, part));
    return shades.get(part);
  };
  pen.scale(dots, dots);
  pen.fillStyle = style.getPropertyValue("--hairline");
  pen.fillRect(0, 0, across, down);
  if (!gap && across && down) {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(dotted(map, shade), 0, 0, across, down);
    return canvas;
  }
  map.weights.forEach((weights, row) =>
    weights.forEach((weight, column) => {
      pen.fillStyle = `rgb(${shade(weight, row).join(" ")})`;
      pen.fillRect(column * wide + gap / 2, row * high + gap / 2, wide - gap, high - gap);
    }),
  );
  return canvas;
}

/** A canvas with one dot for each weight: a million of them take too long to draw one by one. */
function dotted(map, shade) {
  const canvas = make("canvas", { width: map.columns.length, height: map.rows.length });
  const image = new ImageData(map.columns.length, map.rows.length);
  const width = map.columns.length;
  map.weights.flat().forEach((weight, index) => image.data.set([...shade(weight, Math.floor(index / width)), 255], 4 * index));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function tint(ramp, weight) {
  const place = within(weight, 0, 1) * (ramp.length - 1);
  const lower = Math.min(Math.floor(place), ramp.length - 2);
  const parts = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  const [from, to] = [parts(ramp[lower]), parts(ramp[lower + 1])];
  return from.map((part, index) => Math.round(part + (to[index] - part) * (place - lower)));
}

function legend(map) {
  const scale = make("span", { class: "scale" }, ["0", make("span", { class: "ramp" }), map.darkest ?? "1"]);
  return make("figcaption", { class: "legend" }, ["rows: outputs · columns: sources", scale]);
}

// The line view: sources on the left, outputs on the right; the thickness of a line is its weight.

function lineDrawing(map, say, room) {
  const [size, pitch, edge, top] = [15, 28, 48, 34];
  const beside = widest(map.columns, size) + widest(map.rows, size) + 2 * edge + 26;
  const gap = within(Math.floor(room - beside), 60, 260); // between sources and outputs
  const height = top + pitch * Math.max(map.rows.length, map.columns.length, 1) + 8;
  const start = edge + Math.ceil(widest(map.columns, size)) + 12; // x of the lines' left ends
  const stop = start + gap;
  const width = stop + 12 + Math.ceil(widest(map.rows, size)) + edge;
  const level = (index, count) => top + (height - 8 - top - pitch * count) / 2 + (index + 0.5) * pitch;

  const visible = [];
  map.weights.forEach((weights, row) =>
    weights.forEach((weight, column) => {
      if (weight !== null && weight >= FAINTEST) visible.push([weight, row, column]);
    }),
  );
  visible.sort(([one], [other]) => one - other); // so that the strongest are drawn last, on top
  const paths = visible.slice(-MOST_LINES).map(([weight, row, column]) => {
    const [from, to] = [level(column, map.columns.length), level(row, map.rows.length)];
    const bend = gap * 0.45;
    const d = `M${start} ${from}C${start + bend} ${from} ${stop - bend} ${to} ${stop} ${to}`;
    const strong = within(weight, 0, 1);
    const line = shape("path", { d, "data-row": row, "data-column": column, "stroke-width": 0.8 + 5.2 * strong });
    line.style.setProperty("--weight", 0.06 + 0.84 * strong);
    return line;
  });

  const side = (labels, axis, x, anchor, outer) =>
    labels.map((label, index) => {
      const y = level(index, labels.length);
      const common = { y, "text-anchor": anchor, "dominant-baseline": "central" };
      const word = shape("text", { ...common, class: "word", x, [`data-${axis}`]: index }, [clipped(label)]);
      return { word, number: shape("text", { ...common, class: "number", x: outer }) };
    });
  const sources = side(map.columns, "column", start - 10, "end", edge - 10);
  const outputs = side(map.rows, "row", stop + 10, "start", width - edge + 10);
  const heads = [[start - 10, "end", "Source"], [stop + 10, "start", "Output"]].map(([x, anchor, text]) =>
    shape("text", { class: "head", x, y: 18, "text-anchor": anchor }, [text]),
  );
  const described = `Lines from sources to outputs, as thick as their weights: ${counted(map)}`;
  const svg = shape("svg", { class: "lines", width, height, "font-size": size, role: "img", "aria-label": described }, [
    shape("g", { class: "paths" }, paths),
    ...heads,
    ...[...sources, ...outputs].flatMap(({ word, number }) => [word, number]),
  ]);
  const keys = `Lines, ${counted(map)}. Up and down move over words, left and right between sources and outputs.`;
  const picture = make("div", { class: "picture", tabindex: 0, role: "application", "aria-label": keys }, [svg]);

  const move = (here, downward, onward) => {
    if (!map.rows.length || !map.columns.length) return null;
    if (!here) return { row: null, column: 0 };
    const right = onward ? onward > 0 : here.row !== null;
    const [at, from] = here.row !== null ? [here.row, map.rows.length] : [here.column, map.columns.length];
    const count = (right ? map.rows : map.columns).length;
    const crossed = Math.round(at + (count - from) / 2); // both sides are centred: go straight across
    const index = within(right === (here.row !== null) ? at + downward : crossed, 0, count - 1);
    return right ? { row: index, column: null } : { row: null, column: index };
  };
  const mark = (place) => {
    const { row, column } = place ?? { row: null, column: null };
    const meets = (other, own) => own === null || own === other;
    svg.classList.toggle("some", place !== null);
    for (const path of paths) {
      const ends = labelled(path);
      path.classList.toggle("on", place !== null && meets(ends.row, row) && meets(ends.column, column));
    }
    const light = ({ word, number }, own, partner, weight) => {
      word.classList.toggle("on", own);
      word.classList.toggle("partner", partner && weight >= NOTABLE);
      number.textContent = partner ? digits(weight) : "";
      number.classList.toggle("partner", partner && weight >= NOTABLE);
    };
    sources.forEach((each, index) => {
      const partner = row !== null && meets(index, column);
      light(each, index === column, partner, partner ? map.weights[row][index] : 0);
    });
    outputs.forEach((each, index) => {
      const partner = column !== null && meets(index, row);
      light(each, index === row, partner, partner ? map.weights[index][column] : 0);
    });
    say(place && describe(map, place));
  };
  explore(picture, { find: (event) => labelled(event.target), move, mark });
  const leftOut = visible.length - paths.length;
  const note = leftOut ? [make("figcaption", { class: "legend" }, [`The ${leftOut} weakest lines are left out.`])] : [];
  return make("figure", { "data-view": "lines" }, [...note, make("div", { class: "scroll" }, [picture])]);
}

// Maps on pictures, recordings and series: the words or steps are walked with the pointer, with the arrow keys, or by the
// play button.

function sourceDrawing(map, view, say, room) {
  const drawn = { picture: filmstrip, recording, series: forecast }[view.kind](map, view, room);
  const { picture, find, mark, tell = (place) => describe(map, place), legend = legendOf(map) } = drawn;
  let chosen = null, timer = null;
  const move = (here, downward, onward) => {
    if (!map.rows.length) return null;
    stop();
    return { row: here?.row == null ? 0 : within(here.row + downward + onward, 0, map.rows.length - 1), column: null };
  };
  const go = explore(picture, {
    find: (event) => {
      stop();
      return find(event, chosen) ?? (chosen === null ? null : { row: chosen, column: null });
    },
    move,
    mark: (place) => {
      chosen = place?.row ?? null;
      mark(place);
      say(place && tell(place));
    },
  });
  const button = make("button", { type: "button", class: "play" }, ["▶ Play"]);
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶ Play";
  };
  const step = () => {
    const row = chosen === null ? 0 : chosen + 1;
    if (row >= map.rows.length || !picture.isConnected) return stop();
    go({ row, column: null });
  };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (chosen === map.rows.length - 1) go(null); // begins again
    button.textContent = "❚❚ Pause";
    timer = setInterval(step, STEP);
    step();
  });
  const bar = make("div", { class: "legend" }, [button, ...[legend].flat()]);
  return make("figure", { "data-view": "source" }, [make("div", { class: "scroll" }, [picture]), bar]);
}

const legendOf = (map) => (map.grid ? `${map.grid[0]} × ${map.grid[1]} cells · brighter: more weight` : "stronger colour: more weight, louder sound");
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const largest = (weights) => weights.reduce((best, weight) => Math.max(best, weight ?? 0), 0);

function filmstrip(map, view) {
  const pixels = bytes(view.data);
  const large = make("canvas", { class: "large", role: "img", "aria-label": "The picture under the weights of the chosen word" });
  const show = (row) => compose(large, view, pixels, row === null ? null : heat(map, row));
  const panels = map.rows.map((label, row) => {
    const word = make("span", { class: "word" }, [clipped(label)]);
    const number = make("span", { class: "number" }, [largest(map.weights[row]).toFixed(2)]);
    const panel = make("div", { class: "panel", "data-row": row }, [make("div", {}, [word, number])]);
    if (map.rows.length <= MOST_PANELS) panel.append(thumbnail(compose(make("canvas"), view, pixels, heat(map, row))));
    return panel;
  });
  const keys = `Picture, ${counted(map)}. The arrow keys walk the words.`;
  const strip = make("div", { class: "strip" }, panels);
  const picture = make("div", { class: "picture film", tabindex: 0, role: "application", "aria-label": keys }, [large, strip]);
  const find = (event, row) => {
    if (event.target !== large) return labelled(event.target);
    const box = large.getBoundingClientRect(), [high, wide] = map.grid;
    const down = within(Math.floor(((event.clientY - box.top) / box.height) * high), 0, high - 1);
    const across = within(Math.floor(((event.clientX - box.left) / box.width) * wide), 0, wide - 1);
    return { row, column: down * wide + across };
  };
  const mark = (place) => {
    panels.forEach((panel, row) => panel.classList.toggle("on", row === place?.row));
    show(place?.row ?? null);
  };
  show(null);
  return { picture, find, mark };
}

function thumbnail(whole) {
  const dots = 2, side = 104, scale = (side * dots) / Math.max(whole.width, whole.height);
  const canvas = make("canvas", { "aria-hidden": "true" });
  [canvas.width, canvas.height] = [whole.width, whole.height].map((size) => Math.max(1, Math.round(size * scale)));
  Object.assign(canvas.style, { width: `${canvas.width / dots}px`, height: `${canvas.height / dots}px` });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(whole, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** For each dot along one side the cell before it, the cell after it, and the share of the first, as in show/views.py. */
function interpolation(cells, dots) {
  return Array.from({ length: dots }, (_, dot) => {
    const place = within(((dot + 0.5) * cells) / dots - 0.5, 0, cells - 1), before = Math.floor(place);
    return [before, Math.min(before + 1, cells - 1), Math.cos(((place - before) * Math.PI) / 2) ** 2];
  });
}

/** The function that gives the smooth weights of a row, from 0 to 1, for the lines of an image in turn. */
function heat(map, row) {
  const [high, wide] = map.grid;
  const weight = (down, across) => (map.weights[row][down * wide + across] ?? 0) / (map.top[row] ?? 1);
  return (height, width) => {
    const [lines, dots] = [interpolation(high, height), interpolation(wide, width)];
    return (y) => {
      const [upper, lower, share] = lines[y];
      const cells = Array.from({ length: wide }, (_, x) => share * weight(upper, x) + (1 - share) * weight(lower, x));
      return dots.map(([before, after, part]) => within(part * cells[before] + (1 - part) * cells[after], 0, 1));
    };
  };
}

/** Draws the picture under a heat map, or alone: dark and almost grey without weight, glowing in its own colours with it. */
function compose(canvas, view, pixels, heated) {
  const factor = Math.max(1, Math.round(384 / Math.max(view.width, view.height))); // small pictures have large dots
  const [width, height] = [view.width * factor, view.height * factor];
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d"), image = pen.createImageData(width, height), line = heated?.(height, width);
  for (let y = 0, to = 0; y < height; y++) {
    const weights = line?.(y);
    for (let x = 0; x < width; x++, to += 4) {
      const from = 3 * (Math.floor(y / factor) * view.width + Math.floor(x / factor));
      const grey = LUMA[0] * pixels[from] + LUMA[1] * pixels[from + 1] + LUMA[2] * pixels[from + 2];
      for (let part = 0; part < 3; part++) {
        const own = pixels[from + part];
        const [dark, bright] = [(grey + (own - grey) * PALE) * DIM, own + (AMBER[part] - own) * GLOW];
        image.data[to + part] = weights ? dark + (bright - dark) * weights[x] : own;
      }
      image.data[to + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

function recording(map, view, room) {
  const rows = map.rows.length, tall = within(Math.floor(480 / Math.max(rows, 1)), 3, 22), size = within(tall * 0.65, 9, 14);
  const [sound, gap, beside] = [150, 26, 64]; // height of the spectrogram, space above it and for the times beside it
  const whole = Math.max(view.seconds, map.columns.length * map.seconds);
  const left = Math.ceil(widest(map.rows, size)) + 14, down = rows * tall, top = down + gap;
  const across = map.columns.length > 680 ? 1000 : within(Math.floor(room - left - beside), 200, 680); // no narrower than its columns
  const [width, height] = [left + across + beside, top + sound + 26];
  const at = (seconds) => left + (seconds / whole) * across;

  const canvas = make("canvas", { role: "img", "aria-label": `Alignment above the spectrogram, ${counted(map)}` });
  const dots = Math.min(devicePixelRatio, 4);
  [canvas.width, canvas.height] = [across * dots, (top + sound) * dots];
  Object.assign(canvas.style, { left: `${left}px`, top: 0, width: `${across}px`, height: `${top + sound}px` });
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const ramp = [0, 1, 2, 3, 4].map((step) => style.getPropertyValue(`--ramp-${step}`).trim());
  pen.scale(dots, dots);
  pen.imageSmoothingEnabled = false;
  const wide = (map.seconds / whole) * across;
  if (rows) pen.drawImage(dotted(map, (weight, row) => tint(ramp, (weight ?? 0) / (map.top[row] ?? 1))), 0, 0, wide * map.columns.length, down);
  pen.imageSmoothingEnabled = true;
  const length = (view.seconds / whole) * across;
  pen.drawImage(spectrum(view, style.getPropertyValue("--ink")), 0, top, length, sound);

  const rowLabels = thinned(map.rows, tall).map(([label, row]) => {
    const place = { x: left - 8, y: (row + 0.5) * tall, "text-anchor": "end", "dominant-baseline": "central", "data-row": row };
    return shape("text", place, [clipped(label)]);
  });
  const times = map.times.map((time, row) => ({ time, row })).filter(({ time }) => time !== null);
  const timeLabels = tall < LEAST ? [] : times.map(({ time, row }) =>
    shape("text", { class: "time", x: left + across + 8, y: (row + 0.5) * tall, "dominant-baseline": "central" }, [`${time.toFixed(2)} s`]),
  );
  const ticks = times.map(({ time, row }) => shape("line", { class: "tick", x1: at(time), x2: at(time), y1: top - 4, y2: top + sound, "data-row": row }));
  const spoken = [];
  let end = -Infinity;
  for (const { time, row } of [...times].sort((one, other) => one.time - other.time)) {
    if (at(time) < end + 8) continue; // no room
    spoken.push(shape("text", { class: "spoken", x: at(time), y: top - 8, "font-size": 12, "data-row": row }, [clipped(map.rows[row])]));
    end = at(time) + widest([map.rows[row]], 12);
  }
  const scale = axis(whole, within(Math.floor(across / 56), 3, 11)).map(([time, label]) => shape("text", { class: "time", x: at(time), y: top + sound + 18, "text-anchor": "middle" }, [label]));
  const pitch = [[`${view.highest / 1000} kHz`, top + 9], ["0 Hz", top + sound - 3]].map(([label, y]) =>
    shape("text", { class: "time", x: left + across + 8, y }, [label]),
  );
  const between = tall < LEAST ? [] : map.rows.slice(1).map((_, row) =>
    shape("line", { class: "between", x1: left, x2: left + across, y1: (row + 1) * tall, y2: (row + 1) * tall }),
  );
  const frames = [[0, down], [top, sound]].map(([y, tallness]) => shape("rect", { class: "frame", x: left, y, width: across, height: tallness }));
  const band = shape("rect", { class: "band", visibility: "hidden", rx: 2, x: left, width: across, height: tall });
  const curve = shape("polyline", { class: "curve" });
  const parts = [...between, ...frames, ...rowLabels, ...timeLabels, ...scale, ...pitch, ...ticks, curve, ...spoken, band];
  const overlay = shape("svg", { class: "labels", width, height, "font-size": size, "aria-hidden": "true" }, parts);
  const keys = `Recording, ${counted(map)}. The arrow keys walk the words.`;
  const picture = make("div", { class: "picture recording", tabindex: 0, role: "application", "aria-label": keys }, [canvas, overlay]);
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });

  const find = (event, row) => {
    if (event.target !== canvas) return labelled(event.target);
    const box = canvas.getBoundingClientRect();
    const column = within(Math.floor((event.clientX - box.left) / wide), 0, map.columns.length - 1);
    const own = Math.floor((event.clientY - box.top) / tall);
    return { row: own < rows ? own : row, column };
  };
  const mark = (place) => {
    const row = place?.row ?? null;
    for (const part of [...rowLabels, ...ticks, ...spoken]) part.classList.toggle("on", row !== null && Number(part.dataset.row) === row);
    overlay.classList.toggle("some", row !== null);
    band.setAttribute("visibility", row === null ? "hidden" : "visible");
    band.setAttribute("y", (row ?? 0) * tall);
    const best = row === null ? 1 : Math.max(largest(map.weights[row]), 1e-9);
    const points = row === null ? [] : map.weights[row].map((weight, column) => `${left + (column + 0.5) * wide},${top + sound * (1 - (0.9 * (weight ?? 0)) / best)}`);
    curve.setAttribute("points", points.join(" "));
  };
  return { picture, find, mark };
}

/** History and fan of quantiles, and below them on the same time axis the map, with a row for each step of the forecast. */
function forecast(map, view, room) {
  const [rows, columns, history] = [map.rows.length, map.columns.length, view.history.length];
  const [each, every] = map.steps, first = view.times.length - 1 - map.reach; // step of the first column
  const [high, gap, size] = [230, 14, 12], tall = within(Math.floor(340 / Math.max(rows, 1)), 2, 22);
  const [top, down] = [high + gap, columns ? rows * tall : 0], foot = columns ? top + down : high;
  const left = Math.ceil(Math.max(widest(view.values.map(([, label]) => label), size), columns ? widest(map.rows, size) : 0)) + 20;
  const beside = columns && room > 620 ? 112 : 16;
  const across = within(Math.floor(room - left - beside), 160, 860), wide = across / view.times.length;
  const [width, height] = [left + across + beside, foot + 30];
  const x = (step) => left + (step + 0.5) * wide;
  const y = (value) => within(1 - (value - view.range[0]) / (view.range[1] - view.range[0]), 0, 1) * high;
  const values = [...view.history, ...view.median];

  /** The points of values from a step on, in stretches without a gap; the ends go on for so many steps. */
  const stretches = (numbers, start, reach = 0) => {
    const parts = [[]];
    numbers.forEach((value, index) => (value === null ? parts.push([]) : parts.at(-1).push([x(start + index), y(value)])));
    const ends = (part, far = part.length > 1 ? reach : Math.max(reach, 0.3)) => [[part[0][0] - far * wide, part[0][1]], ...part, [part.at(-1)[0] + far * wide, part.at(-1)[1]]];
    return parts.filter((part) => part.length).map((part) => ends(part));
  };
  const line = (name, numbers, start, reach) => stretches(numbers, start, reach).map((points) => shape("polyline", { class: name, points: points.join(" ") }));
  const intervals = view.bands.flatMap(({ low, high: upper }) => {
    const known = low.map((value, index) => value !== null && upper[index] !== null);
    const [under, over] = [low, upper].map((numbers) => stretches(numbers.map((value, index) => (known[index] ? value : null)), history, 0.5));
    return under.map((points, index) => shape("polygon", { class: "interval", points: [...points, ...over[index].reverse()].join(" ") }));
  });
  const dots = wide < 5 ? [] : view.observed.flatMap((value, index) => (value === null ? [] : [shape("circle", { class: "dot", cx: x(history + index), cy: y(value), r: 2.4 })]));
  const grid = view.values.flatMap(([value, label]) => [
    shape("line", { class: "between", x1: left, x2: left + across, y1: y(value), y2: y(value) }),
    shape("text", { class: "time", x: left - 8, y: y(value), "text-anchor": "end", "dominant-baseline": "central" }, [label]),
  ]);
  const ticks = [];
  let end = -Infinity;
  for (const [step, label] of view.ticks) {
    const half = widest([label], size) / 2;
    ticks.push(shape("line", { class: "frame", x1: x(step), x2: x(step), y1: foot, y2: foot + 5 }));
    if (x(step) - half < end + 10 || x(step) + half > width) continue; // no room
    ticks.push(shape("text", { class: "time", x: x(step), y: foot + 20, "text-anchor": "middle" }, [clipped(label)]));
    end = x(step) + half;
  }
  const now = left + history * wide;
  const parts = [...grid, ...intervals, ...line("median", view.median, history, 0.5), ...line("history", view.history, 0)];
  parts.push(...line("observed", view.observed, history), ...dots, ...ticks, shape("line", { class: "frame", x1: now, x2: now, y1: 0, y2: foot }));

  const canvas = make("canvas", { role: "img", "aria-label": `Attention of the forecast over the history, ${counted(map)}` });
  const rowLabels = [], frames = [];
  if (columns) {
    const style = getComputedStyle(document.documentElement), sharp = Math.min(devicePixelRatio, 4);
    const ramp = [0, 1, 2, 3, 4].map((step) => style.getPropertyValue(`--ramp-${step}`).trim());
    const length = columns * every * wide, pen = canvas.getContext("2d");
    [canvas.width, canvas.height] = [Math.ceil(length * sharp), Math.ceil(down * sharp)];
    Object.assign(canvas.style, { left: `${left + first * wide}px`, top: `${top}px`, width: `${length}px`, height: `${down}px` });
    pen.imageSmoothingEnabled = false;
    pen.drawImage(dotted(map, (weight, row) => tint(ramp, (weight ?? 0) / (map.top[row] ?? 1))), 0, 0, canvas.width, canvas.height);
    const stairs = map.rows.flatMap((_, row) => [0, 1].map((below) => [left + Math.min(history + (row + 1) * each - 1, view.times.length) * wide, top + (row + below) * tall]));
    const beyond = [[...stairs, [left + across, top + down], [left + across, top]]];
    if (first) beyond.push([[left, top], [left + first * wide, top], [left + first * wide, top + down], [left, top + down]]);
    parts.push(...beyond.map((points) => shape("polygon", { class: "beyond", points: points.join(" ") })));
    parts.push(shape("rect", { class: "frame", x: left, y: top, width: across, height: down }));
    map.weights.forEach((weights, row) => {
      const best = weights.indexOf(largest(weights));
      if (!(weights[best] > 0)) return;
      frames.push(shape("rect", { class: "look", x: left + (first + best * every) * wide, y: top + row * tall, width: every * wide, height: tall, "data-row": row }));
      if (beside < 100 || row % Math.ceil(LEAST / tall)) return;
      const back = history + row * each - first - best * every;
      const place = { class: "back", x: left + across + 8, y: top + (row + 0.5) * tall, "dominant-baseline": "central", "data-row": row };
      frames.push(shape("text", place, [each * every > 1 ? weights[best].toFixed(2) : `${back} back · ${weights[best].toFixed(2)}`]));
    });
    rowLabels.push(...thinned(map.rows, tall).map(([label, row]) => {
      const place = { class: "time", x: left - 8, y: top + (row + 0.5) * tall, "text-anchor": "end", "dominant-baseline": "central", "data-row": row };
      return shape("text", place, [clipped(label)]);
    }));
  }
  const band = shape("rect", { class: "band", visibility: "hidden", rx: 2, x: left, width: across, height: tall });
  const chosen = shape("rect", { class: "chosen", visibility: "hidden", y: 0, width: each * wide, height: high });
  const looked = shape("g");
  const drawn = [chosen, ...parts, ...rowLabels, ...frames, looked, band];
  const overlay = shape("svg", { class: "labels", width, height, "font-size": size, "aria-hidden": "true" }, drawn);
  const keys = `Forecast, ${counted(map)}. The arrow keys walk the steps of the forecast.`;
  const picture = make("div", { class: "picture recording forecast", tabindex: 0, role: "application", "aria-label": keys }, [canvas, overlay]);
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });

  const find = (event, row) => {
    const box = picture.getBoundingClientRect();
    const step = Math.floor((event.clientX - box.left - left) / wide), below = Math.floor((event.clientY - box.top - top) / tall);
    if (step < 0 || step >= view.times.length) return labelled(event.target);
    if (columns && below >= rows) return null;
    const column = Math.floor((step - first) / every), known = columns && column >= 0 && column < columns ? column : null;
    if (columns && below >= 0) return { row: below, column: known };
    return step >= history ? { row: Math.floor((step - history) / each), column: null } : known === null ? null : { row, column: known };
  };
  const mark = (place) => {
    const row = place?.row ?? null;
    for (const part of [...rowLabels, ...frames]) part.classList.toggle("on", row !== null && Number(part.dataset.row) === row);
    overlay.classList.toggle("some", row !== null);
    for (const part of [band, chosen]) part.setAttribute("visibility", row === null || (part === band && !columns) ? "hidden" : "visible");
    band.setAttribute("y", top + (row ?? 0) * tall);
    chosen.setAttribute("x", left + (history + (row ?? 0) * each) * wide);
    const best = row === null ? 0 : largest(map.weights[row]);
    const heavy = best > 0 ? [...map.weights[row].keys()].filter((column) => map.weights[row][column] >= NOTABLE * best) : [];
    looked.replaceChildren(...heavy.flatMap((column) => {
      const value = values[first + column * every];
      if (value === null) return [];
      const share = map.weights[row][column] / best;
      return [shape("circle", { class: "looked", cx: x(first + column * every), cy: y(value), r: 1.5 + 5 * Math.sqrt(share), "fill-opacity": 0.15 + 0.6 * share })];
    }));
  };
  const tell = (place) => {
    if (place.row === null || place.column !== null) return describe(map, place);
    const step = place.row * each, widestBand = view.bands[0];
    const numbers = [` median ${short(view.median[step])}`];
    if (widestBand) numbers.push(`, ${widestBand.share} ${short(widestBand.low[step])} to ${short(widestBand.high[step])}`);
    if (view.observed[step] !== undefined && view.observed[step] !== null) numbers.push(`, observed ${short(view.observed[step])}`);
    const weights = map.weights[place.row], order = [...weights.keys()].sort((one, other) => weights[other] - weights[one]).slice(0, 3);
    const partners = order.flatMap((column) => ["  ", map.columns[column], " ", make("b", { class: "number" }, [digits(weights[column])])]);
    return [make("strong", {}, [view.times[history + step]]), ...numbers, ...(columns ? ["  ←", ...partners] : [])];
  };
  const sample = (name, text) => make("span", { class: "scale" }, [make("span", { class: `key ${name}` }), text]);
  const legend = [sample("history", "history"), sample("median", "median"), ...(view.observed.length ? [sample("observed", "observed")] : [])];
  legend.push(sample("interval", `${view.bands.map(({ share }) => share).reverse().join(", ")} of the sample paths`));
  if (columns) legend.push(sample("look", "the largest weight of a row"));
  return { picture, find, mark, tell, legend };
}

/** A number with four digits, or all digits before the point. */
function short(value) {
  if (value === null) return "NaN";
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e7) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return size !== 0 && (size >= 1e7 || size < 1e-4) ? value.toExponential(3).replace("e+", "e") : String(Number(value.toPrecision(4)));
}

/** The spectrogram in this ink on nothing, so that it is right on light and dark pages. */
function spectrum(view, ink) {
  const canvas = make("canvas"), levels = bytes(view.data);
  [canvas.width, canvas.height] = [view.frames, view.bands];
  const pen = canvas.getContext("2d"), image = pen.createImageData(view.frames, view.bands);
  const colour = [1, 3, 5].map((place) => parseInt(ink.trim().slice(place, place + 2), 16));
  for (let frame = 0; frame < view.frames; frame++) {
    for (let band = 0; band < view.bands; band++) {
      image.data.set([...colour, levels[frame * view.bands + band]], 4 * ((view.bands - 1 - band) * view.frames + frame));
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

/** Round times for an axis of so many seconds, at most so many of them, and their labels. */
function axis(seconds, most) {
  const power = 10 ** Math.floor(Math.log10(seconds / 10));
  const step = [1, 2, 5, 10, 20, 50].map((factor) => factor * power).find((each) => seconds / each < most);
  const labels = within(-Math.floor(Math.log10(step) + 1e-9), 0, 3);
  const times = Array.from({ length: Math.floor(seconds / step + 1e-6) + 1 }, (_, number) => number * step);
  return times.map((time, number) => [time, time.toFixed(labels) + (number === times.length - 1 ? " s" : "")]);
}

/** Shows data of `regard.show.viewer_data` inside an element. */
export function mount(root, data, options = {}) {
  view(root, data, options.view in VIEWS ? options.view : undefined);
}

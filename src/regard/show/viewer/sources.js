// Maps on pictures, recordings and series. Their words or steps are walked with the pointer, with keys, or by the play button.

import { counted, describe, pixelsOf, topOf } from "./maps.js";
import { dotted } from "./matrix.js";
import { clipped, digits, heaviest, labelled, largest, make, parseColour, property, readable, shape, sharpness, short, thinned, widest, within } from "./parts.js";

const LUMA = [0.299, 0.587, 0.114], AMBER = [255, 176, 32], DIM = 0.5, PALE = 0.35, GLOW = 0.25; // as in show/views.py
const MOST_PANELS = 120; // rows above which words have no panels of their own
const NOTABLE_VALUE = 0.05; // share of the largest weight from which a value of a series is marked
const LEAST_ROW = 11; // least height of a row with a label of its own, in pixels

/** Draws a map on its picture, recording or series. */
export function onSource(map, room) {
  const drawing = { picture: filmstrip, recording, series: forecast }[map.source.kind](map, map.source, room);
  return { move: overRows(map), tell: (place) => describe(map, place), ...drawing };
}

/** Moves over the words or steps with any arrow key. */
const overRows = (map) => (here, downward, onward) => {
  if (!map.rows.length) return null;
  return { row: here?.row == null ? 0 : within(here.row + downward + onward, 0, map.rows.length - 1), column: null };
};

// A picture: large under the weights of the chosen word, and a panel for each word.

function filmstrip(map, view) {
  const large = make("canvas", { class: "large", role: "img", "aria-label": "The picture under the weights of the chosen word" });
  const show = (row) => compose(large, view, row === null ? null : heat(map, row));
  const panels = map.rows.map((label, row) => {
    const word = make("span", { class: "word" }, [clipped(label)]);
    const number = make("span", { class: "number" }, [largest(map.weights[row]).toFixed(2)]);
    const panel = make("div", { class: "panel", "data-row": row }, [make("div", {}, [word, number])]);
    if (map.rows.length <= MOST_PANELS) panel.append(thumbnail(compose(make("canvas"), view, heat(map, row)), 104));
    return panel;
  });
  const keys = `Picture, ${counted(map)}. The arrow keys walk the words.`;
  const picture = make("div", { class: "picture film", "aria-label": keys }, [large, make("div", { class: "strip" }, panels)]);
  const find = (event, row) => {
    if (event.target !== large) return labelled(event.target);
    const box = large.getBoundingClientRect(), [high, wide] = map.grid;
    const down = within(Math.floor(((event.clientY - box.top) / box.height) * high), 0, high - 1);
    const across = within(Math.floor(((event.clientX - box.left) / box.width) * wide), 0, wide - 1);
    return { row, column: down * wide + across };
  };
  let drawn = null;
  const mark = (place, revealed) => {
    const row = place?.row ?? null;
    panels.forEach((panel, index) => {
      panel.classList.toggle("on", index === row);
      panel.classList.toggle("future", revealed !== null && index > revealed);
    });
    if (row !== drawn) show((drawn = row));
  };
  show(null);
  const legend = [`${map.grid[0]} × ${map.grid[1]} cells · brighter: more weight`];
  return { picture, find, mark, legend };
}

/** A small copy of a canvas. */
export function thumbnail(whole, side) {
  const dots = 2, scale = (side * dots) / Math.max(whole.width, whole.height);
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
export function heat(map, row) {
  const [high, wide] = map.grid;
  const weight = (down, across) => (map.weights[row][down * wide + across] || 0) / topOf(map, row, true);
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
export function compose(canvas, view, heated, side = 384) {
  const pixels = pixelsOf(view), factor = Math.max(1, Math.round(side / Math.max(view.width, view.height))); // small pictures have large dots
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
        const dark = (grey + (own - grey) * PALE) * DIM, bright = own + (AMBER[part] - own) * GLOW;
        image.data[to + part] = weights ? dark + (bright - dark) * weights[x] : own;
      }
      image.data[to + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

// A recording: the alignment of the words above the spectrogram, on one time axis.

function recording(map, view, room) {
  const rows = map.rows.length, tall = within(Math.floor(480 / Math.max(rows, 1)), 3, 22), size = within(tall * 0.65, 9, 14);
  const [sound, gap, beside] = [150, 26, 64]; // height of the spectrogram, space above it and for the times beside it
  const whole = Math.max(view.seconds, map.columns.length * map.seconds);
  const left = Math.ceil(widest(map.rows, size)) + 14, down = rows * tall, top = down + gap;
  const across = within(Math.floor(room - left - beside), 160, 1000);
  const [width, height] = [left + across + beside, top + sound + 26];
  const at = (seconds) => left + (seconds / whole) * across, wide = (map.seconds / whole) * across;

  const canvas = make("canvas", { role: "img", "aria-label": `Alignment above the spectrogram, ${counted(map)}` });
  const dots = sharpness(), pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [across * dots, (top + sound) * dots];
  Object.assign(canvas.style, { left: `${left}px`, top: 0, width: `${across}px`, height: `${top + sound}px` });
  pen.scale(dots, dots);
  pen.imageSmoothingEnabled = false;
  if (rows) pen.drawImage(dotted(map, { onView: true }), 0, 0, wide * map.columns.length, down);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(spectrum(view, property("--ink")), 0, top, (view.seconds / whole) * across, sound);

  const middle = (row) => ({ y: (row + 0.5) * tall, "dominant-baseline": "central", "data-row": row });
  const rowLabels = thinned(map.rows, tall).map(([label, row]) => shape("text", { ...middle(row), x: left - 8, "text-anchor": "end" }, [clipped(label)]));
  const times = map.times.map((time, row) => ({ time, row })).filter(({ time }) => time !== null);
  const seconds = times.filter(({ row }) => row % Math.ceil(LEAST_ROW / tall) === 0).map(({ time, row }) =>
    shape("text", { ...middle(row), class: "time", x: left + across + 8 }, [`${time.toFixed(2)} s`]),
  );
  const ticks = times.map(({ time, row }) => shape("line", { class: "tick", x1: at(time), x2: at(time), y1: top - 4, y2: top + sound, "data-row": row }));
  const spoken = [];
  let end = -Infinity;
  for (const { time, row } of [...times].sort((one, other) => one.time - other.time)) {
    if (at(time) < end + 8) continue; // no room
    spoken.push(shape("text", { class: "spoken", x: at(time), y: top - 8, "font-size": 12, "data-row": row }, [clipped(map.rows[row])]));
    end = at(time) + widest([map.rows[row]], 12);
  }
  const scale = axis(whole, within(Math.floor(across / 56), 3, 11)).map(([time, label]) =>
    shape("text", { class: "time", x: at(time), y: top + sound + 18, "text-anchor": "middle" }, [label]),
  );
  const pitch = [[`${view.highest / 1000} kHz`, top + 9], ["0 Hz", top + sound - 3]].map(([label, y]) =>
    shape("text", { class: "time", x: left + across + 8, y }, [label]),
  );
  const between = tall < LEAST_ROW ? [] : map.rows.slice(1).map((_, row) =>
    shape("line", { class: "between", x1: left, x2: left + across, y1: (row + 1) * tall, y2: (row + 1) * tall }),
  );
  const frames = [[0, down], [top, sound]].map(([y, high]) => shape("rect", { class: "frame", x: left, y, width: across, height: high }));
  const veil = shape("rect", { class: "veil", x: left + 1, width: across - 2, visibility: "hidden" });
  const band = shape("rect", { class: "band", visibility: "hidden", rx: 2, x: left, width: across, height: tall });
  const curve = shape("polyline", { class: "curve" });
  const cursor = shape("line", { class: "cursor", y1: 0, y2: top + sound, visibility: "hidden" });
  const byRow = [...rowLabels, ...seconds, ...ticks, ...spoken];
  const parts = [...between, veil, ...frames, ...rowLabels, ...seconds, ...scale, ...pitch, ...ticks, curve, ...spoken, cursor, band];
  const overlay = shape("svg", { class: "labels", width, height, "font-size": size, "aria-hidden": "true" }, parts);
  const keys = `Recording, ${counted(map)}. The arrow keys walk the words.`;
  const picture = make("div", { class: "picture recording", "aria-label": keys }, [canvas, overlay]);
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });

  const find = (event, row) => {
    if (event.target !== canvas) return labelled(event.target);
    const box = canvas.getBoundingClientRect();
    const column = within(Math.floor((event.clientX - box.left) / wide), 0, map.columns.length - 1);
    const own = Math.floor((event.clientY - box.top) / tall);
    return { row: own < rows ? own : row, column };
  };
  const mark = (place, revealed) => {
    const row = place?.row ?? null, last = revealed ?? rows - 1;
    for (const part of byRow) {
      part.classList.toggle("on", Number(part.dataset.row) === row);
      part.classList.toggle("future", Number(part.dataset.row) > last);
    }
    overlay.classList.toggle("some", row !== null);
    band.setAttribute("visibility", row === null ? "hidden" : "visible");
    band.setAttribute("y", (row ?? 0) * tall);
    veil.setAttribute("visibility", last < rows - 1 ? "visible" : "hidden");
    veil.setAttribute("y", (last + 1) * tall);
    veil.setAttribute("height", Math.max(0, (rows - 1 - last) * tall));
    const best = row === null ? 1 : Math.max(largest(map.weights[row]), 1e-9);
    const height = (weight) => top + sound * (1 - (0.9 * (weight || 0)) / best);
    const points = row === null ? [] : Array.from(map.weights[row], (weight, column) => `${left + (column + 0.5) * wide},${height(weight)}`);
    curve.setAttribute("points", points.join(" "));
  };
  /** Shows which moment of the sound is heard; null hides it. */
  const hear = (time) => {
    cursor.setAttribute("visibility", time === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, at(time ?? 0));
  };
  return { picture, find, mark, hear, legend: ["stronger colour: more weight, louder sound"] };
}

/** The spectrogram in this ink on nothing, so that it is right on light and dark pages. */
function spectrum(view, ink) {
  const canvas = make("canvas"), levels = pixelsOf(view), colour = parseColour(ink);
  [canvas.width, canvas.height] = [view.frames, view.bands];
  const pen = canvas.getContext("2d"), image = pen.createImageData(view.frames, view.bands);
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

// A series: history and fan of quantiles, and below them on the same time axis the map, with a row for each step.

function forecast(map, view, room) {
  const place = forecastPlaces(map, view, room);
  const fan = fanOf(map, view, place), below = place.columns ? mapBelow(map, view, place) : { canvas: null, parts: [], labels: [], frames: [] };
  const { left, across, top, tall, high, foot, width, height, wide, rows, columns, history, each, every, first, x, y } = place;
  const values = [...view.history, ...view.median];
  const band = shape("rect", { class: "band", visibility: "hidden", rx: 2, x: left, width: across, height: tall });
  const chosen = shape("rect", { class: "chosen", visibility: "hidden", y: 0, width: each * wide, height: high });
  const veils = [shape("rect", { class: "veil", y: 0, height: high, visibility: "hidden" }), shape("rect", { class: "veil", x: left + 1, width: across - 2, visibility: "hidden" })];
  const looked = shape("g");
  const drawn = [chosen, ...fan, ...below.parts, ...below.labels, ...below.frames, ...veils, looked, band];
  const overlay = shape("svg", { class: "labels", width, height, "font-size": 12, "aria-hidden": "true" }, drawn);
  const keys = `Forecast, ${counted(map)}. The arrow keys walk the steps of the forecast.`;
  const picture = make("div", { class: "picture recording forecast", "aria-label": keys }, [...(below.canvas ? [below.canvas] : []), overlay]);
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });

  const find = (event, row) => {
    const box = picture.getBoundingClientRect();
    const step = Math.floor((event.clientX - box.left - left) / wide), down = Math.floor((event.clientY - box.top - top) / tall);
    if (step < 0 || step >= view.times.length) return labelled(event.target);
    if (columns && down >= rows) return null;
    const column = Math.floor((step - first) / every), known = columns && column >= 0 && column < columns ? column : null;
    if (columns && down >= 0) return { row: down, column: known };
    return step >= history ? { row: Math.floor((step - history) / each), column: null } : known === null ? null : { row, column: known };
  };
  const mark = (spot, revealed) => {
    const row = spot?.row ?? null, last = revealed ?? rows - 1;
    for (const part of [...below.labels, ...below.frames]) {
      part.classList.toggle("on", Number(part.dataset.row) === row);
      part.classList.toggle("future", Number(part.dataset.row) > last);
    }
    overlay.classList.toggle("some", row !== null);
    for (const part of [band, chosen]) part.setAttribute("visibility", row === null || (part === band && !columns) ? "hidden" : "visible");
    band.setAttribute("y", top + (row ?? 0) * tall);
    chosen.setAttribute("x", left + (history + (row ?? 0) * each) * wide);
    const begin = left + (history + (last + 1) * each) * wide;
    veils.forEach((veil) => veil.setAttribute("visibility", last < rows - 1 ? "visible" : "hidden"));
    veils[0].setAttribute("x", begin);
    veils[0].setAttribute("width", Math.max(0, left + across - begin));
    veils[1].setAttribute("y", top + (last + 1) * tall);
    veils[1].setAttribute("height", columns ? Math.max(0, (rows - 1 - last) * tall) : 0);
    looked.replaceChildren(...(row === null ? [] : lookedAt(map.weights[row])));
  };
  /** A circle on each value that the chosen step looks at. */
  const lookedAt = (weights) => {
    const best = largest(weights), heavy = best > 0 ? [...weights.keys()].filter((column) => weights[column] >= NOTABLE_VALUE * best) : [];
    return heavy.flatMap((column) => {
      const step = first + column * every, value = values[step], share = weights[column] / best;
      if (value === null || value === undefined) return [];
      return [shape("circle", { class: "looked", cx: x(step), cy: y(value), r: 1.5 + 5 * Math.sqrt(share), "fill-opacity": 0.15 + 0.6 * share })];
    });
  };
  return { picture, find, mark, tell: (spot) => describeStep(map, view, place, spot), legend: keysOf(view, columns) };
}

/** The sizes and positions of a forecast's picture. */
function forecastPlaces(map, view, room) {
  const [rows, columns, history] = [map.rows.length, map.columns.length, view.history.length], [each, every] = map.steps;
  const first = view.times.length - 1 - map.reach; // step of the first column
  const [high, gap, size] = [230, 14, 12], tall = within(Math.floor(340 / Math.max(rows, 1)), 2, 22);
  const top = high + gap, down = columns ? rows * tall : 0, foot = columns ? top + down : high;
  const isWide = columns && room > 620; // else the times of the steps are only read out
  const left = Math.ceil(Math.max(widest(view.values.map(([, label]) => label), size), isWide ? widest(map.rows, size) : 0)) + 20;
  const beside = isWide ? 112 : 16;
  const across = within(Math.floor(room - left - beside), 160, 1100), wide = across / view.times.length;
  const x = (step) => left + (step + 0.5) * wide;
  const y = (value) => within(1 - (value - view.range[0]) / (view.range[1] - view.range[0]), 0, 1) * high;
  return { isWide, rows, columns, history, each, every, first, high, size, tall, top, down, foot, left, beside, across, wide, width: left + across + beside, height: foot + 30, x, y };
}

/** History, intervals, median, observed values and the axes. */
function fanOf(map, view, { left, across, wide, width, foot, high, size, history, x, y }) {
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
  const now = left + history * wide, border = shape("line", { class: "frame", x1: now, x2: now, y1: 0, y2: foot });
  const curves = [...line("median", view.median, history, 0.5), ...line("history", view.history, 0), ...line("observed", view.observed, history)];
  return [...grid, ...intervals, ...curves, ...dots, ...ticks, border];
}

/** The map below a fan: a row for each step, and a frame around its largest weight. */
function mapBelow(map, view, { isWide, left, across, wide, tall, top, down, rows, columns, history, each, every, first }) {
  const canvas = make("canvas", { role: "img", "aria-label": `Attention of the forecast over the history, ${counted(map)}` });
  const dots = sharpness(), length = columns * every * wide, pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [Math.ceil(length * dots), Math.ceil(down * dots)];
  Object.assign(canvas.style, { left: `${left + first * wide}px`, top: `${top}px`, width: `${length}px`, height: `${down}px` });
  pen.imageSmoothingEnabled = false;
  pen.drawImage(dotted(map, { onView: true }), 0, 0, canvas.width, canvas.height);
  const parts = beyond(map, view, first).map((ranges) => {
    const ends = ranges.flatMap((range, row) => [0, 1].map((lower) => [range, top + (row + lower) * tall]));
    const [starts, stops] = [0, 1].map((end) => ends.map(([range, y]) => [left + range[end] * wide, y]));
    return shape("polygon", { class: "beyond", points: [...stops, ...starts.reverse()].join(" ") });
  });
  parts.push(shape("rect", { class: "frame", x: left, y: top, width: across, height: down }));
  const frames = [];
  for (let row = 0; row < rows; row++) {
    const weights = map.weights[row], [best] = heaviest(weights, 1);
    if (!(weights[best] > 0)) continue;
    frames.push(shape("rect", { class: "look", x: left + (first + best * every) * wide, y: top + row * tall, width: every * wide, height: tall, "data-row": row }));
    if (!isWide || row % Math.ceil(LEAST_ROW / tall)) continue;
    const back = history + row * each - first - best * every;
    const spot = { class: "back", x: left + across + 8, y: top + (row + 0.5) * tall, "dominant-baseline": "central", "data-row": row };
    frames.push(shape("text", spot, [each * every > 1 ? weights[best].toFixed(2) : `${back} back · ${weights[best].toFixed(2)}`]));
  }
  const labels = (isWide ? thinned(map.rows, tall) : []).map(([label, row]) => {
    const spot = { class: "time", x: left - 8, y: top + (row + 0.5) * tall, "text-anchor": "end", "dominant-baseline": "central", "data-row": row };
    return shape("text", spot, [clipped(label)]);
  });
  return { canvas, parts, labels, frames };
}

/** The steps that no step of a row can look at, as areas: of each, start and end in every row. As in show/steps.py. */
function beyond(map, view, first) {
  const [each] = map.steps, [history, end] = [view.history.length, view.times.length];
  const area = (least, most) => map.rows.map((_, row) => {
    const [now, last] = [history + row * each, Math.min(history + (row + 1) * each, end) - 1];
    const start = Math.max(first, last - most);
    return [start, Math.max(start, Math.min(end, now - least + 1))];
  });
  const known = map.lags ? [0, ...map.lags, end] : [];
  const gaps = known.slice(1).map((lag, index) => [known[index] + 1, lag - 1]).filter(([least, most]) => least <= most);
  return [map.rows.map(() => [0, first]), area(-end, 0), ...gaps.map(([least, most]) => area(least, most))].filter((ranges) => ranges.some(([start, stop]) => start < stop));
}

/** The numbers of a step of the forecast for the readout, and the values that it looks at most. */
function describeStep(map, view, { history, each, columns }, place) {
  if (place.row === null || place.column !== null) return describe(map, place);
  const step = place.row * each, widestBand = view.bands[0];
  const numbers = [` median ${short(view.median[step])}`];
  if (widestBand) numbers.push(`, ${widestBand.share} ${short(widestBand.low[step])} to ${short(widestBand.high[step])}`);
  if (view.observed[step] !== undefined && view.observed[step] !== null) numbers.push(`, observed ${short(view.observed[step])}`);
  const weights = map.weights[place.row];
  const partners = heaviest(weights, 3).flatMap((column) => ["  ", readable(map.columns[column]), " ", make("b", { class: "number" }, [digits(weights[column])])]);
  return [make("strong", {}, [readable(view.times[history + step])]), ...numbers, ...(columns ? ["  ←", ...partners] : [])];
}

function keysOf(view, columns) {
  const sample = (name, text) => make("span", { class: "scale" }, [make("span", { class: `key ${name}` }), text]);
  const legend = [sample("history", "history"), sample("median", "median"), ...(view.observed.length ? [sample("observed", "observed")] : [])];
  legend.push(sample("interval", `${view.bands.map(({ share }) => share).reverse().join(", ")} of the sample paths`));
  return columns ? [...legend, sample("look", "the largest weight of a row"), sample("beyond", "not in reach")] : legend;
}

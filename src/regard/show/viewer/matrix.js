// The matrix of weights: cells on a canvas with labels around it, or for many cells a window that pans and zooms.
//
// Every drawing of the viewer is {picture, find, move, mark, legend, tell}: `find` maps a pointer event to a place, `move` an
// arrow key, `mark(place, revealed)` highlights a place and hides the rows after `revealed` (null: shows all rows).

import { counted, placeName, topOf } from "./maps.js";
import { LEAST, clipped, colours, labelled, largest, make, property, scaleBar, shade, shape, sharpness, single, thinned, widest, within } from "./parts.js";

const SINE = 0.866, COSINE = 0.5; // of 60 degrees, the angle of long column labels
const SMALL = 14; // least size of a cell that was made smaller because the window is narrow, in pixels
const MANY = 100; // rows or columns above which the matrix is a window
const NOTABLE_COLUMN = 0.25; // share of a row's largest weight from which a column's label is highlighted
const CLOSEST = 40; // largest size of a cell in a window, in pixels
const MOST_THUMBNAILS = 600; // maps of one grid

export const matrix = (map, room) => (Math.max(map.rows.length, map.columns.length) > MANY ? windowed(map, room) : whole(map, room));

/** Moves over cells: the same for both kinds of matrices. */
const overCells = (map) => (here, downward, onward) => {
  const [rows, columns] = [map.rows.length, map.columns.length];
  if (!rows || !columns) return null;
  if (!here) return { row: 0, column: 0 };
  return { row: within((here.row ?? 0) + downward, 0, rows - 1), column: within((here.column ?? 0) + onward, 0, columns - 1) };
};

const legendOf = (map) => ["rows: outputs · columns: sources", scaleBar(map)];

// A matrix that is drawn as a whole.

function whole(map, room) {
  const [rows, columns] = [map.rows.length, map.columns.length];
  const turned = map.columns.filter((label) => !single(label));
  const letter = (cell) => within(cell * 0.7, 9, 14); // font size of the labels
  const needed = (cell) => columns * cell + widest(map.rows, letter(cell)) + COSINE * widest(turned, letter(cell)) + 28;
  let cell = within(Math.floor(760 / Math.max(rows, columns, 1)), LEAST, 32);
  while (cell > SMALL && needed(cell) > room) cell--;
  const size = letter(cell), rise = widest(turned, size);
  const left = Math.ceil(widest(map.rows, size)) + 14;
  const top = Math.ceil(turned.length ? SINE * rise + size : size) + 12;
  const [across, down] = [columns * cell, rows * cell];
  const [width, height] = [left + across + Math.ceil(COSINE * rise) + 12, top + down + 4];

  const canvas = cells(map, cell);
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${across}px`, height: `${down}px` });
  const rowLabels = map.rows.map((label, row) => {
    const place = { x: left - 8, y: top + (row + 0.5) * cell, "text-anchor": "end", "dominant-baseline": "central" };
    return shape("text", { ...place, "data-row": row }, [clipped(label)]);
  });
  const columnLabels = map.columns.map((label, column) => {
    const [x, y] = [left + (column + 0.5) * cell, top - 9];
    const place = { x: x + size * 0.3, y, transform: `rotate(-60 ${x} ${y})` };
    const upright = { x, y, "text-anchor": "middle" };
    return shape("text", { ...(single(label) ? upright : place), "data-column": column }, [clipped(label)]);
  });
  const veil = shape("rect", { class: "veil", x: left - 1, width: across + 2, visibility: "hidden" });
  const band = shape("rect", { class: "band", visibility: "hidden", rx: 3 });
  const frame = { class: "labels", width, height, "font-size": size, "aria-hidden": "true" };
  const overlay = shape("svg", frame, [...rowLabels, ...columnLabels, veil, band]);
  const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  const picture = make("div", { class: "picture", "aria-label": `Matrix, ${counted(map)}. The arrow keys move over its cells.` });
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });
  picture.append(canvas, overlay, tip);

  const find = (event) => {
    if (event.target !== canvas) return labelled(event.target);
    const box = canvas.getBoundingClientRect();
    const row = within(Math.floor((event.clientY - box.top) / cell), 0, rows - 1);
    return { row, column: within(Math.floor((event.clientX - box.left) / cell), 0, columns - 1) };
  };
  const mark = (place, revealed) => {
    const { row, column } = place ?? { row: null, column: null };
    const last = revealed ?? rows - 1, best = row === null ? 0 : largest(map.weights[row]);
    rowLabels.forEach((label, index) => {
      label.classList.toggle("on", index === row);
      label.classList.toggle("future", index > last);
    });
    columnLabels.forEach((label, index) => {
      const isPartner = row !== null && column === null && Math.abs(map.weights[row][index]) >= NOTABLE_COLUMN * best && best > 0;
      label.classList.toggle("on", index === column || isPartner);
    });
    veil.setAttribute("visibility", last < rows - 1 ? "visible" : "hidden");
    veil.setAttribute("y", top + (last + 1) * cell);
    veil.setAttribute("height", Math.max(0, (rows - 1 - last) * cell + 1));
    const box = {
      x: left + (column ?? 0) * cell, width: column === null ? across : cell,
      y: top + (row ?? 0) * cell, height: row === null ? down : cell,
      visibility: place ? "visible" : "hidden",
    };
    for (const [key, value] of Object.entries(box)) band.setAttribute(key, value);
    tip.hidden = row === null || column === null;
    if (!tip.hidden) {
      tip.textContent = map.weights[row][column].toFixed(3);
      Object.assign(tip.style, { left: `${box.x + cell / 2}px`, top: `${box.y - 6}px` });
    }
  };
  return { picture, find, move: overCells(map), mark, legend: legendOf(map) };
}

/** A canvas with a square for each weight. */
function cells(map, cell) {
  const [across, down] = [map.columns.length * cell, map.rows.length * cell], dots = sharpness();
  const canvas = make("canvas", { role: "img", "aria-label": `Heat map of attention weights, ${counted(map)}` });
  [canvas.width, canvas.height] = [Math.ceil(across * dots), Math.ceil(down * dots)];
  const pen = canvas.getContext("2d"), palette = colours().map((colour) => `rgb(${colour.join(" ")})`);
  pen.scale(dots, dots);
  pen.fillStyle = property("--hairline");
  pen.fillRect(0, 0, across, down);
  map.weights.forEach((weights, row) =>
    weights.forEach((weight, column) => {
      pen.fillStyle = palette[shade(weight, topOf(map, row))];
      pen.fillRect(column * cell + 0.5, row * cell + 0.5, cell - 1, cell - 1);
    }),
  );
  return canvas;
}

/** A canvas with one dot for each weight, or for the largest of `step` x `step` of them. */
export function dotted(map, { step = 1, onView = false } = {}) {
  const [rows, columns] = [map.rows.length, map.columns.length].map((count) => Math.max(1, Math.ceil(count / step)));
  const canvas = make("canvas", { width: columns, height: rows }), palette = packed();
  const image = new ImageData(columns, rows), dots = new Int32Array(image.data.buffer);
  const sizes = new Float32Array(columns);
  for (let row = 0; row < rows; row++) {
    sizes.fill(0);
    for (let own = row * step; own < Math.min((row + 1) * step, map.rows.length); own++) {
      const weights = map.weights[own], top = topOf(map, own, onView);
      for (let column = 0; column < weights.length; column++) {
        const weight = weights[column] / top, place = step === 1 ? column : Math.floor(column / step);
        if (Math.abs(weight) > Math.abs(sizes[place])) sizes[place] = weight;
      }
    }
    for (let column = 0; column < columns; column++) dots[row * columns + column] = palette[shade(sizes[column], 1)];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The colours as the integers that an image is made of. */
function packed() {
  return Int32Array.from(colours(), ([red, green, blue]) => new Int32Array(new Uint8Array([red, green, blue, 255]).buffer)[0]);
}

// A window on a large matrix: it is painted once, in several sizes, and copied from there.

function windowed(map, room) {
  const [rows, columns] = [map.rows.length, map.columns.length], size = 11;
  const left = Math.ceil(Math.min(widest(longest(map.rows), size), 130)) + 16;
  const rise = Math.min(widest(longest(map.columns), size), 120), top = Math.ceil(SINE * rise) + 18;
  const width = Math.max(220, Math.floor(room)), across = width - left - Math.ceil(COSINE * rise) - 8;
  const high = within(Math.floor((across * rows) / columns), 120, Math.max(300, Math.min(620, innerHeight * 0.7)));
  const height = top + high + 6, dots = sharpness(), ink = [property("--ink"), property("--pale"), property("--mark"), property("--accent")];
  const fit = Math.min(across / columns, high / rows, CLOSEST);
  const levels = [1, 2, 4, 8].filter((step) => step === 1 || Math.max(rows, columns) / step > 200).map((step) => [step, dotted(map, { step })]);
  const view = { x: 0, y: 0, cell: fit }; // the cell in the upper left corner, and the size of a cell in pixels
  let marked = null, revealed = null, waiting = false;

  const label = `Large matrix, ${counted(map)}. The arrow keys move over its cells, plus and minus zoom, 0 shows all.`;
  const canvas = make("canvas", { role: "img", "aria-label": `Heat map of attention weights, ${counted(map)}` });
  [canvas.width, canvas.height] = [Math.ceil(width * dots), Math.ceil(height * dots)];
  Object.assign(canvas.style, { left: 0, top: 0, width: `${width}px`, height: `${height}px` });
  const picture = make("div", { class: "picture window", "aria-label": label }, [canvas]);
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");

  const limit = () => {
    view.cell = within(view.cell, fit, CLOSEST);
    view.x = within(view.x, 0, Math.max(0, columns - across / view.cell));
    view.y = within(view.y, 0, Math.max(0, rows - high / view.cell));
  };
  const draw = () => {
    waiting = false;
    const { x, y, cell } = view, [wide, tall] = [Math.min(across, (columns - x) * cell), Math.min(high, (rows - y) * cell)];
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, width, height);
    const [step, image] = levels.findLast(([own]) => own === 1 || own * cell <= 1.2) ?? levels[0];
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, x / step, y / step, wide / cell / step, tall / cell / step, left, top, wide, tall);
    if (revealed !== null) pen.clearRect(left, top + Math.max(0, (revealed + 1 - y) * cell), wide, tall);
    pen.strokeStyle = ink[1];
    pen.lineWidth = 0.75;
    pen.strokeRect(left, top, wide, tall);
    write(map.rows, y, tall, cell, false);
    write(map.columns, x, wide, cell, true);
    if (marked) outline(wide, tall);
  };
  /** Writes the labels of the cells in sight, those that have room. */
  const write = (labels, first, length, cell, isColumn) => {
    const every = Math.ceil((size + (isColumn ? 6 : 3)) / cell), from = Math.ceil(first / every - 0.5) * every;
    const chosen = isColumn ? marked?.column : marked?.row;
    pen.font = `${size}px ${property("--letters")}`;
    pen.textAlign = isColumn ? "left" : "right";
    pen.textBaseline = "middle";
    for (let index = Math.max(0, from); (index + 0.5 - first) * cell < length && index < labels.length; index += every) {
      const place = (index + 0.5 - first) * cell;
      if (place >= 0) text(labels[index], place, isColumn, index === chosen);
    }
    if (chosen !== null && chosen !== undefined && chosen % every) {
      const place = (chosen + 0.5 - first) * cell;
      if (place >= 0 && place <= length) text(labels[chosen], place, isColumn, true);
    }
  };
  const text = (words, place, isColumn, isChosen) => {
    pen.save();
    pen.fillStyle = isChosen ? ink[3] : ink[0];
    if (isChosen) pen.font = `600 ${pen.font}`;
    pen.translate(isColumn ? left + place : left - 8, isColumn ? top - 8 : top + place);
    if (isColumn) pen.rotate(-Math.PI / 3);
    pen.fillText(clipped(words), 0, 0, isColumn ? top / SINE : left - 10);
    pen.restore();
  };
  const outline = (wide, tall) => {
    const { row, column } = marked, { x, y, cell } = view;
    pen.save();
    pen.beginPath();
    pen.rect(left - 2, top - 2, wide + 4, tall + 4);
    pen.clip();
    pen.strokeStyle = ink[2];
    pen.lineWidth = 2;
    if (row !== null) pen.strokeRect(left, top + (row - y) * cell - 1, wide, cell + 2);
    if (column !== null) pen.strokeRect(left + (column - x) * cell - 1, top, cell + 2, tall);
    pen.restore();
  };
  const redraw = () => {
    limit();
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  /** The middle of what is zoomed: the chosen cell, if there is one. */
  const middle = () => {
    const [x, y] = [((marked?.column ?? -1) + 0.5 - view.x) * view.cell, ((marked?.row ?? -1) + 0.5 - view.y) * view.cell];
    return [x > 0 && x < across ? x : across / 2, y > 0 && y < high ? y : high / 2];
  };
  const zoom = (factor, at = middle()) => {
    const [column, row] = [view.x + at[0] / view.cell, view.y + at[1] / view.cell];
    view.cell = within(view.cell * factor, fit, CLOSEST);
    [view.x, view.y] = [column - at[0] / view.cell, row - at[1] / view.cell];
    redraw();
  };
  const inside = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left - left, event.clientY - box.top - top];
  };
  const find = (event) => {
    const [x, y] = inside(event), [column, row] = [Math.floor(view.x + x / view.cell), Math.floor(view.y + y / view.cell)];
    const place = { row: y >= 0 && row < rows ? row : null, column: x >= 0 && column < columns ? column : null };
    return place.row === null && place.column === null ? null : place;
  };
  pan(picture, view, redraw);
  picture.addEventListener("wheel", (event) => {
    if (view.cell === fit && !event.ctrlKey) return; // the page scrolls
    event.preventDefault();
    if (event.ctrlKey) return zoom(Math.exp(-event.deltaY / 200), inside(event));
    view.x += event.deltaX / view.cell;
    view.y += event.deltaY / view.cell;
    redraw();
  }, { passive: false });
  picture.addEventListener("keydown", (event) => {
    const factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: fit / view.cell }[event.key];
    if (!factor || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    zoom(factor);
  });
  const mark = (place, last) => {
    [marked, revealed] = [place, last];
    redraw();
  };
  /** Brings the chosen cell into sight; called after keys, not after the pointer. */
  const follow = () => {
    if (marked?.row != null) view.y = within(view.y, marked.row + 1 - high / view.cell, marked.row);
    if (marked?.column != null) view.x = within(view.x, marked.column + 1 - across / view.cell, marked.column);
    redraw();
  };
  const button = (name, words, factor) => {
    const own = make("button", { type: "button", class: "plain", "aria-label": words, title: words }, [name]);
    own.addEventListener("click", () => zoom(factor()));
    return own;
  };
  const buttons = [button("+", "Zoom in", () => 1.5), button("−", "Zoom out", () => 1 / 1.5), button("Fit", "Show all", () => fit / view.cell)];
  limit();
  draw();
  return { picture, find, move: overCells(map), mark, follow, legend: [make("span", { class: "zoom", "data-unsaved": "" }, buttons), ...legendOf(map)] };
}

/** The labels with most letters. */
const longest = (labels) => [...labels].sort((one, other) => other.length - one.length).slice(0, 20);

/** Lets the pointer drag the window. */
function pan(picture, view, redraw) {
  let from = null;
  picture.addEventListener("pointerdown", (event) => {
    from = { x: event.clientX, y: event.clientY, view: { ...view } };
    if (event.pointerType === "mouse") picture.setPointerCapture?.(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return;
    view.x = from.view.x - (event.clientX - from.x) / view.cell;
    view.y = from.view.y - (event.clientY - from.y) / view.cell;
    redraw();
  });
  picture.addEventListener("pointerup", () => (from = null));
  picture.addEventListener("pointercancel", () => (from = null));
}

// The grid of all layers and heads of a site: a small picture of each map, which opens it.

/** `paint(map, row)` returns the small picture; `levels` are the places of layer and head in the paths. */
export function headGrid(maps, [layerLevel, headLevel], current, paint, open) {
  const names = (level) => [...new Set(maps.map((map) => map.path[level]))];
  const [layers, heads] = [names(layerLevel), names(headLevel)];
  const grid = make("div", { class: "heads", role: "group", "aria-label": "Layers and heads" });
  grid.style.gridTemplateColumns = `max-content repeat(${heads.length}, minmax(4rem, 7rem))`;
  grid.append(make("span"), ...heads.map((name) => make("span", { class: "name" }, [name])));
  const shown = maps.slice(0, MOST_THUMBNAILS), marks = [];
  for (const layer of layers) {
    grid.append(make("span", { class: "name side" }, [layer]));
    for (const head of heads) {
      const map = shown.find((own) => own.path[layerLevel] === layer && own.path[headLevel] === head);
      if (!map) {
        grid.append(make("span"));
        continue;
      }
      const button = make("button", { type: "button", class: "thumb", "aria-label": placeName(map), "aria-current": map === current });
      const line = make("span", { class: "line", hidden: "" });
      button.append(paint(map, null), line);
      button.addEventListener("click", () => open(map.path));
      marks.push({ map, line, button });
      grid.append(button);
    }
  }
  const mark = (place) => {
    const row = place?.row ?? null;
    for (const { map, line, button } of marks) {
      line.hidden = row === null || row >= map.rows.length || Boolean(map.grid);
      Object.assign(line.style, { top: `${(100 * row) / map.rows.length}%`, height: `${100 / map.rows.length}%` });
      if (map.grid) button.firstChild.replaceWith(paint(map, row));
    }
  };
  return { picture: make("div", { class: "picture heads-frame" }, [grid]), find: () => undefined, move: () => null, mark, legend: ["open a map to see its numbers"] };
}

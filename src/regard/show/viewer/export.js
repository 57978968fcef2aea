// Saves what is shown: as SVG, as PNG, and the play as GIF or WebM. Everything is drawn from the elements of the page.

import { make, shape } from "./parts.js";

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "stroke-dasharray", "opacity", "visibility", "font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor", "dominant-baseline"];
const MARGIN = 20; // around a saved picture, in pixels
const MOST_DOTS = 1500; // of a frame of a GIF, on its longer side
export const MOST_STEPS = 100; // of a GIF or a video, as in show/walk.py
const SAMPLES = 8; // frames of a GIF, about, from which its colours are chosen
const STEP = 0.6, END = 2; // seconds of a token, and of the last one
const NOT_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

// From elements to an SVG.

/** What an element shows as a stand-alone SVG, without parts that have the attribute data-unsaved. */
export function toSvg(root) {
  const origin = root.getBoundingClientRect(), parts = [], extent = { right: origin.width, bottom: 0 };
  const reach = (right, bottom) => Object.assign(extent, { right: Math.max(extent.right, right), bottom: Math.max(extent.bottom, bottom) });
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return parts.push(...texts(node, origin));
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches("[data-unsaved], .unseen")) return;
    const style = getComputedStyle(node), box = node.getBoundingClientRect();
    if (style.display === "none" || style.visibility === "hidden" || !box.width) return;
    const place = { x: box.left - origin.left, y: box.top - origin.top, width: box.width, height: box.height };
    if (node !== root) {
      parts.push(...ground(style, place));
      reach(place.x + place.width, place.y + place.height);
    }
    if (node.localName === "canvas") parts.push(shape("image", { ...place, href: node.toDataURL(), preserveAspectRatio: "none", "image-rendering": style.imageRendering }));
    else if (node.localName === "svg") parts.push(drawing(node, place));
    else for (const child of node.childNodes) visit(child);
  };
  visit(root);
  const [width, height] = [Math.ceil(extent.right + 2 * MARGIN), Math.ceil(extent.bottom + 2 * MARGIN)];
  const paper = shape("rect", { x: -MARGIN, y: -MARGIN, width, height, fill: getComputedStyle(root.closest(".regard")).backgroundColor });
  const svg = shape("svg", { viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, width, height }, [paper, ...parts]);
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

/** The background and the outline of an element. */
function ground(style, place) {
  const [rounded, parts] = [parseFloat(style.borderTopLeftRadius) || 0, []];
  const isSeen = (colour) => !/^rgba\(.*, 0\)$|^transparent$/.test(colour);
  if (isSeen(style.backgroundColor)) parts.push(shape("rect", { ...place, rx: rounded, fill: style.backgroundColor }));
  if (parseFloat(style.borderTopWidth) && !parseFloat(style.borderBottomWidth)) {
    const dashes = style.borderTopStyle === "dotted" ? { "stroke-dasharray": "3 3" } : {}, y = place.y + parseFloat(style.borderTopWidth) / 2;
    return [...parts, shape("line", { x1: place.x, x2: place.x + place.width, y1: y, y2: y, stroke: style.borderTopColor, "stroke-width": parseFloat(style.borderTopWidth), ...dashes })];
  }
  const lines = [[style.outlineStyle, style.outlineWidth, style.outlineColor], [style.borderBottomStyle, style.borderBottomWidth, style.borderBottomColor]];
  const [kind, width, colour] = lines.find(([own, size]) => own !== "none" && parseFloat(size)) ?? [];
  if (!kind || !isSeen(colour)) return parts;
  if (style.borderTopStyle !== "none" || style.outlineStyle !== "none") parts.push(shape("rect", { ...place, rx: rounded, fill: "none", stroke: colour, "stroke-width": parseFloat(width) }));
  return parts;
}

/** The lines of a text node, each as one text. */
function texts(node, origin) {
  const style = getComputedStyle(node.parentElement), size = parseFloat(style.fontSize), lines = [];
  if (!node.data.trim() || style.visibility === "hidden") return [];
  const range = document.createRange();
  for (const { index, 0: word } of node.data.matchAll(/\s*\S+\s*/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getClientRects()[0];
    if (!box) continue;
    const last = lines.at(-1);
    if (last && Math.abs(last.box.top - box.top) < 2) last.words += word;
    else lines.push({ box, words: word });
  }
  const common = { "font-size": size, "font-family": style.fontFamily, "font-weight": style.fontWeight, fill: style.color, opacity: opacityOf(node.parentElement), "xml:space": "preserve" };
  return lines.map(({ box, words }) => {
    const place = { x: box.left - origin.left, y: box.top - origin.top + box.height / 2, "dominant-baseline": "central" };
    return shape("text", { ...common, ...place }, [words.replace(NOT_XML, "\ufffd")]);
  });
}

/** The product of the opacities of an element and of those around it. */
const opacityOf = (element) => (element.matches(".regard") ? 1 : Number(getComputedStyle(element).opacity) * opacityOf(element.parentElement));

/** A copy of an SVG of the page, whose style does not depend on the style sheet. */
function drawing(svg, place) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((own) => [own, ...own.querySelectorAll("*")]);
  from.forEach((element, index) => {
    const style = getComputedStyle(element), own = to[index];
    for (const name of STYLES) own.style.setProperty(name, style.getPropertyValue(name));
    own.removeAttribute("class");
    if (!own.childElementCount && own.textContent) own.textContent = own.textContent.replace(NOT_XML, "\ufffd");
  });
  for (const [name, value] of Object.entries({ ...place, overflow: "visible" })) copy.setAttribute(name, value);
  return copy;
}

// From an SVG to pixels.

/** The SVG as a canvas that is `sharp` times as large. */
async function rasterise({ text, width, height }, sharp, canvas = make("canvas")) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })), image = make("img", { src: address });
  try {
    await image.decode();
    if (canvas.width !== Math.round(width * sharp)) canvas.width = Math.round(width * sharp);
    if (canvas.height !== Math.round(height * sharp)) canvas.height = Math.round(height * sharp);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  } finally {
    URL.revokeObjectURL(address);
  }
  return canvas;
}

export async function toPng(root) {
  const canvas = await rasterise(toSvg(root), 2);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/** The moments of a play, each as an SVG, for at most `MOST_STEPS` steps: `show(step)` draws one; all have the size of the largest. */
function moments(root, steps, show) {
  const pictures = Array.from({ length: Math.min(steps, MOST_STEPS) + 1 }, (_, step) => {
    show(step);
    return toSvg(root);
  });
  const size = (name) => Math.max(...pictures.map((picture) => picture[name]));
  return { pictures, width: size("width"), height: size("height") };
}

/** The play of at most `MOST_STEPS` steps; one frame at a time is in memory as pixels. */
export async function toGif(root, steps, show) {
  const { pictures, width, height } = moments(root, steps, show), sharp = Math.min(1, MOST_DOTS / Math.max(width, height));
  const canvas = make("canvas"), drawn = make("canvas");
  [canvas.width, canvas.height] = [Math.round(width * sharp), Math.round(height * sharp)];
  const pen = canvas.getContext("2d", { willReadFrequently: true }), paper = getComputedStyle(root.closest(".regard")).backgroundColor;
  const frame = async (picture) => {
    const image = await rasterise(picture, sharp, drawn);
    pen.fillStyle = paper;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0);
    return pen.getImageData(0, 0, canvas.width, canvas.height);
  };
  const last = pictures.length - 1, counts = new Map(), apart = Math.ceil(pictures.length / SAMPLES);
  for (const [index, picture] of pictures.entries()) if (index % apart === 0 || index === last) countColours(counts, await frame(picture));
  const animation = gif(canvas.width, canvas.height, quantise(counts));
  for (const [index, picture] of pictures.entries()) animation.add(await frame(picture), index === last ? END : STEP);
  return new Blob(animation.end(), { type: "image/gif" });
}

export const canRecord = () => typeof MediaRecorder !== "undefined" && MediaRecorder.isTypeSupported("video/webm") && "captureStream" in HTMLCanvasElement.prototype;

/** Records at most `MOST_STEPS` steps of the play as a video; this takes as long as they do. */
export async function toWebm(root, steps, show) {
  const { pictures, width, height } = moments(root, steps, show), canvas = make("canvas", { width, height });
  const pen = canvas.getContext("2d"), paper = getComputedStyle(root.closest(".regard")).backgroundColor;
  const draw = async (picture) => {
    const frame = await rasterise(picture, 1);
    pen.fillStyle = paper;
    pen.fillRect(0, 0, width, height);
    pen.drawImage(frame, 0, 0);
  };
  await draw(pictures[0]);
  const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: "video/webm" }), parts = [];
  recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
  const ended = new Promise((done) => recorder.addEventListener("stop", done));
  recorder.start();
  for (const [index, picture] of pictures.entries()) {
    const until = performance.now() + 1000 * (index === pictures.length - 1 ? END : STEP);
    await draw(picture);
    while (performance.now() < until) {
      await new Promise((done) => setTimeout(done, 60));
      pen.drawImage(canvas, 0, 0, 1, 1, 0, 0, 1, 1); // a canvas that does not change gives no frames
    }
  }
  recorder.stop();
  await ended;
  return new Blob(parts, { type: "video/webm" });
}

/** Lets the browser save a file. */
export function download(blob, name) {
  const address = URL.createObjectURL(blob), link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// GIF89a (1990): one palette for all frames, and of each frame only what has changed.

/** A GIF of images of one size: `add` encodes one, which is shown for so many seconds, and `end` returns the parts. */
export function gif(width, height, { colours, indexOf }) {
  const out = [];
  const word = (number) => [number & 255, number >> 8];
  out.push(...new TextEncoder().encode("GIF89a"), ...word(width), ...word(height), 0xf7, 0, 0);
  for (let index = 0; index < 256; index++) out.push(...(colours[index] ?? [0, 0, 0]));
  out.push(0x21, 0xff, 11, ...new TextEncoder().encode("NETSCAPE2.0"), 3, 1, 0, 0, 0); // for ever
  const chunks = [Uint8Array.from(out)];
  let before = null;
  const add = (frame, seconds) => {
    const now = indexOf(frame), box = changed(before, now, width, height), delay = Math.round(100 * seconds);
    const dots = new Uint8Array(box.width * box.height);
    for (let y = 0; y < box.height; y++) {
      for (let x = 0; x < box.width; x++) {
        const place = (box.y + y) * width + box.x + x;
        dots[y * box.width + x] = before && before[place] === now[place] ? 255 : now[place]; // 255 is transparent
      }
    }
    chunks.push(Uint8Array.from([0x21, 0xf9, 4, 0x05, ...word(delay), 255, 0]));
    chunks.push(Uint8Array.from([0x2c, ...word(box.x), ...word(box.y), ...word(box.width), ...word(box.height), 0]));
    chunks.push(compressed(dots));
    before = now;
  };
  return { add, end: () => [...chunks, Uint8Array.of(0x3b)] };
}

/** The smallest rectangle with all dots that differ. */
function changed(before, now, width, height) {
  if (!before) return { x: 0, y: 0, width, height };
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let place = 0; place < now.length; place++) {
    if (before[place] === now[place]) continue;
    const x = place % width, y = Math.floor(place / width);
    [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
  }
  return right < 0 ? { x: 0, y: 0, width: 1, height: 1 } : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
}

/** A colour in five bits for each of its parts. */
const codeOf = (dot) => ((dot & 0xf8) << 7) | ((dot >> 6) & 0x3e0) | ((dot >> 19) & 0x1f);

const partsOf = (dot) => [dot & 255, (dot >> 8) & 255, (dot >> 16) & 255];

/** Adds the dots of a frame to the counts of colours, by their codes. */
export function countColours(counts, { data }) {
  for (const dot of new Uint32Array(data.buffer)) {
    const code = codeOf(dot), own = counts.get(code);
    if (own) own.count++;
    else counts.set(code, { code, count: 1, colour: partsOf(dot) });
  }
}

/** At most 255 colours (median cut, Heckbert 1982), and the function that gives the dots of a frame; a colour that was not counted gets the nearest. */
export function quantise(counts) {
  const boxes = [[...counts.values()]];
  while (boxes.length < 255) {
    const widths = boxes.map((box) => (box.length < 2 ? [0, 0] : spread(box)));
    const worst = widths.reduce((best, [size], index) => (size > widths[best][0] ? index : best), 0);
    if (!widths[worst][0]) break;
    boxes.push(halved(boxes[worst], widths[worst][1]));
  }
  const table = new Int16Array(32768).fill(-1), colours = boxes.map((box, index) => {
    const total = box.reduce((sum, { count }) => sum + count, 0);
    for (const { code } of box) table[code] = index;
    return [0, 1, 2].map((part) => Math.round(box.reduce((sum, { colour, count }) => sum + colour[part] * count, 0) / total));
  });
  const nearest = (dot) => {
    const wanted = partsOf(dot), distances = colours.map((own) => own.reduce((sum, part, side) => sum + (part - wanted[side]) ** 2, 0));
    return distances.indexOf(Math.min(...distances));
  };
  const index = (dot) => {
    const code = codeOf(dot);
    if (table[code] < 0) table[code] = nearest(dot);
    return table[code];
  };
  const indexOf = ({ data }) => Uint8Array.from(new Uint32Array(data.buffer), index);
  return { colours, indexOf };
}

/** The widest side of a box of colours, weighted by how often they occur, and which side it is. */
function spread(box) {
  const sides = [0, 1, 2].map((part) => {
    const values = box.map(({ colour }) => colour[part]);
    return Math.max(...values) - Math.min(...values);
  });
  const side = sides.indexOf(Math.max(...sides)), total = box.reduce((sum, { count }) => sum + count, 0);
  return [sides[side] * Math.sqrt(total), side];
}

/** Cuts a box at the median of one side; returns the upper half and leaves the lower one. */
function halved(box, side) {
  box.sort((one, other) => one.colour[side] - other.colour[side]);
  const total = box.reduce((sum, { count }) => sum + count, 0);
  let [sum, place] = [0, 0];
  while (place < box.length - 1 && sum < total / 2) sum += box[place++].count;
  return box.splice(Math.max(1, place));
}

/** The dots in blocks of at most 255 bytes, compressed by LZW (Welch 1984) with 8 bits a dot. */
function compressed(dots) {
  const [CLEAR, STOP, MOST] = [256, 257, 4096], out = [8], codes = new Map();
  let [width, next, buffer, bits, block] = [9, 258, 0, 0, []];
  const write = (code) => {
    buffer |= code << bits;
    bits += width;
    while (bits >= 8) {
      block.push(buffer & 255);
      buffer >>>= 8;
      bits -= 8;
      if (block.length === 255) flush();
    }
  };
  const flush = () => {
    out.push(block.length, ...block);
    block = [];
  };
  write(CLEAR);
  let prefix = dots[0];
  for (let place = 1; place < dots.length; place++) {
    const key = (prefix << 8) | dots[place], known = codes.get(key);
    if (known !== undefined) {
      prefix = known;
      continue;
    }
    write(prefix);
    if (next < MOST) {
      codes.set(key, next++);
      if (next > 1 << width && width < 12) width++;
    } else {
      write(CLEAR);
      codes.clear();
      [width, next] = [9, 258];
    }
    prefix = dots[place];
  }
  write(prefix);
  write(STOP);
  if (bits) block.push(buffer & 255);
  if (block.length) flush();
  out.push(0);
  return Uint8Array.from(out);
}

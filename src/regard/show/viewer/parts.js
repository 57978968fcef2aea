// Parts that all drawings of the viewer share: elements, labels, numbers, colours. Texts are inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg", XHTML = "http://www.w3.org/1999/xhtml";
export const LONGEST = 24; // longest label that is drawn, in letters; the readout shows more of it
const LONGEST_READ = 200; // longest label in the readout
export const LEAST = 11; // least size of a cell with a label of its own, in pixels

// Elements.

export function make(name, attributes = {}, children = [], namespace = XHTML) {
  const element = document.createElementNS(namespace, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const shape = (name, attributes, children) => make(name, attributes, children, SVG);

/** A group of buttons of which one is pressed. */
export function choice(label, options, chosen, choose) {
  const group = make("div", { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = make("button", { type: "button", "aria-pressed": value === chosen, value }, [text]);
    button.addEventListener("click", () => {
      press(group, value);
      choose(value);
    });
    group.append(button);
  }
  return group;
}

export function press(group, value) {
  for (const button of group.children) button.setAttribute("aria-pressed", button.value === value);
}

/** The row and the column that an element stands for, or null. */
export function labelled(target) {
  const number = (text) => (text === undefined ? null : Number(text));
  const place = { row: number(target.dataset?.row), column: number(target.dataset?.column) };
  return place.row === null && place.column === null ? null : place;
}

// Numbers.

export const within = (number, least, most) => Math.min(Math.max(number, least), most);
export const digits = (number) => (Number.isFinite(number) ? number.toFixed(3).replace("-", "−") : "NaN");
export const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** The largest weight; of a difference of two maps, that farthest from 0. NaN counts as 0. */
export function largest(weights) {
  let best = 0;
  for (const weight of weights) if (Math.abs(weight) > best) best = Math.abs(weight);
  return best;
}

/** The indices of the largest weights, largest first. */
export function heaviest(weights, count) {
  const best = [];
  for (let index = 0; index < weights.length; index++) {
    const size = Math.abs(weights[index]) || 0;
    if (best.length === count && size <= best.at(-1)[0]) continue;
    let place = best.length;
    while (place && best[place - 1][0] < size) place--;
    best.splice(place, 0, [size, index]);
    best.length = Math.min(best.length, count);
  }
  return best.map(([, index]) => index);
}

/** A number with four digits, or all digits before the point. */
export function short(value) {
  if (value === null || value === undefined) return "NaN";
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e7) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return size !== 0 && (size >= 1e7 || size < 1e-4) ? value.toExponential(3).replace("e+", "e") : String(Number(value.toPrecision(4)));
}

// Labels.

function cut(label, longest) {
  if (label.length <= longest) return label;
  const letters = [...label.slice(0, 2 * longest)];
  return letters.length > longest || label.length > 2 * longest ? letters.slice(0, longest - 1).join("") + "…" : label;
}

export const clipped = (label) => cut(label, LONGEST);
export const readable = (label) => cut(label, LONGEST_READ);
export const single = (label) => label.length <= 4 && [...label.normalize("NFC")].length === 1;
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const plural = (number, noun) => `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;

const ruler = document.createElement("canvas").getContext("2d");

/** The width of the widest of the labels in pixels. */
export function widest(labels, size) {
  ruler.font = `${size}px ${property("--letters")}`;
  return labels.reduce((most, label) => Math.max(most, ruler.measureText(clipped(label)).width), 0);
}

/** The labels that have room beside cells of that size, each with its index. */
export function thinned(labels, cell) {
  const every = Math.ceil(LEAST / cell);
  return labels.map((label, index) => [label, index]).filter(([, index]) => index % every === 0);
}

// Colours.

export const property = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const sharpness = () => Math.min(devicePixelRatio || 1, 4);
export const parseColour = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

/** The colours of weights from -1 to 1, as 511 triples of bytes: 0 is in the middle. */
export function colours() {
  const ramp = (name) => [0, 1, 2, 3, 4].map((step) => parseColour(property(step ? `--${name}-${step}` : "--ramp-0")));
  const [plus, minus] = [ramp("ramp"), ramp("minus")];
  return Array.from({ length: 511 }, (_, index) => tint(index < 255 ? minus : plus, Math.abs(index - 255) / 255));
}

function tint(ramp, weight) {
  const place = weight * (ramp.length - 1), lower = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[lower].map((part, index) => Math.round(part + (ramp[lower + 1][index] - part) * (place - lower)));
}

/** The index of a weight's colour, if the darkest weight is `top`. */
export const shade = (weight, top) => 255 + (Math.round(within(weight / top, -1, 1) * 255) || 0);

/** The scale below a map as a small canvas with its ends. */
export function scaleBar(map) {
  const canvas = make("canvas", { class: "ramp", width: 256, height: 1, "aria-hidden": "true" });
  const pen = canvas.getContext("2d"), image = pen.createImageData(256, 1), palette = colours();
  for (let dot = 0; dot < 256; dot++) image.data.set([...palette[map.signed ? 2 * dot : 255 + dot], 255], 4 * dot);
  pen.putImageData(image, 0, 0);
  const end = map.darkest ?? "1";
  return make("span", { class: "scale" }, [map.signed ? `−${end}` : "0", canvas, map.signed ? `+${end}` : end]);
}

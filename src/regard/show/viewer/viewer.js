// The viewer of attention maps: one or several models, each in a panel, with a play button, choices and exports.
//
// `mount(element, data, options)` shows data of regard.show.viewer_data, which documents their format. It needs viewer.css and
// these modules, nothing else: no framework, no server, no inline style or handler. Labels are inserted as text.

import { canRecord, download, MOST_STEPS, toGif, toPng, toSvg, toWebm } from "./export.js";
import { MOST_WORDS, lines } from "./lines.js";
import { describe, difference, isBelow, mapsAt, readPanels, summary, table, tokensOf, topOf } from "./maps.js";
import { dotted, headGrid, matrix } from "./matrix.js";
import { capital, choice, colours, labelled, make, press, readable, shade, single, within } from "./parts.js";
import { compose, heat, onSource } from "./sources.js";

const NAMES = { picture: "Picture", recording: "Recording", series: "Forecast" };
const HINTS = {
  matrix: "Point at a cell or a word to see its numbers, or focus the picture and use the arrow keys.",
  lines: "Point at a word to see its numbers, or focus the picture and use the arrow keys.",
  heads: "Open a map to see its numbers.",
  source: "Point at a word to see where its weight is, or focus the picture and use the arrow keys.",
  series: "Point at a step of the forecast to see its numbers, or focus the picture and use the arrow keys.",
};
const TOKEN_TIME = 700; // milliseconds of a token while it is played
const MOST_TOKENS = 400; // of a text that is shown above its matrix
const PAGE = 10; // rows of Page Up and Page Down

/** Shows `data` inside `root`. Options, all optional:
 * view: "matrix", "lines", "heads" or "source", which is shown first;
 * bare: true leaves out the card and the title, for pages that have their own;
 * pick: a function that is called with {panel, path, rows, columns, output, source} when a cell or word is clicked, or
 * chosen with Enter; rows and columns are the numbers of its first and last token, counted from 1, or null for a word.
 * Returns {update(data), play(), stop(), step(number), destroy()}. */
export function mount(root, data, options = {}) {
  const viewer = { root, options, panels: [], view: "", unit: 0, step: null, timer: null, sound: null, isDifferent: false, ending: new AbortController() };
  const update = (content) => {
    stop(viewer);
    build(viewer, content);
  };
  update(data);
  const { signal } = viewer.ending;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(viewer), { signal });
  const observer = new ResizeObserver(() => {
    if (root.clientWidth !== viewer.width) draw(viewer);
  });
  observer.observe(root);
  const destroy = () => {
    stop(viewer);
    observer.disconnect();
    viewer.ending.abort();
    root.replaceChildren();
  };
  return { update, play: () => play(viewer), stop: () => stop(viewer), step: (number) => setStep(viewer, number), destroy };
}

// The frame of the page.

function build(viewer, data) {
  const { root, options } = viewer;
  viewer.panels = readPanels(data).map((own, index) => makePanel(viewer, own, index));
  viewer.view = startView(viewer, options.view);
  viewer.unit = viewer.panels.some(({ own }) => own.views.length) ? 1 : 0; // on a picture, words are whole
  [viewer.step, viewer.isDifferent] = [null, false];
  viewer.title = data.title || "Attention map";
  viewer.views = make("div");
  viewer.units = make("div");
  viewer.pair = make("div");
  const bar = make("div", { class: "bar", "data-unsaved": "" }, [viewer.views, viewer.units, viewer.pair]);
  const heading = options.bare ? [] : [make("h1", {}, [viewer.title])];
  viewer.grid = make("div", { class: "panels" }, viewer.panels.map((panel) => panel.element));
  viewer.apart = makeDifference(viewer);
  viewer.shown = make("div", { class: "shown" }, [...heading, bar, transport(viewer), viewer.grid, viewer.apart.element]);
  root.classList.add("regard");
  root.classList.toggle("bare", Boolean(options.bare));
  root.classList.toggle("several", viewer.panels.length > 1);
  root.replaceChildren(viewer.shown, exports(viewer));
  draw(viewer);
}

function startView(viewer, wanted) {
  const named = wanted === "heat" ? "matrix" : wanted;
  if (["matrix", "lines", "heads"].includes(named)) return named;
  return viewer.panels.some(({ own }) => own.views.length) ? "source" : "matrix";
}

/** Draws everything anew: after a choice, or if the width or the colours have changed. */
function draw(viewer) {
  for (const panel of viewer.panels) panel.refill();
  const kinds = viewer.panels.flatMap(({ own }) => own.views.map(({ kind }) => kind));
  const hasWeights = viewer.panels.some(({ own }) => own.maps.some((map) => map.columns.length));
  const hasHeads = viewer.panels.some((panel) => headLevels(panel) !== null);
  const views = [...(kinds.length ? [["source", NAMES[kinds[0]]]] : []), ...(hasWeights ? [["matrix", "Matrix"], ["lines", "Lines"]] : []), ...(hasHeads ? [["heads", "Heads"]] : [])];
  const group = choice("View", views, viewer.view, (name) => {
    viewer.view = name;
    draw(viewer);
  });
  keepFocus(viewer.views, views.length > 1 ? [group] : []);
  const names = viewer.panels.map(unitNames).reduce((most, own) => (own.length > most.length ? own : most), []);
  const units = choice("Unit", names.map((name, index) => [String(index), capital(name)]), String(Math.min(viewer.unit, names.length - 1)), (index) => {
    viewer.unit = Number(index);
    draw(viewer);
  });
  keepFocus(viewer.units, names.length > 1 ? [units] : []);
  keepFocus(viewer.pair, viewer.panels.length === 2 ? [pairChoice(viewer)] : []);
  viewer.width = viewer.root.clientWidth;
  viewer.grid.hidden = viewer.isDifferent;
  viewer.apart.element.hidden = !viewer.isDifferent;
  for (const panel of viewer.panels) panel.draw();
  if (viewer.isDifferent) viewer.apart.draw();
  const steps = stepCount(viewer);
  viewer.slider.max = steps;
  viewer.slider.disabled = viewer.button.disabled = !steps;
  setStep(viewer, viewer.step === null || viewer.step > steps ? null : viewer.step);
}

/** Replaces the buttons of a group and focuses the same one again. */
function keepFocus(place, children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.value : null;
  place.replaceChildren(...children);
  if (focused !== null) [...place.querySelectorAll("button")].find((button) => button.value === focused)?.focus();
}

const unitNames = (panel) => mapsAt(panel.own).map((map) => map.name);

/** Side by side, or the difference of both maps, if they have the same axes. */
function pairChoice(viewer) {
  const isPossible = differenceOf(viewer) !== null;
  if (!isPossible) viewer.isDifferent = false;
  const group = choice("Models", [["both", "Side by side"], ["difference", "Difference"]], viewer.isDifferent ? "difference" : "both", (value) => {
    viewer.isDifferent = value === "difference";
    draw(viewer);
  });
  const button = group.lastChild;
  button.disabled = !isPossible;
  if (!isPossible) button.title = "The two maps have different outputs or sources.";
  return group;
}

function differenceOf(viewer) {
  const [one, other] = viewer.panels.map((panel) => panel.current());
  const apart = one && other ? difference(one, other) : null;
  return apart && apart.rows.length && apart.columns.length ? apart : null;
}

/** A panel of the first map less the second. */
function makeDifference(viewer) {
  if (viewer.panels.length !== 2) return { element: make("div", { hidden: "" }), draw: () => {}, show: () => {} };
  const [one, other] = viewer.panels.map(({ own }, index) => own.name || `model ${index + 1}`);
  const own = { name: `${one} − ${other}`, choices: [], outputs: [], views: [], maps: [], path: [] };
  const panel = makePanel(viewer, own, 0);
  const drawOwn = panel.draw;
  panel.draw = () => {
    const apart = differenceOf(viewer);
    own.maps = apart ? [apart] : [];
    if (apart) drawOwn();
  };
  return panel;
}

// Play: the output appears token by token. A step is the number of tokens that are written; null shows all, none chosen.

function transport(viewer) {
  viewer.button = make("button", { type: "button", class: "play" }, ["▶ Play"]);
  viewer.button.addEventListener("click", () => play(viewer));
  viewer.slider = make("input", { type: "range", min: 0, value: 0, "aria-label": "Tokens written" });
  viewer.slider.addEventListener("input", () => {
    stop(viewer);
    setStep(viewer, Number(viewer.slider.value));
  });
  viewer.count = make("span", { class: "count" });
  const sounds = viewer.panels.flatMap(({ own }) => own.views.filter((view) => view.sound));
  viewer.quiet = make("button", { type: "button", class: "plain", "aria-pressed": "true" }, ["♪ Sound"]);
  viewer.quiet.addEventListener("click", () => {
    const isOn = viewer.quiet.getAttribute("aria-pressed") === "true";
    viewer.quiet.setAttribute("aria-pressed", !isOn);
    if (viewer.sound) viewer.sound.muted = isOn;
  });
  return make("div", { class: "transport", "data-unsaved": "" }, [viewer.button, viewer.slider, viewer.count, ...(sounds.length ? [viewer.quiet] : [])]);
}

const shownPanels = (viewer) => (viewer.isDifferent ? [viewer.apart] : viewer.panels);
const stepCount = (viewer) => Math.max(0, ...shownPanels(viewer).map((panel) => panel.current()?.rows.length ?? 0));

function setStep(viewer, step) {
  viewer.step = step;
  for (const panel of shownPanels(viewer)) panel.atStep(step);
  showCount(viewer);
}

function showCount(viewer) {
  const steps = stepCount(viewer), step = viewer.step ?? steps;
  viewer.slider.value = step;
  viewer.slider.setAttribute("aria-valuetext", `${step} of ${steps}`);
  viewer.count.textContent = `${step.toLocaleString("en-US")} / ${steps.toLocaleString("en-US")}`;
}

function play(viewer) {
  if (viewer.timer !== null) return stop(viewer);
  const steps = stepCount(viewer);
  if (!steps) return;
  if (viewer.step === null || viewer.step >= steps) setStep(viewer, 0); // begins again
  viewer.button.textContent = "❚❚ Pause";
  const panel = viewer.panels.find((own) => own.current()?.source?.sound);
  if (panel && viewer.quiet.getAttribute("aria-pressed") === "true") return playSound(viewer, panel);
  playSilently(viewer);
}

function playSilently(viewer) {
  const next = () => {
    if (!viewer.root.isConnected || viewer.step >= stepCount(viewer)) return stop(viewer);
    setStep(viewer, viewer.step + 1);
    if (viewer.step >= stepCount(viewer)) stop(viewer);
  };
  viewer.timer = setInterval(next, TOKEN_TIME);
  next();
}

/** Plays the recording; a token appears when its time is heard. */
function playSound(viewer, panel) {
  const { source, times } = panel.current(), sound = (viewer.sound = new Audio(source.sound));
  sound.currentTime = viewer.step > 0 ? (times[viewer.step - 1] ?? 0) : 0;
  const follow = () => {
    if (viewer.sound !== sound) return;
    const heard = times.findLastIndex((time) => time !== null && time <= sound.currentTime) + 1;
    panel.hear(sound.currentTime);
    if (heard > viewer.step) setStep(viewer, heard);
    if (sound.ended) {
      setStep(viewer, stepCount(viewer));
      return stop(viewer);
    }
    viewer.timer = requestAnimationFrame(follow);
  };
  viewer.timer = 0;
  sound.play().then(follow, () => {
    if (viewer.sound !== sound) return;
    viewer.sound = null;
    playSilently(viewer); // the browser allows no sound here
  });
}

function stop(viewer) {
  if (viewer.timer === null) return;
  if (viewer.sound) {
    viewer.sound.pause();
    cancelAnimationFrame(viewer.timer);
    for (const panel of viewer.panels) panel.hear(null);
  } else clearInterval(viewer.timer);
  [viewer.timer, viewer.sound] = [null, null];
  viewer.button.textContent = "▶ Play";
}

// Exports of what is shown.

function exports(viewer) {
  const status = make("span", { role: "status" }), name = (ending) => `attention-${viewer.isDifferent ? "difference" : viewer.view}.${ending}`;
  const walk = (make) => () => make(viewer.shown, stepCount(viewer), (step) => setStep(viewer, step));
  const kinds = [
    ["PNG", "picture", () => toPng(viewer.shown)],
    ["SVG", "drawing", () => new Blob([toSvg(viewer.shown).text], { type: "image/svg+xml" })],
    ["GIF", "play as an animation", walk(toGif)],
    ...(canRecord() ? [["WebM", "play as a video", walk(toWebm)]] : []),
  ];
  const buttons = kinds.map(([kind, words, draw]) => {
    const button = make("button", { type: "button", class: "plain", value: kind.toLowerCase(), "aria-label": `Save the ${words} as ${kind}`, title: `Save the ${words}` }, [kind]);
    button.addEventListener("click", () => save(viewer, status, buttons, draw, name(kind.toLowerCase()), isPlay(kind) ? partOf(viewer) : ""));
    return button;
  });
  return make("div", { class: "save" }, [make("span", {}, ["Save as"]), ...buttons, status]);
}

const isPlay = (kind) => kind === "GIF" || kind === "WebM";

/** What a GIF or a video leaves out. */
function partOf(viewer) {
  const steps = stepCount(viewer);
  return steps > MOST_STEPS ? `; it has the first ${MOST_STEPS} of ${steps.toLocaleString("en-US")} steps` : "";
}

async function save(viewer, status, buttons, draw, name, part) {
  stop(viewer);
  const { step } = viewer, places = shownPanels(viewer).map((panel) => panel.place);
  for (const button of buttons) button.disabled = true;
  status.textContent = "drawing …";
  viewer.root.classList.add("still"); // without transitions
  try {
    download(await draw(), name);
    status.textContent = `saved as ${name}${part}`;
  } catch (error) {
    status.textContent = `could not be saved: ${error.message}`;
  } finally {
    viewer.root.classList.remove("still");
    for (const button of buttons) button.disabled = false;
    setStep(viewer, step);
    shownPanels(viewer).forEach((panel, index) => places[index] && panel.show(places[index], null));
  }
}

// A panel: the maps of one model.

function makePanel(viewer, own, index) {
  const parts = {
    name: make("h2", {}, [own.name]),
    bar: make("div", { class: "bar", "data-unsaved": "" }),
    outputs: make("div", { class: "outputs", role: "group", "aria-label": "Outputs" }),
    readout: make("p", { class: "readout", role: "status" }),
    story: make("div", { class: "story" }),
    stage: make("figure", { class: "stage" }),
    honesty: make("p", { class: "honesty" }),
    caption: make("p", { class: "caption" }),
  };
  const { name, ...others } = parts;
  const element = make("section", { class: "panel-of-model", "aria-label": own.name || "Attention map" }, [...(own.name ? [name] : []), ...Object.values(others)]);
  const panel = { viewer, own, index, parts, element, place: null, drawing: null, story: null };
  panel.current = () => {
    const maps = mapsAt(own);
    return maps[Math.min(viewer.unit, maps.length - 1)];
  };
  panel.draw = () => drawPanel(panel);
  panel.show = (place, revealed) => showPlace(panel, place, revealed);
  panel.atStep = (step) => showPlace(panel, ...placeAt(panel.current(), step));
  panel.hear = (time) => panel.drawing?.hear?.(time);
  const boxes = selects(own, () => choosePath(panel));
  panel.refill = () => {
    boxes.fill();
    parts.bar.hidden = boxes.isIdle(); // nothing can be chosen
  };
  parts.bar.append(...boxes.elements);
  return panel;
}

/** The place and the last row that is shown if so many tokens are written. */
function placeAt(map, step) {
  const rows = map?.rows.length ?? 0;
  if (step === null || step > rows) return [null, null];
  return [step === 0 ? null : { row: step - 1, column: null }, step < rows ? step - 1 : null];
}

function choosePath(panel) {
  stop(panel.viewer);
  draw(panel.viewer);
}

function drawPanel(panel) {
  const { viewer, parts } = panel, map = panel.current();
  drawOutputs(panel);
  const kind = viewOf(panel, map);
  panel.kind = kind;
  const room = Math.max(200, parts.stage.clientWidth - 8);
  const drawing = (panel.drawing = drawingOf(panel, map, kind, room));
  const { picture, legend } = drawing;
  if (kind !== "heads") Object.entries({ tabindex: 0, role: "application" }).forEach(([key, value]) => picture.setAttribute(key, value));
  const caption = make("figcaption", { class: "legend" }, legend);
  parts.stage.replaceChildren(make("div", { class: "scroll" }, [picture]), caption, make("div", { class: "unseen" }, [table(map)]));
  panel.story = kind === "matrix" || kind === "heads" ? story(map) : null;
  parts.story.replaceChildren(...(panel.story ? [panel.story.element] : []));
  parts.honesty.textContent = map.honesty ?? "";
  parts.caption.textContent = summary(map);
  listen(panel, picture, (event) => drawing.find(event, panel.place?.row ?? null));
  if (panel.story) listen(panel, panel.story.element, (event) => labelled(event.target));
  const isLong = Math.max(map.rows.length, map.columns.length) > MOST_WORDS;
  const linesButton = buttonOf(viewer.views, "lines");
  if (linesButton && panel.index === 0) {
    linesButton.disabled = isLong;
    linesButton.title = isLong ? `Lines are drawn for at most ${MOST_WORDS} words.` : "";
    press(linesButton.parentElement, kind);
  }
}

const buttonOf = (place, value) => [...place.querySelectorAll("button")].find((button) => button.value === value);

/** The view that is drawn: the chosen one, unless this map cannot be drawn so. */
function viewOf(panel, map) {
  const { view, isDifferent } = panel.viewer;
  if (view === "source" && map.source && !isDifferent) return "source";
  if (view === "heads" && headLevels(panel) && !isDifferent) return "heads";
  if (!map.columns.length && map.source) return "source";
  return view === "lines" && Math.max(map.rows.length, map.columns.length) <= MOST_WORDS ? "lines" : "matrix";
}

function drawingOf(panel, map, kind, room) {
  if (kind === "source") return onSource(map, room);
  if (kind === "lines") return lines(map, room);
  if (kind === "matrix") return matrix(map, room);
  const { own, viewer } = panel, levels = headLevels(panel);
  const maps = own.maps.filter((other) => other.name === map.name && own.choices.every((_, level) => levels.includes(level) || other.path[level] === map.path[level]));
  return headGrid(maps, levels, map, smallMap, (path) => {
    own.path.splice(0, own.path.length, ...path);
    viewer.view = map.source ? "source" : "matrix";
    choosePath(panel);
    panel.parts.stage.querySelector(".picture").focus();
  });
}

/** The levels of layer and head in the paths of a panel, or null if there is nothing to choose. */
function headLevels({ own }) {
  const levels = ["Layer", "Head"].map((name) => own.choices.indexOf(name));
  const isMany = levels.every((level) => level >= 0) && levels.some((level) => new Set(own.maps.map((map) => map.path[level])).size > 1);
  return isMany ? levels : null;
}

/** A small picture of a map for the grid of heads: over a picture, the weights of the chosen word or of the first one. */
function smallMap(map, row) {
  const canvas = map.grid && map.source ? compose(make("canvas"), map.source, heat(map, Math.min(row ?? 0, map.rows.length - 1)), 96) : dotted(map, { step: Math.ceil(Math.max(map.rows.length, map.columns.length, 1) / 200) });
  canvas.setAttribute("aria-hidden", "true");
  return canvas;
}

/** The hypotheses of a search with their scores; each has its own maps. */
function drawOutputs(panel) {
  const { own, parts } = panel, level = own.choices.indexOf("Output");
  const best = Math.max(...own.outputs.map(({ score }) => score ?? -Infinity));
  const buttons = own.outputs.map(({ name, text, score }) => {
    const bar = make("span", { class: "likely", "aria-hidden": "true" });
    bar.style.width = `${100 * Math.exp(within((score ?? -Infinity) - best, -50, 0))}%`;
    const words = [make("span", { class: "rank" }, [`${name}.`]), make("bdi", {}, [readable(text) || "(nothing)"]), make("span", { class: "number" }, [score === null ? "" : score.toFixed(2).replace("-", "−")])];
    const button = make("button", { type: "button", value: name, "aria-pressed": own.path[level] === name, title: `score ${score}` }, [bar, ...words]);
    button.addEventListener("click", () => {
      own.path[level] = name;
      choosePath(panel);
    });
    return button;
  });
  keepFocus(parts.outputs, buttons);
}

/** A select element for each choice; it has the options that maps have under the choices before it. */
function selects(own, changed) {
  const boxes = own.choices.map((name, level) => {
    const box = make("select", { "aria-label": name, title: name });
    box.addEventListener("change", () => {
      own.path[level] = box.value;
      changed();
    });
    return box;
  });
  const fill = () =>
    boxes.forEach((box, level) => {
      const options = [...new Set(own.maps.filter((map) => isBelow(map, own.path, level)).map((map) => map.path[level]))];
      if (!options.includes(own.path[level])) own.path[level] = options[0];
      box.replaceChildren(...options.map((option) => make("option", { value: option }, [option])));
      box.value = own.path[level];
      box.disabled = options.length < 2;
    });
  const elements = boxes.filter((_, level) => own.choices[level] !== "Output"); // outputs are a list of their own
  return { elements, fill, isIdle: () => elements.every((box) => box.disabled) };
}

// The text above a matrix: the source, shaded by the weights of the chosen output, and what is written so far.

function story(map) {
  if (!map.rows.length || map.rows.length + map.columns.length > MOST_TOKENS) return null;
  const palette = colours(), line = (labels, axis, name) => {
    const tokens = labels.map((label, place) => make("span", { class: "token", [`data-${axis}`]: place }, [readable(label)]));
    const isLetters = labels.filter(single).length > 0.8 * labels.length;
    return { tokens, element: make("p", { class: `tokens ${name}${isLetters ? " letters" : ""}` }, tokens) };
  };
  const [source, output] = [line(map.columns, "column", "source"), line(map.rows, "row", "output")];
  const paint = (token, weight, top) => {
    const colour = weight === null || !(Math.abs(weight) / top >= 0.02) ? null : palette[shade(weight, top)];
    token.style.backgroundColor = colour ? `rgb(${colour.join(" ")})` : "";
    token.classList.toggle("deep", weight !== null && Math.abs(weight) / top > 0.55);
  };
  const mark = (place, revealed) => {
    const { row, column } = place ?? { row: null, column: null }, last = revealed ?? map.rows.length - 1;
    source.tokens.forEach((token, index) => {
      paint(token, row === null ? null : map.weights[row][index], row === null ? 1 : topOf(map, row));
      token.classList.toggle("on", index === column);
    });
    output.tokens.forEach((token, index) => {
      paint(token, row === null && column !== null ? map.weights[index][column] : null, topOf(map, index));
      token.classList.toggle("on", index === row);
      token.classList.toggle("future", index > last);
    });
  };
  return { element: make("div", { "aria-hidden": "true" }, [source.element, output.element]), mark };
}

// Pointer and keys.

/** Marks a place in a panel; rows after `revealed` are hidden, unless it is null. */
function showPlace(panel, place, revealed) {
  const map = panel.current();
  if (!panel.drawing || !map) return;
  panel.place = place;
  panel.drawing.mark(place, revealed);
  panel.story?.mark(place, revealed);
  const tell = panel.drawing.tell ?? ((own) => describe(map, own));
  const hint = HINTS[panel.kind === "source" && map.source.kind === "series" ? "series" : panel.kind];
  panel.parts.readout.replaceChildren(...(place ? tell(place) : [hint]));
}

/** Chooses a place by pointer or key; the other panels show the same row. */
function choose(panel, place) {
  const { viewer } = panel, old = panel.place;
  if (place?.row === old?.row && place?.column === old?.column && viewer.step === null) return; // a small move within one cell
  viewer.step = null;
  panel.show(place, null);
  for (const other of shownPanels(viewer)) {
    if (other === panel) continue;
    const isThere = place && place.row !== null && place.row < other.current().rows.length;
    other.show(isThere ? { row: place.row, column: null } : null, null);
  }
  if (place && place.row !== null) {
    viewer.step = place.row + 1;
    showCount(viewer);
    viewer.step = null;
  } else showCount(viewer);
}

function listen(panel, element, find) {
  const { viewer } = panel;
  const point = (event) => {
    if (viewer.timer !== null) return;
    const place = find(event);
    if (place === undefined) return;
    const isSticky = panel.kind === "source" && panel.place && panel.place.row !== null;
    choose(panel, place ?? (isSticky ? { row: panel.place.row, column: null } : null));
  };
  element.addEventListener("pointermove", point);
  element.addEventListener("pointerdown", (event) => {
    stop(viewer);
    point(event);
  });
  element.addEventListener("pointerleave", (event) => {
    if (viewer.timer === null && event.pointerType !== "touch") choose(panel, null);
  });
  element.addEventListener("click", () => pick(panel));
  element.addEventListener("keydown", (event) => pressKey(panel, event));
}

function pressKey(panel, event) {
  if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
  const { viewer } = panel, last = panel.current().rows.length - 1;
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-PAGE, 0], PageDown: [PAGE, 0] };
  const ends = { Home: 0, End: last };
  if (event.key === " ") play(viewer);
  else if (event.key === "Enter") pick(panel);
  else if (event.key === "Escape") move(panel, null);
  else if (event.key in steps) move(panel, panel.drawing.move(panel.place, ...steps[event.key]));
  else if (event.key in ends && last >= 0) move(panel, { row: ends[event.key], column: panel.place?.column ?? null });
  else return;
  event.preventDefault();
}

function move(panel, place) {
  stop(panel.viewer);
  choose(panel, place);
  panel.drawing.follow?.();
  const marked = panel.element.querySelector(".picture .band[visibility='visible']") ?? panel.element.querySelector(".picture .on");
  marked?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** Tells the page around the viewer which cell or word was chosen. */
function pick(panel) {
  const { place, viewer, own, index } = panel, map = panel.current();
  if (!place || !viewer.options.pick) return;
  const { row, column } = place;
  const label = (axis, number) => (number === null ? null : map[axis][number]);
  const tokens = (axis, number) => (number === null ? null : tokensOf(map, axis, number));
  viewer.options.pick({ panel: index, path: [...own.path], rows: tokens("rows", row), columns: tokens("columns", column), output: label("rows", row), source: label("columns", column) });
}

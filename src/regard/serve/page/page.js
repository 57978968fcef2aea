// The page of the server: asks runs, shows their outputs and maps, and changes the model for one input.
// All texts are inserted as text, never as markup.

import { mount } from "/viewer/viewer.js";

const KEY = "regard-token"; // of the token in the storage of this tab
const LABELS = { text: "text", picture: "picture", recording: "recording", series: "CSV file of series" };
const ACCEPT = { picture: "image/*", recording: "audio/*,.wav,.flac,.ogg,.mp3", series: ".csv,text/csv" };
const KINDS = { picture: "image/", recording: "audio/", series: "text/csv" };
const part = (id) => document.getElementById(id);
const DOES = { picture: "caption", recording: "transcribe" }; // what a run of the task translate does, by its input
// `question` is the one whose answer is shown, with its changes of the model: what was written since does not belong to it.
const state = { runs: [], file: null, question: null, viewer: null, choices: [], controller: null };

function make(name, attributes = {}, children = []) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Requests.

async function request(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...(options.headers ?? {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) {
    await askForToken();
    return request(path, options);
  }
  if (!response.ok) throw new Error(await sentence(response));
  return response;
}

async function sentence(response) {
  try {
    return (await response.json()).error;
  } catch {
    return `The server answered with the status ${response.status}.`;
  }
}

function askForToken() {
  const door = part("door");
  door.showModal();
  return new Promise((resolve) => {
    door.addEventListener("close", () => {
      sessionStorage.setItem(KEY, part("token").value);
      part("token").value = "";
      resolve();
    }, { once: true });
  });
}

/** What is asked of a run: path and options of a request. */
function asked({ text, file }, run, options, path) {
  const { signal } = state.controller;
  if (run.input !== "text" && file) {
    const { search = {}, interventions = [], ...others } = options;
    const query = new URLSearchParams({ run: run.name, ...others, ...search });
    if (interventions.length) query.set("interventions", interventions.join(";"));
    return [`${path}?${query}`, { method: "POST", body: file, headers: { "Content-Type": typeOf(file, run) }, signal }];
  }
  const body = JSON.stringify({ run: run.name, inputs: [text], ...options });
  return [path, { method: "POST", body, headers: { "Content-Type": "application/json" }, signal }];
}

const typeOf = (file, run) => (file.type.startsWith(KINDS[run.input]) ? file.type : run.input === "series" ? "text/csv" : "application/octet-stream");

/** The predictions of a run: one, or of a file of series one for each. */
async function predict(question, run, options) {
  const response = await request(...asked(question, run, options, "/v1/predict"));
  return (await response.json()).predictions;
}

/** Asks for a stream; shows each token as it comes. Returns the whole prediction. */
async function follow(question) {
  const { run, options, text } = question, { signal } = state.controller;
  const response = await request(...asked(question, run, options, "/v1/stream"));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    signal.throwIfAborted(); // a piece that had come before may still be read
    if (done) throw new Error("The answer ended too early.");
    const events = (waiting + value).split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(event);
      const content = JSON.parse(data);
      if (name === "token") part("output").textContent = (run.task === "language_model" ? text : "") + content.text;
      else if (name === "done") return content.predictions[0];
      else throw new Error(content.error);
    }
  }
}

// Runs.

const jobOf = (run) => (run.task === "translate" ? (DOES[run.input] ?? run.task) : run.task);
const runNamed = (name) => state.runs.find((run) => run.name === name);
const chosenRun = () => runNamed(part("run").value);

async function loadRuns() {
  for (;;) {
    const { runs, version } = await (await request("/v1/runs")).json();
    if (runs.every((run) => run.state === "ready")) {
      state.runs = runs;
      part("about").textContent = `Version ${version}. Every output comes with what the model attended to.`;
      break;
    }
    part("about").textContent = "Loading the runs …";
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  part("run").replaceChildren(...state.runs.map((run) => make("option", { value: run.name }, [`${run.name} (${jobOf(run)})`])));
  chooseRun();
}

/** Shows the fields of the chosen run. */
function chooseRun() {
  const run = chosenRun();
  const others = state.runs.filter((other) => other !== run && other.input === run.input);
  part("other").replaceChildren(make("option", { value: "" }, ["nothing"]), ...others.map((other) => make("option", { value: other.name }, [other.name])));
  part("other-field").hidden = !others.length;
  const isText = run.input === "text";
  part("text-field").hidden = !isText;
  part("file-field").hidden = isText;
  part("file").accept = ACCEPT[run.input] ?? "";
  part("options").hidden = !("beam" in run.search) || !run.streams;
  part("beam").value = run.search.beam ?? 1;
  part("temperature").value = run.search.temperature ?? 0;
  part("examples").hidden = !run.examples.length;
  part("examples").replaceChildren(...run.examples.map((text) => example(text)));
  chooseFile(null);
  clear();
}

function example(text) {
  const button = make("button", { type: "button", class: "chip" }, [text]);
  button.addEventListener("click", () => {
    state.file = null;
    part("text").value = text;
    askAnew();
  });
  return button;
}

function chooseFile(file) {
  state.file = file;
  if (file) part("text").value = "";
  part("drop-text").textContent = file ? file.name : `Choose a ${LABELS[chosenRun().input] ?? "file"}, or drop it here`;
}

// Asking.

function options() {
  const run = chosenRun(), number = (id) => Number(part(id).value);
  if (part("options").hidden) return { view: true };
  const temperature = number("temperature"), search = temperature > 0 ? { temperature } : run.search.temperature ? { temperature: 0 } : {};
  return { beam: number("beam"), n_best: number("outputs"), seed: number("seed"), search, view: true };
}

/** Asks what is chosen and written now, without changes of the model. */
const askAnew = () => ask({ run: chosenRun(), other: runNamed(part("other").value), text: part("text").value, file: state.file, options: options(), changes: [] });

async function ask(question) {
  if (question.run.input === "text" ? !question.text.trim() : !question.file && !question.text) return;
  stop();
  const controller = (state.controller = new AbortController());
  part("problem").hidden = true;
  part("result").hidden = false;
  part("change").hidden = true;
  part("output").classList.add("writing");
  part("go").disabled = part("chosen").inert = true; // the next change is one of the answer to this question
  try {
    const draw = await answer(question);
    state.question = question;
    draw();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!question.changes.length) clear(); // what is shown belongs to another question
    complain(error);
  } finally {
    if (state.controller === controller) rest();
  }
}

/** Waits for the answer to a question; returns the function that shows it. */
async function answer(question) {
  const { run, other, options, changes } = question;
  if (changes.length) {
    const { n_best: _, ...others } = options; // a changed model has one output
    const [changed] = await predict(question, run, { ...others, interventions: changes });
    return () => showChanged(changed);
  }
  if (other) {
    const [ones, others] = await Promise.all([predict(question, run, options), predict(question, other, options)]);
    return () => showNamed(ones, (index) => showBoth([ones[index], others[index]]));
  }
  if (run.streams && options.n_best === 1 && options.beam === 1) {
    const prediction = await follow(question);
    return () => show(prediction);
  }
  const predictions = await predict(question, run, options);
  return () => showNamed(predictions, (index) => show(predictions[index]));
}

/** Ends the question that is being asked, if there is one: its answer is not shown. */
function stop() {
  state.controller?.abort();
  rest();
}

/** Shows that nothing is being asked. */
function rest() {
  state.controller = null;
  part("output").classList.remove("writing");
  part("go").disabled = part("chosen").inert = false;
}

function complain(error) {
  part("problem").textContent = error.message;
  part("problem").hidden = false;
  if (!part("output").textContent) part("result").hidden = true;
}

// Showing.

function clear() {
  stop();
  state.question = null;
  state.viewer?.destroy();
  state.viewer = null;
  for (const id of ["result", "problem", "change", "diff", "note", "names-field"]) part(id).hidden = true;
  for (const id of ["output", "score"]) part(id).textContent = "";
  part("chosen").replaceChildren();
}

const scoreOf = (prediction) => (Number.isFinite(prediction.score) ? `log-probability ${prediction.score.toFixed(3)}` : "");

/** Shows the first of several predictions, and their names to choose another by; `draw` shows that of an index. */
function showNamed(predictions, draw) {
  const names = part("names");
  part("names-field").hidden = predictions.length < 2;
  names.replaceChildren(...predictions.map(({ source }, index) => make("option", { value: index }, [source])));
  names.onchange = () => {
    part("change").hidden = true;
    draw(names.selectedIndex);
  };
  draw(0);
}

const isOneOfSeveral = () => !part("names-field").hidden;

function show(prediction) {
  part("output").textContent = prediction.text || prediction.error || "(an empty output)";
  part("score").textContent = [state.question.run.input === "series" && !isOneOfSeveral() ? prediction.source : "", scoreOf(prediction), prediction.finished === false ? "cut at the longest length" : ""].filter(Boolean).join(", ");
  part("diff").hidden = true;
  note(prediction);
  drawView(prediction.view && { ...prediction.view, name: "" });
  showChips();
}

/** What is said of the maps, such as that only one is shown. */
function note({ note: text = "" }) {
  part("note").textContent = text;
  part("note").hidden = !text;
}

function showBoth([one, two]) {
  const { run, other } = state.question;
  show(one);
  note(one.note ? one : two);
  part("output").textContent = "";
  for (const [name, prediction] of [[run.name, one], [other.name, two]]) {
    part("output").append(make("span", { class: "quiet" }, [`${name}: `]), prediction.text || "(an empty output)", make("br"));
  }
  part("score").textContent = [one, two].map(scoreOf).join(" and ").replace(" and log-probability", " and");
  const views = [one.view, two.view];
  drawView(views.every(Boolean) ? { title: views[0].title, panels: views.map(({ title: _, ...panel }) => panel) } : views.find(Boolean) ?? null);
}

function showChanged(prediction) {
  const { before, changed: isOther, diff } = prediction.intervened;
  part("output").textContent = prediction.text || "(an empty output)";
  part("score").textContent = `${isOther ? "Without the change" : "The same as without the change"}: ${before.text || "(an empty output)"}`;
  part("diff").hidden = !isOther;
  part("diff").replaceChildren(...diff.flatMap(differing));
  note(prediction);
  drawView(prediction.view);
  showChips();
}

/** A token of the difference: what was removed, and what was added. */
function differing({ kind, before, after }) {
  const plain = (token) => token.replaceAll("▁", " ");
  if (kind === "same") return [plain(before)];
  return [...(before ? [make("del", {}, [plain(before)])] : []), ...(after ? [make("ins", {}, [plain(after)])] : [])];
}

function drawView(view) {
  part("map").hidden = !view;
  part("hint").hidden = !view || !isChangeable();
  if (!view) return;
  state.choices = (view.panels ?? [view])[0].choices ?? [];
  if (state.viewer) state.viewer.update(view);
  else state.viewer = mount(part("map"), view, { bare: true, pick });
}

// Changing the model.

const isChangeable = () => state.question.run.attention.length && !state.question.other && !isOneOfSeveral();

/** Offers what can be done at a place of the map. */
function pick({ path, rows, columns, output, source }) {
  const { run } = state.question, of = (name) => path[state.choices.indexOf(name)] ?? "";
  if (state.controller || !isChangeable() || (of("Output") && of("Output") !== "1")) return;
  const site = of("Site"), isCross = !site || site === run.attention[0].site;
  if (site && !run.attention.some((own) => own.site === site)) return; // such as forecast.lag_mixture, which has no keys
  const layer = /^layer (\d+)$/.exec(of("Layer"))?.[1], head = /^head (\d+)$/.exec(of("Head"))?.[1];
  const place = [site, layer ? `layer=${layer}` : "", head ? `head=${head}` : ""].filter(Boolean).join(" ");
  const actions = [];
  if (columns && isCross && run.input !== "series") actions.push([`Erase “${source}”`, [`erase ${[...new Set(columns)].join("-")}`]]);
  if (rows && columns) {
    const [first, last] = rows, each = Array.from({ length: last - first + 1 }, (_, index) => first + index);
    const forced = each.map((row) => `force ${place ? `${place} ` : ""}row=${row} column=${columns[0]}`); // a row looks at one token
    actions.push([`Let “${output}” look only at “${source}”`, forced]);
  }
  actions.push([`Silence ${place || run.attention[0].site}`, [`silence ${place || run.attention[0].site}`]]);
  part("place").textContent = [rows ? `output “${output}”` : "", columns ? `source “${source}”` : ""].filter(Boolean).join(", ");
  part("actions").replaceChildren(...actions.map(([name, texts]) => action(name, texts)));
  part("change").hidden = false;
}

function action(name, texts) {
  const button = make("button", { type: "button", class: "chip" }, [name]);
  button.addEventListener("click", () => ask({ ...state.question, changes: [...new Set([...state.question.changes, ...texts])] }));
  return button;
}

/** The interventions that are in force; each can be taken back. */
function showChips() {
  const { changes } = state.question;
  part("chosen").replaceChildren(...changes.map((text) => {
    const button = make("button", { type: "button", class: "chip on", "aria-label": `Take back: ${text}` }, [`${text} ✕`]);
    button.addEventListener("click", () => ask({ ...state.question, changes: changes.filter((other) => other !== text) }));
    return make("li", {}, [button]);
  }));
}

// Events.

part("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  askAnew();
});
part("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    part("ask").requestSubmit();
  }
});
part("run").addEventListener("change", chooseRun);
part("file").addEventListener("change", () => {
  chooseFile(part("file").files[0] ?? null);
  askAnew();
});
for (const [name, isOver] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
  part("drop").addEventListener(name, (event) => {
    event.preventDefault();
    part("drop").classList.toggle("over", isOver);
    if (name !== "drop" || !event.dataTransfer.files.length) return;
    chooseFile(event.dataTransfer.files[0]);
    askAnew();
  });
}
loadRuns().catch(complain);

// The page: reads, writes, saves; what it works on is a session of its own, which the server keeps.
import { blob, get, post, Problem, remove, stream } from "/api.js";
import { Picture } from "/image.js";
import { Memory } from "/memory.js";

const $ = (id) => document.getElementById(id);
const KEPT = "memformer.session";
let model, memory, picture, working;
let stopping = false;

function say(text) {
  $("status").textContent = text;
  $("problem").hidden = true;
}

function complain(problem) {
  console.warn(problem.message);
  $("problem").textContent = problem.message;
  $("problem").hidden = false;
  $("status").textContent = "";
  if (problem.status === 401) $("token-form").hidden = false;
}

// Do something that takes time: one thing at a time, and what goes wrong is said.
let busy = false;
async function during(work) {
  if (busy) return;
  busy = true;
  stopping = false;
  const buttons = [...document.querySelectorAll("#work button:not(#stop)")].filter((button) => !button.disabled);
  for (const button of buttons) button.disabled = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    complain(problem);
  } finally {
    busy = false;
    for (const button of buttons) button.disabled = false;
    document.body.removeAttribute("aria-busy");
    $("progress-row").hidden = true;
  }
}

function progress(done, total, told) {
  $("progress-row").hidden = false;
  $("progress").max = Math.max(1, total);
  $("progress").value = done;
  $("progress-told").textContent = told;
}

function show(text, wrote) {
  const transcript = $("transcript");
  const kind = wrote ? "wrote" : "read";
  let last = transcript.lastElementChild;
  if (!last || last.className !== kind) {
    last = document.createElement("span");
    last.className = kind;
    transcript.append(last);
  }
  last.append(text);
  transcript.scrollTop = transcript.scrollHeight;
}

// --- the session that the page works on

async function begin() {
  const old = working;
  const made = await post("/sessions", { scratch: true });
  take(made.name);
  memory.reset(working);
  $("transcript").replaceChildren();
  if (old) await remove(`/sessions/${old}`).catch(() => {});
}

function take(name) {
  working = name;
  sessionStorage.setItem(KEPT, name);
}

async function goOn(name) {
  const facts = await get(`/sessions/${name}`);
  take(name);
  $("transcript").replaceChildren();
  const texts = await memory.open(name);
  if (texts.length && model.kind !== "image") show(`${memory.last * model.segment_length > texts.length ? "… " : ""}${texts.join("")}`, false);
  return facts;
}

async function feed(body, from, total) {
  const path = `/sessions/${working}/feed?stream=true`;
  return stream(path, body, (event) => {
    if (event.slots) memory.hear(event.slots);
    if (event.read === undefined) return;
    const segments = Math.floor(event.read / model.segment_length);
    progress(from + (event.read / Math.max(1, event.total)) * (total.piece ?? 1), total.all,
      `segment ${segments} of ${Math.ceil(event.total / model.segment_length)}`);
  });
}

// Pieces that are small enough for one request each.
function* pieces(text) {
  const most = Math.max(1, Math.min(65536, Math.floor(Math.min(model.limits.input, model.limits.body) / 4)));
  for (let start = 0; start < text.length;) {
    let end = Math.min(text.length, start + most);
    if (end < text.length && /[\uD800-\uDBFF]/.test(text[end - 1])) end -= 1;
    yield text.slice(start, Math.max(end, start + 1));
    start = Math.max(end, start + 1);
  }
}

async function readText(text) {
  let read = 0;
  let last = null;
  for (const piece of pieces(text)) {
    if (stopping) break;
    last = await feed(piece, read, { piece: piece.length, all: text.length });
    show(piece, false);
    read += piece.length;
  }
  return last;
}

async function readIds(text) {
  const ids = text.split(/[\s,]+/).filter(Boolean).map(Number);
  if (ids.some((id) => !Number.isInteger(id) || id < 0 || id >= model.vocab_size)) {
    throw new Problem(0, `ids are whole numbers from 0 to ${model.vocab_size - 1}`);
  }
  const last = await feed({ ids }, 0, { piece: ids.length, all: ids.length });
  show(`${ids.join(" ")} `, false);
  return last;
}

async function read() {
  const text = $("given").value;
  if (!text) return;
  say("Reading…");
  const last = await (model.kind === "text" ? readText(text) : readIds(text));
  $("given").value = "";
  await told(last);
}

async function readFile(file) {
  say(`Reading ${file.name}…`);
  const reader = file.stream().getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let last = null;
  let size = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      const text = decoder.decode(value, { stream: !done });
      for (const piece of pieces(text)) {
        if (stopping) break;
        last = await feed(piece, size, { piece: piece.length, all: file.size });
        show(piece, false);
        size += piece.length;
      }
      if (done || stopping) break;
    }
  } catch (problem) {
    if (problem instanceof TypeError) throw new Problem(0, `${file.name} is not UTF-8 text: convert it`);
    throw problem;
  }
  await told(last);
}

async function told(last) {
  await memory.settle();
  if (!last) return;
  const { position } = last.session;
  const loss = last.usage.prompt_tokens && last.log_probability !== null && last.finish_reason === "read"
    ? `, at ${(-last.log_probability / Math.LN2 / last.usage.prompt_tokens).toFixed(2)} bits a token` : "";
  const stopped = last.finish_reason === "stopped" ? " Stopped." : "";
  say(`${position} tokens read so far${loss}; the session is on the disk.${stopped}`);
}

function sampling() {
  const found = { stream: true };
  for (const name of ["max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"]) {
    const { value } = $(name);
    if (value !== "") found[name] = Number(value);
  }
  const stop = $("stop_text").value;
  if (stop !== "") found.stop = model.kind === "text" ? stop : Number(stop);
  return found;
}

async function write(options, hear) {
  say("Writing…");
  let number = 0;
  const last = await stream(`/sessions/${working}/generate`, options, (event) => {
    if (event.slots) memory.hear(event.slots);
    if (event.ids === undefined || event.saved) return;
    number += event.ids.length;
    hear(event);
    progress(number, options.max_tokens, `${number} of ${options.max_tokens} tokens`);
  });
  await told(last);
  $("status").textContent += ` Seed ${last.seed}.`;
}

async function complete() {
  const { given } = picture;
  picture.set(picture.pixels);
  await begin();
  say("Reading…");
  if (given.length) await feed({ ids: given }, 0, { piece: given.length, all: given.length });
  const missing = picture.pixels.length - given.length;
  await write({ ...sampling(), max_tokens: missing }, (event) => picture.complete(event.ids));
}

async function pick() {
  const image = await get(`/images/${Number($("image-number").value)}`);
  $("image-number").max = image.count - 1;
  picture.set(image.pixels);
  say(`Test image ${image.index} of ${image.count}; its upper ${picture.rows} rows are given.`);
}

// --- sessions by name

async function list() {
  const { sessions } = await get("/sessions");
  $("sessions").replaceChildren(...sessions.filter((session) => !session.scratch).map((session) => {
    const line = document.createElement("li");
    const told = document.createElement("span");
    told.textContent = `${session.name}, ${session.position} tokens${session.usable ? "" : " (of other weights)"}`;
    line.append(told);
    const actions = { Load: () => load(session.name), Fork: () => fork(session.name), Download: () => download(session.name),
      Delete: () => forget(session.name) };
    for (const [name, action] of Object.entries(actions)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-label", `${name} ${session.name}`);
      button.disabled = !session.usable && name !== "Delete";
      button.addEventListener("click", () => during(action));
      line.append(button);
    }
    return line;
  }));
}

async function copy(from, name) {
  const { sessions } = await get("/sessions");
  const replace = sessions.some((session) => session.name === name);
  if (replace && !window.confirm(`Replace the session ${name}?`)) throw new Problem(0, `${name} was left as it is`);
  return post(`/sessions/${from}/fork`, { name, replace });
}

async function save() {
  const name = $("name").value;
  if (!name) throw new Problem(0, "give the session a name");
  const { position } = await copy(working, name);
  await list();
  say(`Saved as ${name}, ${position} tokens.`);
}

async function load(name) {
  const old = working;
  const made = await post(`/sessions/${name}/fork`, { scratch: true });
  await goOn(made.name);
  if (old) await remove(`/sessions/${old}`).catch(() => {});
  $("name").value = name;
  say(`Loaded ${name}, ${made.position} tokens.`);
}

async function fork(from) {
  const name = $("name").value;
  if (!name || name === from) throw new Problem(0, `write the new session's name, then fork ${from}`);
  await copy(from, name);
  await list();
  say(`Forked ${from} to ${name}.`);
}

async function download(name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await blob(`/sessions/${name}/file`));
  link.download = `${name}.session`;
  link.click();
  URL.revokeObjectURL(link.href);
}

async function forget(name) {
  if (!window.confirm(`Delete the session ${name}?`)) return;
  await remove(`/sessions/${name}`);
  await list();
  say(`Deleted ${name}.`);
}

// --- the page itself

function theme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("memformer.theme", next);
  if (picture) picture.draw();
}

function prepareImage() {
  picture = new Picture($("canvas"), model.image_shape, model.vocab_size);
  $("rows").max = model.image_shape[0] - 1;
  const tell = () => { $("rows-told").textContent = `${picture.rows} of ${picture.height}`; };
  $("rows").value = picture.rows;
  $("rows").addEventListener("input", () => {
    picture.set(picture.pixels, Number($("rows").value));
    tell();
  });
  tell();
  $("pick").addEventListener("click", () => during(pick));
  $("clear").addEventListener("click", () => { picture.set(null); say("Draw in the upper part; Shift erases."); });
  $("complete").addEventListener("click", () => during(complete));
  memory.onshow = (record, shares) => picture.mark(record ? record.segment * model.segment_length : null, shares);
  $("write").hidden = true;
  for (const id of ["max_tokens", "stop_text"]) $(id).parentElement.hidden = true;
}

function prepareText() {
  if (model.kind === "ids") {
    $("given-label").textContent = `Ids to read, from 0 to ${model.vocab_size - 1}`;
    $("given").placeholder = "3 1 4 1 5";
    $("upload").hidden = true;
    $("stop_text").type = "number";
    $("stop_text").placeholder = "no id";
  }
  $("read").addEventListener("click", () => during(read));
  $("given").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) during(read);
  });
  $("upload").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    $("file").value = "";
    if (file) during(() => readFile(file));
  });
  $("write").addEventListener("click", () => during(() => write(sampling(), (event) => {
    const text = model.kind === "text" ? event.text : event.ids.map((id) => `${id} `).join("");
    if (text) show(text, true);
  })));
}

function prepare() {
  $("facts").textContent = `${model.id}: ${model.model}, ${model.parameters.toLocaleString("en")} parameters, segments of ` +
    `${model.segment_length}, ${model.precision}`;
  document.querySelector("main").hidden = false;
  $("text-panel").hidden = model.kind === "image";
  $("image-panel").hidden = model.kind !== "image";
  $("max_tokens").max = model.limits.output;
  memory = new Memory(model.num_slots, model.kind, model.vocab_size);
  if (model.kind === "image") prepareImage();
  else prepareText();
  $("stop").addEventListener("click", () => {
    stopping = true;
    post(`/sessions/${working}/stop`).catch(complain);
  });
  $("save-form").addEventListener("submit", (event) => { event.preventDefault(); during(save); });
  $("new").addEventListener("click", () => during(async () => { await begin(); say("A new document."); }));
  document.addEventListener("keydown", (event) => {
    if (event.target !== document.body) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") memory.step(event.key === "ArrowLeft" ? -1 : 1);
  });
}

async function start() {
  model = await get("/model");
  prepare();
  await list();
  const kept = sessionStorage.getItem(KEPT);
  try {
    if (!kept) throw new Problem(404, "");
    const { position, usable } = await goOn(kept);
    if (!usable) throw new Problem(404, "");
    say(`Ready; going on after ${position} tokens.`);
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    working = undefined;
    await begin();
    say("Ready.");
  }
  if (model.kind === "image") await pick().catch((problem) => say(`Ready. ${problem.message}; draw instead.`));
}

const chosen = localStorage.getItem("memformer.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
$("theme").addEventListener("click", theme);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("memformer.token", $("token").value);
  window.location.reload();
});
during(start);

// The slots as a living map: a cell a slot, a segment a moment.
import { get } from "/api.js";

const SVG = "http://www.w3.org/2000/svg";
const PAGE = 100;
const $ = (id) => document.getElementById(id);
const degrees = (angle) => `${Math.round((angle * 180) / Math.PI)}°`;
const part = (angle) => Math.min(1, angle / (Math.PI / 2));
const heat = (angle) => Math.sqrt(part(angle)).toFixed(3); // most turns are small
const VERBS = { keep: "keeps", mix: "mixes", take: "takes" };

export class Memory {
  constructor(numSlots, kind, levels) {
    this.kind = kind;
    this.levels = levels;
    this.cells = [];
    this.slot = null;
    this.onshow = () => {};
    $("no-slots").hidden = numSlots > 0;
    $("slots-part").hidden = numSlots === 0;
    for (let slot = 0; slot < numSlots; slot += 1) {
      const cell = document.createElement("button");
      cell.type = "button";
      cell.className = "none";
      cell.tabIndex = slot === 0 ? 0 : -1;
      cell.addEventListener("click", () => this.choose(slot));
      cell.addEventListener("focus", () => this.choose(slot));
      $("map").append(cell);
      this.cells.push(cell);
    }
    $("map").addEventListener("keydown", (event) => this.move(event));
    $("time").addEventListener("input", () => this.show(Number($("time").value)));
    $("back").addEventListener("click", () => this.step(-1));
    $("forth").addEventListener("click", () => this.step(1));
    this.reset(null);
  }

  // Begin anew, for a session of this name.
  reset(session) {
    this.session = session;
    this.records = new Map();
    this.first = this.last = this.now = null;
    this.life = [];
    this.draw();
  }

  // All that is known of the session; returns the text of the last segments.
  async open(session) {
    this.reset(session);
    if (!this.cells.length) return [];
    const { first, last } = await get(`/sessions/${session}/slots?limit=0`);
    if (last === null) return [];
    [this.first, this.last] = [first, last];
    await this.fetch(Math.max(first, last - PAGE + 1));
    await this.show(last);
    return [...this.records.values()].flatMap((record) => record.tokens);
  }

  async fetch(first) {
    const { segments } = await get(`/sessions/${this.session}/slots?first=${first}&limit=${PAGE}`);
    for (const record of segments) this.records.set(record.segment, record);
  }

  // A segment that has just been read or written.
  hear(record) {
    const follows = this.now === null || this.now === this.last;
    this.records.set(record.segment, record);
    if (this.first === null) this.first = record.segment;
    this.last = Math.max(this.last ?? 0, record.segment);
    if (follows) this.now = this.last;
    this.draw();
  }

  // What happened meanwhile is on the disk now.
  async settle() {
    if (!this.cells.length || !this.session) return;
    const { first, last } = await get(`/sessions/${this.session}/slots?limit=0`);
    if (last === null) return;
    const follows = this.now === null || this.now === this.last;
    [this.first, this.last] = [first, last];
    if (this.slot !== null) await this.remember();
    await this.show(follows ? last : Math.max(first, this.now));
  }

  step(by) {
    if (this.now !== null) this.show(Math.max(this.first, Math.min(this.last, this.now + by)));
  }

  async show(segment) {
    this.now = segment;
    if (!this.records.has(segment)) await this.fetch(Math.max(this.first, segment - PAGE / 2));
    this.draw();
  }

  async choose(slot) {
    this.slot = slot;
    this.cells.forEach((cell, index) => { cell.tabIndex = index === slot ? 0 : -1; });
    this.draw();
    await this.remember();
    this.draw();
  }

  async remember() {
    const slot = this.slot;
    const { segments } = this.last === null ? { segments: [] } : await get(`/sessions/${this.session}/slots/${slot}`);
    if (slot === this.slot) this.life = segments;
  }

  move(event) {
    const columns = getComputedStyle($("map")).gridTemplateColumns.split(" ").length;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const at = this.cells.indexOf(document.activeElement);
    if (event.key === "PageUp" || event.key === "PageDown") this.step(event.key === "PageUp" ? -1 : 1);
    else if (by === undefined) return;
    else this.cells[Math.max(0, Math.min(this.cells.length - 1, at + by))].focus();
    event.preventDefault();
  }

  draw() {
    const record = this.records.get(this.now);
    const none = this.last === null;
    this.cells.forEach((cell, slot) => {
      cell.style.setProperty("--heat", record ? heat(record.moved[slot]) : 0);
      cell.className = record ? record.types[slot] : "none";
      cell.setAttribute("aria-pressed", String(slot === this.slot));
      const told = record ? `, turned by ${degrees(record.moved[slot])}, ${VERBS[record.types[slot]]}` : "";
      cell.setAttribute("aria-label", `Slot ${slot}${told}`);
      cell.title = `Slot ${slot}${told}`;
    });
    const time = $("time");
    time.disabled = $("back").disabled = $("forth").disabled = none;
    [time.min, time.max, time.value] = [this.first ?? 0, this.last ?? 0, this.now ?? 0];
    $("time-told").textContent = none ? "no segment yet" : `segment ${this.now} of ${this.first} to ${this.last}`;
    time.setAttribute("aria-valuetext", $("time-told").textContent);
    $("map-told").textContent = record ? this.summary(record)
      : "Each cell is a slot, coloured by how far the last segment turned it. Nothing was read yet.";
    this.drawSegment(record);
    this.drawLife(record);
  }

  summary(record) {
    const count = (type) => record.types.filter((each) => each === type).length;
    return `Segment ${record.segment}: ${count("keep")} slots keep, ${count("mix")} mix, ${count("take")} take from it.`;
  }

  drawSegment(record) {
    const shares = new Map(record && this.slot !== null ? record.took[this.slot] : []);
    $("segment").replaceChildren(...(record ? record.tokens : []).map((text, place) => this.token(text, shares.get(place))));
    this.onshow(record, shares);
  }

  token(text, share = 0) {
    const span = document.createElement("span");
    span.textContent = text;
    if (this.kind === "image") {
      span.className = "pixel";
      const level = Math.round((255 * Number(text)) / Math.max(1, this.levels - 1));
      span.style.backgroundColor = `rgb(${level} ${level} ${level})`;
      span.style.color = level > 127 ? "black" : "white";
      span.style.borderColor = `color-mix(in oklab, transparent, var(--hot) ${Math.round(100 * Math.min(1, 3 * share))}%)`;
    } else {
      span.style.setProperty("--heat", Math.min(1, 3 * share).toFixed(3));
    }
    if (share) span.title = `${Math.round(100 * share)} % of the slot's attention`;
    return span;
  }

  drawLife(record) {
    $("life").hidden = this.slot === null;
    if (this.slot === null) return;
    $("life-title").textContent = `Slot ${this.slot}`;
    $("life-told").textContent = record
      ? `In segment ${record.segment} it ${VERBS[record.types[this.slot]]}: ${Math.round(100 * record.own[this.slot])} % of its ` +
        `attention is on itself; it turned by ${degrees(record.moved[this.slot])}.`
      : "Nothing was read yet.";
    const number = Math.max(1, this.life.length);
    $("chart").setAttribute("viewBox", `0 0 ${number} 1`);
    $("chart").setAttribute("preserveAspectRatio", "none");
    $("chart").replaceChildren(...this.life.map((moment, index) => {
      const bar = document.createElementNS(SVG, "rect");
      const height = Math.max(0.01, part(moment.moved));
      const places = { x: index + 0.1, y: 1 - height, width: 0.8, height };
      for (const [name, value] of Object.entries(places)) bar.setAttribute(name, value);
      bar.setAttribute("class", moment.segment === this.now ? "now" : moment.type);
      bar.addEventListener("click", () => this.show(moment.segment));
      return bar;
    }));
    const lines = this.life.filter((moment) => moment.took.length).slice(-50).reverse();
    $("took").replaceChildren(...lines.map((moment) => {
      const line = document.createElement("li");
      const where = document.createElement("small");
      where.textContent = `segment ${moment.segment}: `;
      line.append(where, ...moment.took.flatMap(([text, share]) => [this.token(text, share), " "]));
      return line;
    }));
  }
}

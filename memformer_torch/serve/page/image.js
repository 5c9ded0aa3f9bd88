// An image of a few levels, to be drawn, picked or completed.

export class Picture {
  constructor(canvas, [height, width], levels) {
    Object.assign(this, { canvas, height, width, levels });
    canvas.width = width * 16;
    canvas.height = height * 16;
    this.pixels = new Array(height * width).fill(0);
    this.rows = Math.floor(height / 2);
    this.done = null;
    this.cursor = null;
    this.marked = null;
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); this.paint(event); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) this.paint(event); });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { this.cursor = null; this.draw(); });
    this.draw();
  }

  get given() {
    return this.pixels.slice(0, this.rows * this.width);
  }

  // Take an image, or none.
  set(pixels, rows = this.rows) {
    this.pixels = pixels ? [...pixels] : new Array(this.height * this.width).fill(0);
    this.rows = rows;
    this.done = null;
    this.draw();
  }

  // What has become of the rest so far.
  complete(ids) {
    this.done = this.done ?? this.given.length;
    for (const id of ids) {
      this.pixels[this.done] = id;
      this.done += 1;
    }
    this.draw();
  }

  // Show where a segment lies, and how much of each of its pixels a slot took.
  mark(start, shares) {
    this.marked = start === null ? null : { start, shares };
    this.draw();
  }

  paint(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * this.width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * this.height);
    this.ink(x, y, event.shiftKey ? 0 : this.levels - 1);
  }

  ink(x, y, level) {
    if (x < 0 || y < 0 || x >= this.width || y >= this.rows) return;
    this.done = null;
    this.pixels[y * this.width + x] = level;
    const soft = Math.floor((this.levels - 1) * 0.4);
    for (const [nextX, nextY] of [[x - 1, y], [x + 1, y], [x, y - 1], [x, y + 1]]) {
      const place = nextY * this.width + nextX;
      const inside = nextX >= 0 && nextX < this.width && nextY >= 0 && nextY < this.rows;
      if (level && inside) this.pixels[place] = Math.max(this.pixels[place], soft);
    }
    this.draw();
  }

  key(event) {
    const [x, y] = this.cursor ?? [0, 0];
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (by) {
      this.cursor = [Math.max(0, Math.min(this.width - 1, x + by[0])), Math.max(0, Math.min(this.rows - 1, y + by[1]))];
    } else if (event.key === " " && this.cursor) {
      this.ink(x, y, this.pixels[y * this.width + x] === this.levels - 1 ? 0 : this.levels - 1);
    } else {
      return;
    }
    event.preventDefault();
    this.draw();
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const shown = this.done ?? this.rows * this.width;
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--hot");
    this.pixels.forEach((level, place) => {
      const [x, y] = [(place % this.width) * 16, Math.floor(place / this.width) * 16];
      const shade = Math.round((255 * level) / Math.max(1, this.levels - 1));
      context.fillStyle = place < shown ? `rgb(${shade} ${shade} ${shade})` : "#808a96";
      context.fillRect(x, y, 16, 16);
    });
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = 2;
    for (const [place, share] of this.marked && this.done !== null ? this.marked.shares : []) {
      const at = this.marked.start + place;
      context.globalAlpha = Math.min(1, 0.2 + 3 * share);
      context.strokeRect((at % this.width) * 16 + 2, Math.floor(at / this.width) * 16 + 2, 12, 12);
    }
    context.globalAlpha = 1;
    context.beginPath();
    context.moveTo(0, this.rows * 16);
    context.lineTo(this.canvas.width, this.rows * 16);
    context.stroke();
    if (this.cursor) context.strokeRect(this.cursor[0] * 16 + 1, this.cursor[1] * 16 + 1, 14, 14);
  }
}

// A matrix of coloured cells: one pixel per cell on a canvas that is drawn large without smoothing, so that 94 x 384
// cells are painted in well under a millisecond, and a second canvas for marks.

const EMPTY = 255;

/** The colours of a scale as they are in the present theme, as canvas pixels. */
export function palette(scale, steps) {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const pixels = new Uint32Array(256);
  for (let step = 0; step < steps; step++) {
    probe.style.color = `var(--${scale}-${step})`;
    const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    pixels[step] = (255 << 24) | (blue << 16) | (green << 8) | red; // little-endian RGBA
  }
  probe.remove();
  pixels[EMPTY] = 0;
  return pixels;
}

/** A colour of the present theme, for charts and marks. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export class Matrix {
  #frame;
  #cells;
  #marks;
  #image;
  #pixels;
  #limits;
  #scale;
  #palette;
  #cursor = null;
  #separators = [];
  #drawn = null;
  #selected = null;

  /**
   * @param {HTMLElement} root made by matrix.html.j2
   * @param {{rows: number, columns: number, scale: string, limits: number[], separators?: number[]}} shape
   */
  constructor(root, { rows, columns, scale, limits, separators = [] }) {
    this.root = root;
    this.rows = rows;
    this.columns = columns;
    this.#scale = scale;
    this.#limits = limits;
    this.#separators = separators;
    this.#frame = root.querySelector(".frame");
    this.#cells = root.querySelector("canvas.cells");
    this.#marks = root.querySelector("canvas.marks");
    this.#cells.width = columns;
    this.#cells.height = rows;
    this.#image = this.#cells.getContext("2d").createImageData(columns, rows);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.#palette = palette(scale, limits.length + 1);
    ticks(root.querySelector(".y-ticks"), rows, 14, "top");
    ticks(root.querySelector(".x-ticks"), columns, Math.max(3, Math.min(13, Math.floor(this.#frame.clientWidth / 42))), "left");
    document.addEventListener("moeplan:theme", () => {
      this.#palette = palette(scale, limits.length + 1);
      if (this.#drawn) this.draw(this.#drawn);
    });
    new ResizeObserver(() => this.#drawMarks()).observe(this.#frame);
    this.#listen();
  }

  /** Paint multiples of even, [rows x columns] in the order in which they are to stand; NaN stays empty. */
  draw(relative) {
    this.#drawn = relative;
    const limits = this.#limits;
    const colours = this.#palette;
    for (let at = 0; at < relative.length; at++) {
      const value = relative[at];
      let step = 0;
      while (step < limits.length && value >= limits[step]) step++;
      this.#pixels[at] = colours[value === value ? step : EMPTY];
    }
    this.#cells.getContext("2d").putImageData(this.#image, 0, 0);
  }

  set xTitle(text) {
    this.root.querySelector(".x-title").textContent = text;
  }

  /** Frame a cell until another one is. */
  select(cell) {
    this.#selected = cell;
    this.#drawMarks();
  }

  #listen() {
    const frame = this.#frame;
    const at = (event) => {
      const box = frame.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
      return { row: clamp(row, this.rows), column: clamp(column, this.columns) };
    };
    frame.addEventListener("pointermove", (event) => {
      this.#move(at(event));
      this.#say("moeplan:hover", { x: event.clientX, y: event.clientY });
    });
    frame.addEventListener("pointerleave", () => {
      this.#move(null);
      this.#say("moeplan:leave");
    });
    frame.addEventListener("click", (event) => {
      this.#move(at(event));
      this.#say("moeplan:pick");
    });
    frame.addEventListener("blur", () => this.#say("moeplan:leave"));
    frame.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const { row, column } = this.#cursor ?? { row: 0, column: -1 };
    let next = null;
    if (event.key in steps) {
      const by = event.shiftKey ? 10 : 1;
      const [down, right] = steps[event.key];
      next = { row: clamp(row + down * by, this.rows), column: clamp(column + right * by, this.columns) };
    } else if (event.key === "Home") next = { row, column: 0 };
    else if (event.key === "End") next = { row, column: this.columns - 1 };
    else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (this.#cursor) this.#say("moeplan:pick");
      return;
    } else if (event.key === "Escape") {
      this.#move(null);
      this.#say("moeplan:leave");
      return;
    }
    if (!next) return;
    event.preventDefault();
    this.#move(next);
    const box = this.#frame.getBoundingClientRect();
    const x = box.left + ((next.column + 0.5) / this.columns) * box.width;
    const y = box.top + ((next.row + 0.5) / this.rows) * box.height;
    this.#say("moeplan:hover", { x, y, aloud: true });
  }

  #say(kind, more = {}) {
    this.root.dispatchEvent(new CustomEvent(kind, { detail: { ...this.#cursor, ...more } }));
  }

  #move(cell) {
    this.#cursor = cell;
    this.#drawMarks();
  }

  #drawMarks() {
    const { clientWidth, clientHeight } = this.#frame;
    const sharp = devicePixelRatio || 1;
    this.#marks.width = Math.round(clientWidth * sharp);
    this.#marks.height = Math.round(clientHeight * sharp);
    const context = this.#marks.getContext("2d");
    context.scale(sharp, sharp);
    const width = clientWidth / this.columns;
    const height = clientHeight / this.rows;
    context.strokeStyle = colour("ink");
    for (const column of this.#separators) context.strokeRect(column * width, -1, 0, clientHeight + 2);
    for (const [cell, name] of [[this.#selected, "target"], [this.#cursor, "ink"]]) {
      if (!cell) continue;
      context.strokeStyle = colour(name);
      context.lineWidth = 2;
      context.strokeRect(cell.column * width - 1.5, cell.row * height - 1.5, width + 3, height + 3);
    }
  }
}

/** Label cells 0, n, 2n, ... with the smallest round n that needs no more than so many labels. */
function ticks(place, length, atMost, side) {
  const rounds = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
  const every = rounds.find((step) => Math.floor((length - 1) / step) + 1 <= atMost) ?? length;
  place.replaceChildren();
  for (let cell = 0; cell < length; cell += every) {
    const label = document.createElement("span");
    label.textContent = cell;
    label.style[side] = `${((cell + 0.5) / length) * 100}%`;
    place.append(label);
  }
}

function clamp(value, length) {
  return Math.max(0, Math.min(length - 1, value));
}

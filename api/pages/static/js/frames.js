// Heat as frames: reads the service's frame files, and keeps windows at hand while they are played.
import { getBytes } from "./api.js";

const MAGIC = "MOEHEAT1";
const PIECE_BYTES = 1 << 19; // of values in one request: some windows, not all
const KEPT_BYTES = 96 << 20;

/** Read a frame file: its header, and a typed array for each of its windows (views, nothing is copied). */
export function decodeFrames(buffer) {
  const view = new DataView(buffer);
  const magic = String.fromCharCode(...new Uint8Array(buffer, 0, 8));
  if (magic !== MAGIC) throw new Error(`the answer begins with ${JSON.stringify(magic)}, not ${MAGIC}`);
  const length = view.getUint32(8, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 12, length)));
  const Values = header.dtype === "uint32" ? Uint32Array : Float64Array;
  const cells = header.layers * header.columns;
  const values = header.windows.map((_, at) => new Values(buffer, 12 + length + at * cells * Values.BYTES_PER_ELEMENT, cells));
  return { header, values };
}

/** The windows of one recording on one axis; -1 is all of them together. */
export class FrameStore {
  #address;
  #count;
  #pieces = new Map();
  #most;

  /**
   * @param {string} trace
   * @param {{axis: string, phase?: string, plan_id?: string, layout?: string}} choice
   * @param {number} cells of one window
   * @param {{most?: number}} [limits] most windows in one request
   */
  constructor(trace, choice, cells, { most = 64 } = {}) {
    const told = new URLSearchParams(Object.entries(choice).filter(([, value]) => value));
    this.#address = `/v1/traces/${trace}/frames?${told}`;
    this.#count = Math.max(1, Math.min(most, Math.floor(PIECE_BYTES / (4 * cells))));
    this.#most = Math.max(4, Math.floor(KEPT_BYTES / (4 * cells * this.#count)));
  }

  /** Fetch a window; the answer is {header, values, name}. The piece behind it is fetched too, for playing. */
  async get(window, { ahead = false } = {}) {
    if (window < 0) {
      const { header, values } = await this.#piece(-1);
      return { header, values: values[0], name: header.windows[0] };
    }
    const piece = Math.floor(window / this.#count);
    const { header, values } = await this.#piece(piece);
    if (ahead && (piece + 1) * this.#count < header.total_windows) this.#piece(piece + 1).catch(() => {});
    const at = window - piece * this.#count;
    return { header, values: values[at], name: header.windows[at] };
  }

  #piece(piece) {
    let found = this.#pieces.get(piece);
    if (found) this.#pieces.delete(piece); // put back as the one used last
    else {
      const which = piece < 0 ? "" : `&first=${piece * this.#count}&count=${this.#count}`;
      found = getBytes(this.#address + which).then(decodeFrames);
      found.catch(() => this.#pieces.delete(piece));
    }
    this.#pieces.set(piece, found);
    while (this.#pieces.size > this.#most) this.#pieces.delete(this.#pieces.keys().next().value);
    return found;
  }
}

/** Multiples of the row's mean; NaN in rows without tokens, so that they are drawn as empty and not as cold. */
export function overRowMean(values, rows, columns) {
  const relative = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const start = row * columns;
    let sum = 0;
    for (let at = start; at < start + columns; at++) sum += values[at];
    const scale = columns / sum;
    for (let at = start; at < start + columns; at++) relative[at] = sum > 0 ? values[at] * scale : NaN;
  }
  return relative;
}

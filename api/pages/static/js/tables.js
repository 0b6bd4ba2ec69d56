// Tables that scripts fill: the twins of charts.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);
export const times = (value) => `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)}\u202f×`;
export const percent = (share, digits = 1) => (share == null ? "–" : `${(100 * share).toFixed(digits)}\u202f%`);

export function bytes(value) {
  if (value == null) return "–";
  const power = Math.min(5, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${Number((value / 1000 ** power).toPrecision(3))}\u202f${["B", "kB", "MB", "GB", "TB", "PB"][power]}`;
}

/** A button that hands a table over as a CSV file of that name. */
export function csvOf(made, name) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "CSV of this table";
  button.addEventListener("click", () => {
    const lines = Array.from(made.rows, (row) => Array.from(row.cells, (cell) => csvCell(cell.textContent)).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  return button;
}

/** Numbers without the commas and units that people read; the rest quoted. */
function csvCell(text) {
  const told = text.trim().replace(/\s+/g, " ");
  const number = told.replace(/[,\u202f ]/g, "").replace(/[%×]$/, "");
  return /^-?\d+(\.\d+)?$/.test(number) ? number : `"${told.replaceAll('"', '""')}"`;
}

/**
 * Build a table; numbers are set to the right.
 * @param {string} caption
 * @param {string[]} columns
 * @param {(string|number)[][]} rows the first cell of each is its header
 */
export function table(caption, columns, rows) {
  const made = document.createElement("table");
  const title = made.createCaption();
  title.textContent = caption;
  const head = made.createTHead().insertRow();
  columns.forEach((name, at) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    if (at > 0 && rows.length && isNumber(rows[0][at])) cell.className = "number";
    head.append(cell);
  });
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, at) => {
      const cell = document.createElement(at === 0 ? "th" : "td");
      if (at === 0) cell.scope = "row";
      else if (isNumber(value)) cell.className = "number";
      cell.textContent = typeof value === "number" ? count(value) : value;
      line.append(cell);
    });
  }
  return made;
}

function isNumber(value) {
  return typeof value === "number" || /^(–|[-–]?[\d.,]*\d\u202f?(×|%|[kMGTP]?B)?)$/.test(value);
}

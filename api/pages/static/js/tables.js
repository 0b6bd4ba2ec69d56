// Tables that scripts fill: the twins of charts.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);
export const times = (value) => `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)}\u202f×`;
export const percent = (share, digits = 1) => (share == null ? "–" : `${(100 * share).toFixed(digits)}\u202f%`);

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
  return typeof value === "number" || /^[-–]?[\d.,]*\d\u202f?(×|%)?$/.test(value);
}

"use strict";
(() => {
  /** On pages that are narrower, in pixels, labels of rows get at most this width. */
  const NARROW = 600, NARROW_LABELS = 130;

  /** Draw all charts, one after the other, so that the page can be read meanwhile. */
  async function drawCharts() {
    const charts = JSON.parse(document.getElementById("charts").textContent);
    const tooltip = { disableDefaultStyle: true };
    for (const { id, spec } of charts) {
      if (window.innerWidth < NARROW) spec.config.axisY.labelLimit = NARROW_LABELS;
      const place = document.getElementById(id);
      try {
        // With ast, expressions are interpreted: the page's policy forbids to compile them.
        await window.vegaEmbed(place, spec, { actions: false, ast: true, defaultStyle: false, renderer: "svg", tooltip });
      } catch (error) {
        place.classList.add("failed");
        place.textContent = `This chart cannot be drawn: ${error.message}`;
      }
    }
    document.documentElement.dataset.ready = "true";
  }

  /** Return what a cell is sorted by: its number if it has one, else its text. */
  function keyOf(row, column) {
    const cell = row.cells[column];
    return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
  }

  function compare(one, other) {
    return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  }

  /** Sort the rows of a table by a column: in ascending order, or in descending order if they are sorted by it. */
  function sortRows(table, column) {
    const headings = [...table.tHead.rows[0].cells];
    const isNumeric = headings[column].classList.contains("number");
    const before = headings[column].getAttribute("aria-sort");
    const first = isNumeric && column > 0 ? "descending" : "ascending";
    const order = before === first ? (first === "ascending" ? "descending" : "ascending") : first;
    headings.forEach(heading => heading.removeAttribute("aria-sort"));
    headings[column].setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].map(row => [keyOf(row, column), row]);
    rows.sort(([one], [other]) => sign * compare(one, other));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  /** Show the rows that contain all words. */
  function filterRows(table, text, count) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    let shown = 0;
    for (const row of rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every(word => content.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  }

  function setUpTable(part) {
    const table = part.querySelector("table");
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => sortRows(table, column));
    });
    const count = part.querySelector(".count");
    part.querySelector("input")?.addEventListener("input", event => filterRows(table, event.target.value, count));
  }

  /** Copy a text, also where the browser does not let pages use the clipboard. */
  async function copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      const selection = window.getSelection();
      const range = document.createRange();
      range.selectNodeContents(code);
      selection.removeAllRanges();
      selection.addRange(range);
      return document.execCommand("copy");
    }
  }

  function setUpCopy(button) {
    button.addEventListener("click", async () => {
      const done = await copy(button.parentElement.querySelector("code"));
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  document.querySelectorAll(".table.sortable").forEach(setUpTable);
  document.querySelectorAll("button.copy").forEach(setUpCopy);
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach(details => { details.open = true; });
  });
  drawCharts();
})();

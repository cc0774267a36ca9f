// Reading values: moving over a plot, or the arrow keys on a focused one, shows the values of that step in its legend.
"use strict";
(() => {
  const { figures } = JSON.parse(document.getElementById("report-data").textContent);

  const short = (value) => {
    if (Math.abs(value) >= 1e7) return `${Math.round(value / 1e6)}M`;
    if (Math.abs(value) >= 1e4) return `${Math.round(value / 1e3)}k`;
    return Math.abs(value) < 100 ? String(Number(value.toPrecision(3))) : value.toFixed(0);
  };

  for (const holder of document.querySelectorAll(".panel")) {
    const svg = holder.querySelector("svg[data-first]");
    if (!svg) continue;
    const panel = figures[holder.dataset.figure].panels[Number(holder.dataset.panel)];
    if (!panel.steps.length) continue;
    const [first, last, left, right] = ["first", "last", "left", "right"].map((key) => Number(svg.dataset[key]));
    const cursor = svg.querySelector(".cursor");
    const outputs = [...holder.querySelectorAll("output")];
    const resting = outputs.map((output) => output.textContent);
    let index = panel.steps.length - 1;

    const show = (next) => {
      index = Math.max(0, Math.min(panel.steps.length - 1, next));
      const share = last > first ? (panel.steps[index] - first) / (last - first) : 0.5;
      const x = left + share * (right - left);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      svg.setAttribute("aria-description", `step ${panel.steps[index]}`);
      panel.series.forEach((series, position) => {
        const value = series.values[index];
        outputs[position].textContent = value === null ? "–" : short(value);
      });
    };
    const rest = () => {
      cursor.style.visibility = "hidden";
      outputs.forEach((output, position) => { output.textContent = resting[position]; });
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const step = first + ((x - left) / (right - left)) * (last - first);
      let nearest = 0;
      panel.steps.forEach((candidate, position) => {
        if (Math.abs(candidate - step) < Math.abs(panel.steps[nearest] - step)) nearest = position;
      });
      show(nearest);
    });
    svg.addEventListener("pointerleave", rest);
    svg.addEventListener("blur", rest);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      show(index + move);
    });
  }
})();

// Draws every figure of the page in the colours of the reader's theme: again when the theme changes, and for paper.
"use strict";
(() => {
  const text = document.getElementById("figures").textContent;
  const brighter = { "#0072B2": "#3f9bdc", "#D55E00": "#f07f2e", "#009E73": "#21bf92", "#CC79A7": "#dd92bb" };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // The width of a sheet of A4 or Letter within its margins, in CSS pixels: that of the screen would be cut off.
  const PAPER = 670, TALL = { "rank-seconds": 280, "throughput": 250 };
  let onPaper = false;

  const layout = (figure, place) => {
    const soft = colour("--soft"), line = colour("--line"), ink = colour("--ink");
    const own = figure.layout;
    // Plots over time have one left and one right edge, so that a time is at one place on all of them.
    const overTime = own.meta === "over time";
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, automargin: !overTime };
    const titled = (given) => ({
      ...axis, ...given, title: { standoff: overTime ? 4 : 10, ...(given || {}).title } });
    return {
      ...own,
      xaxis: { ...titled(own.xaxis), automargin: true },
      yaxis: titled(own.yaxis),
      annotations: (own.annotations || []).map((each) => ({
        ...each, font: { color: soft, size: 12 }, bgcolor: colour("--paper"), opacity: 0.85, borderpad: 0 })),
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: soft },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: line, font: { color: ink } },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", ...own.legend, font: { color: soft } },
      margin: overTime ? { l: 84, r: 16, t: 44, b: 48 } : { l: 60, r: 16, t: 44, b: 48 },
      ...(onPaper ? { width: PAPER, height: TALL[place.id] || 210, autosize: false } : { autosize: true }),
    };
  };

  const figures = () => JSON.parse(
    dark.matches && !onPaper ? text.replace(/#[0-9A-F]{6}/g, (found) => brighter[found] || found) : text);

  // ---- one time axis: a zoom into one plot is a zoom into all, and into the timeline of faults above them

  const overTime = () => [...document.querySelectorAll(".over-time .plot[data-drawn]")];
  const timeline = document.querySelector(".timeline");
  const whole = timeline && ["--first", "--last"].map((name) => timeline.style.getPropertyValue(name));
  let following = false;

  const follow = async (place, change) => {
    const range = place.layout.xaxis.range;
    if (following || !Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
    following = true;
    const [first, last] = change["xaxis.autorange"] ? JSON.parse(text)[place.id].layout.xaxis.range : range;
    if (timeline) ["--first", "--last"].forEach((name, index) => timeline.style.setProperty(name, [first, last][index]));
    await Promise.all(overTime().map((each) => Plotly.relayout(each, { "xaxis.range": [first, last] })));
    following = false;
  };

  const draw = () => Promise.all(Object.entries(figures()).map(async ([id, figure]) => {
    const place = document.getElementById(id);
    const drawn = Plotly.react(place, figure.data, layout(figure, place), {
      responsive: true, displaylogo: false, displayModeBar: false });
    if (!place.dataset.drawn && figure.layout.meta === "over time")
      place.on("plotly_relayout", (change) => follow(place, change));
    place.dataset.drawn = "yes";
    await drawn;
  }));

  // ---- paper: light colours, the width of a sheet

  const toPaper = () => {
    if (onPaper) return;
    onPaper = true;
    document.documentElement.classList.add("paper");
    if (timeline) ["--first", "--last"].forEach((name, index) => timeline.style.setProperty(name, whole[index]));
    draw();
  };
  const toScreen = () => {
    if (!onPaper) return;
    onPaper = false;
    document.documentElement.classList.remove("paper");
    draw();
  };
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", toScreen);

  dark.addEventListener("change", draw);
  draw();
})();

// Draws every figure of the page in the colours of the reader's theme, and again when the theme changes.
"use strict";
(() => {
  const text = document.getElementById("figures").textContent;
  const brighter = { "#0072B2": "#3f9bdc", "#D55E00": "#f07f2e", "#009E73": "#21bf92", "#CC79A7": "#dd92bb" };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const layout = (figure) => {
    const soft = colour("--soft"), line = colour("--line"), ink = colour("--ink");
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, automargin: true };
    const own = figure.layout;
    const titled = (given) => ({ ...axis, ...given, title: { standoff: 10, ...(given || {}).title } });
    return {
      ...own,
      xaxis: titled(own.xaxis),
      yaxis: titled(own.yaxis),
      annotations: (own.annotations || []).map((each) => ({ ...each, font: { color: soft, size: 12 } })),
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: soft },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: line, font: { color: ink } },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", ...own.legend, font: { color: soft } },
      margin: { l: 60, r: 16, t: 44, b: 48 },
    };
  };

  const figures = () =>
    JSON.parse(dark.matches ? text.replace(/#[0-9A-F]{6}/g, (found) => brighter[found] || found) : text);

  const draw = () => Promise.all(Object.entries(figures()).map(async ([id, figure]) => {
    const place = document.getElementById(id);
    await Plotly.react(place, figure.data, layout(figure), { responsive: true, displaylogo: false, displayModeBar: false });
    place.dataset.drawn = "yes";
  }));

  dark.addEventListener("change", draw);
  draw();
})();

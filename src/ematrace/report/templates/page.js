"use strict";

// Text and lines follow the page's theme, margins and the legend its width; the marks have one colour in all of them.
function themed(layout, width) {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  const narrow = width < 560;
  const axis = (own) => ({
    gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--muted"),
    fixedrange: true, automargin: true, ...own,
    title: { standoff: 8, font: { size: 13, color: colour("--muted") }, ...own?.title },
  });
  return {
    ...layout,
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: narrow ? 12 : 13, color: colour("--text") },
    margin: { l: 8, r: 14, t: 8, b: 44, ...layout.margin },
    legend: {
      orientation: "h", x: narrow ? 0.5 : 0, xanchor: narrow ? "center" : "left", xref: narrow ? "container" : "paper",
      y: 0, yref: "container", yanchor: "bottom", font: { size: 12 }, itemwidth: 30,
    },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") }, align: "left" },
    hovermode: "closest",
    dragmode: false,
    height: layout.height + (narrow && layout.showlegend ? 40 : 0),
  };
}

const specs = JSON.parse(document.getElementById("plot-specs").textContent);

function draw(id) {
  const place = document.getElementById(id);
  const { data, layout } = specs[id];
  // A plot inside a closed <details> has no width yet; it is drawn when opened.
  if (!place || !place.clientWidth) return;
  const shown = themed(layout, place.clientWidth);
  // Plotly takes the height of the box whenever the width changes, so the box must have the plot's.
  place.style.height = `${shown.height}px`;
  Plotly.react(place, data, shown, { responsive: true, displayModeBar: false });
}

function drawAll() {
  Object.keys(specs).forEach(draw);
}

for (const [id, spec] of Object.entries(specs)) {
  if (!spec.choices || spec.choices.length < 2) continue;
  const label = document.createElement("label");
  label.className = "choice";
  label.textContent = "Against ";
  const select = document.createElement("select");
  for (const choice of spec.choices) {
    const option = document.createElement("option");
    option.textContent = choice.label;
    select.append(option);
  }
  select.addEventListener("change", () => {
    const { title, x } = spec.choices[select.selectedIndex];
    for (const trace of spec.data) trace.x = x;
    spec.layout.xaxis = { ...spec.layout.xaxis, title: { text: title } };  // escaped: Plotly reads tags
    draw(id);
  });
  label.append(select);
  document.getElementById(id).before(label);
}

// A link to a claim opens whatever it is folded into.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let box = target?.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  target?.scrollIntoView();
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== lastWidth) drawAll();
  lastWidth = innerWidth;
});
addEventListener("hashchange", reveal);
if (location.hash) reveal();

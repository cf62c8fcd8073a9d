// Small line charts as SVG.

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 90;

function svg(tag, attributes) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// series: arrays of numbers (null where there is none), drawn on one scale from zero.
export function chart(series, label) {
  const top = Math.max(1e-9, ...series.flat().filter((value) => value !== null));
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  series.forEach((values, which) => {
    const step = WIDTH / Math.max(1, values.length - 1);
    const points = values.map((value, at) => (value === null ? null : [at * step, HEIGHT - 2 - (value / top) * (HEIGHT - 8)]));
    const line = points.map((point, at) => (point ? `${at && points[at - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "")).join("");
    const kept = points.filter(Boolean);
    if (!kept.length) return;
    if (which === 0) root.append(svg("path", { class: `area s${which + 1}`, d: `M${kept[0][0]} ${HEIGHT}${kept.map((point) => `L${point[0].toFixed(1)} ${point[1].toFixed(1)}`).join("")}L${kept.at(-1)[0]} ${HEIGHT}Z` }));
    root.append(svg("path", { class: `line s${which + 1}`, d: line }));
  });
  return root;
}

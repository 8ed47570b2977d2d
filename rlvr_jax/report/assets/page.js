"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const hidden = new Set();

  const themed = (figure) => {
    const [ink, soft, line, card] = ["--ink", "--soft", "--line", "--card"].map((name) =>
      getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
    );
    const given = figure.layout;
    const axis = (own) => ({
      gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, fixedrange: narrow.matches,
      tickfont: { size: 11, color: soft }, ...own,
      title: { standoff: 6, font: { size: 11, color: soft }, ...(own && own.title) },
    });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      margin: { l: 44, r: 10, t: 10, b: 36 }, height: 260, showlegend: false, hovermode: "x unified",
      hoverlabel: { bgcolor: card, bordercolor: line, font: { color: ink, size: 12 }, namelength: 40 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11, color: soft }, traceorder: "normal" },
      ...given,
      xaxis: axis({ title: { text: "step" }, ...given.xaxis }),
      yaxis: axis(given.yaxis),
    };
  };

  const traces = (figure) => {
    const soft = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    return figure.data.map((trace) => ({
      ...trace,
      visible: !hidden.has(trace.meta),
      ...(trace.colorbar && {
        colorbar: {
          ...trace.colorbar, thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: soft },
          title: { ...trace.colorbar.title, font: { size: 11, color: soft } },
        },
      }),
    }));
  };

  const draw = () => {
    for (const figure of figures) {
      const place = document.getElementById(figure.name);
      Plotly.react(place, traces(figure), themed(figure), { displayModeBar: false, responsive: true, displaylogo: false });
    }
  };

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const band = button.dataset.band;
      hidden.has(band) ? hidden.delete(band) : hidden.add(band);
      button.setAttribute("aria-pressed", String(!hidden.has(band)));
      draw();
    });
  }
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw();
})();

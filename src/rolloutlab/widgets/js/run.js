// One or several runs over common steps: see run/view.js. Its Python part is runs/view.py.

import "../kit/theme.css";
import "./kit/controls.css";
import "uplot/dist/uPlot.min.css";
import "./run.css";
import { frame, refusal } from "./kit/dom.js";
import { connect } from "./kit/kernel.js";
import { RunView } from "./run/view.js";

function render({ model, el }) {
  const state = model.get("state");
  if (state.refused) return el.append(refusal(state.refused));
  const kernel = connect(model, el, `%runs ${state.names.join(" ")}`);
  const view = new RunView(kernel, state);
  el.append(frame("rl-panel", view.element));
  view.open();
  return () => {
    view.close();
    kernel.close();
  };
}

export default { render };

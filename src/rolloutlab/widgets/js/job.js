// A training job by itself: see job/view.js.

import { connect } from "./kit/kernel.js";
import { frame, refusal } from "./kit/dom.js";
import { jobView } from "./job/view.js";

function render({ model, el }) {
  const state = model.get("state");
  if (state.refused) return el.append(refusal(state.refused));
  const kernel = connect(model, el, `%job ${state.head.id}`);
  const view = jobView(kernel, state);
  el.append(frame("rl-panel rl-alone", view.element));
  return () => {
    view.close();
    kernel.close();
  };
}

export default { render };

// A training job by itself: see job/view.js.

import { connect } from "./kit/kernel.js";
import { frame } from "./kit/dom.js";
import { jobView } from "./job/view.js";

function render({ model, el }) {
  const kernel = connect(model);
  const view = jobView(kernel, model.get("state"));
  el.append(frame("rl-alone", view.element));
  return () => {
    view.close();
    kernel.close();
  };
}

export default { render };

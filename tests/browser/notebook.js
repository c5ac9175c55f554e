// What NotebookPage asks of the page's application: window.jupyterapp of JupyterLab and of Notebook 7.
window.harness = {
  ended: new Set(),

  panel() {
    const widgets = window.jupyterapp?.shell?.widgets("main") ?? [];
    return [...widgets].find((widget) => widget.sessionContext && widget.content?.model);
  },

  // Open a notebook in a page that has its application already.
  open(path) {
    this.ended.clear();
    return window.jupyterapp.commands.execute("docmanager:open", { path, factory: "Notebook" });
  },

  // Close what is open, saved or not.
  close() {
    for (const widget of [...window.jupyterapp.shell.widgets("main")]) widget.dispose();
  },

  width() {
    return this.panel().content.node.getBoundingClientRect().width;
  },

  // Whether the page has been restored and its kernel waits for a cell.
  idle() {
    const panel = this.panel();
    const context = panel?.sessionContext;
    return Boolean(panel?.context.isReady && context.isReady && context.session?.kernel?.status === "idle");
  },

  // What is open, and the state of its kernel.
  describe() {
    const widgets = [...(window.jupyterapp?.shell?.widgets("main") ?? [])];
    const context = this.panel()?.sessionContext;
    return {
      open: widgets.map((widget) => [widget.constructor.name, widget.title?.label, widget.context?.isReady]),
      dialogs: [...document.querySelectorAll(".jp-Dialog")].map((dialog) => dialog.innerText),
      session: context && [context.isReady, context.session?.id, context.kernelDisplayStatus],
      kernel: context?.session?.kernel && [context.session.kernel.status, context.session.kernel.connectionStatus],
    };
  },

  // Put code into the last cell and execute it; returns the cell's number and adds the run to `ended` when it has.
  start(code) {
    const { id, content } = this.panel();
    const { commands, shell } = window.jupyterapp;
    shell.activateById(id);
    content.activeCellIndex = content.widgets.length - 1;
    const number = content.activeCellIndex;
    content.activeCell.model.sharedModel.setSource(code);
    this.ended.delete(number);
    commands.execute("notebook:run-cell-and-insert-below").finally(() => this.ended.add(number));
    return number;
  },

  // Whether the cell has ended and the kernel has too: its last outputs are in the notebook.
  hasEnded(number) {
    return this.ended.has(number) && this.idle();
  },

  // What is to be seen of an element, output by output.
  text(element) {
    const outputs = [...element.querySelectorAll(".jp-OutputArea-output")];
    return (outputs.length ? outputs : [element]).map((each) => each.innerText).join("\n");
  },

  // The texts in an element whose contrast to what they stand on is below 4.5, each with its contrast.
  faint(element) {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const linear = (byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
    const paint = (colour) => {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map(linear);
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    };
    const contrast = (each) => {
      const path = [];
      for (let at = each; at; at = at.parentElement) path.unshift(getComputedStyle(at).backgroundColor);
      const behind = ["white", ...path].map(paint).at(-1);
      const text = paint(getComputedStyle(each).color);
      return Math.max(text, behind) / Math.min(text, behind);
    };
    const says = (each) => each.checkVisibility() && [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const found = [...element.querySelectorAll("*")].filter(says).map((each) => [contrast(each), each.textContent]);
    return found.filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => `${ratio.toFixed(2)}: ${text}`);
  },

  // The error that the cell ended with, or null.
  error(number) {
    const { outputs } = this.panel().content.widgets[number].model;
    const failed = outputs.toJSON().find((output) => output.output_type === "error");
    return failed ? `${failed.ename}: ${failed.evalue}` : null;
  },
};

// Views of rolloutlab in JupyterLab and Notebook 7: live while their kernel has them, otherwise as they were last.
//
// A federated container written by hand: JupyterLab calls init() with the modules that it shares, then get() for the
// plugin. The kernel's part is rolloutlab/widgets/pages.py. Requests go over the control channel, which a kernel serves
// in a thread of its own: a page that is loaded while a cell runs waits neither for that cell nor for the widget manager.
// The server has browsers cache this file for a year, so that its name has the version.
(() => {
  const VIEW = "application/x-rolloutlab.view+json";
  const CELL = "rolloutlab:cell"; // a view asks for a cell: its event has `code`
  const LOOK = 300; // ms for which a view is looked for before its HTML is shown
  const KNOWN = 500; // ms for a kernel to say how it is before it is taken for one that runs a cell
  const PAUSE = 2000; // ms without a change after which the HTML that is saved is renewed: an edit meanwhile would wait for it
  const LATEST = 10000; // ms after the first change at which it is renewed in any case, as a job changes all the time
  const sheet = document.currentScript.src.replace(/\.js$/, ".css");
  const imported = new Map();

  const isOf = (output, id) => output.metadata[VIEW]?.model_id === id;
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const places = (outputs) => [...Array(outputs?.length ?? 0).keys()];

  /** The kernel's `{result}` or `{error}`; nothing where it has no views. It is asked for comms, which servers do not take for a user's activity. */
  async function request(kernel, body) {
    const header = {
      msg_id: crypto.randomUUID?.() ?? String(Math.random()), // undefined in an insecure context
      msg_type: "comm_info_request",
      session: kernel.clientId,
      username: "",
      date: new Date().toISOString(),
      version: "5.3",
    };
    const content = { target_name: "rolloutlab", rolloutlab: body };
    const message = { channel: "control", header, parent_header: {}, metadata: {}, content, buffers: [] };
    const future = kernel.sendControlMessage(message, true, true);
    return new Promise((resolve, reject) => {
      future.onReply = ({ content: { rolloutlab } }) => resolve(rolloutlab);
      future.done.catch(reject); // not awaited: a connection that is new may miss that the kernel is idle after it
    });
  }

  /** Resolves once a connection's status fits, which `changed` signals. */
  function until(changed, fits) {
    return new Promise((resolve) => {
      const look = () => {
        if (!fits()) return;
        changed.disconnect(look);
        resolve();
      };
      changed.connect(look);
      look();
    });
  }

  /** The part of a widget's model that the modules of the views use. */
  class Model {
    constructor(page, kernel, id) {
      Object.assign(this, { page, kernel, id, state: {}, handlers: [], widget_manager: { kernel }, onActivity: () => {} });
      kernel.iopubMessage.connect(this.receive, this);
    }

    get(name) {
      return this.state[name];
    }

    on(event, handler) {
      this.handlers.push({ event, handler });
    }

    off(event, handler) {
      this.handlers = this.handlers.filter((each) => each.event !== event || each.handler !== handler);
    }

    emit(event, value) {
      this.handlers.filter((each) => each.event === event).forEach(({ handler }) => handler(value));
      this.onActivity();
    }

    send(asked) {
      this.page.ask({ ...asked, model_id: this.id }).then((answer) => answer && this.emit("msg:custom", answer));
    }

    receive(_kernel, { header, content }) {
      if (header.msg_type !== "comm_msg" || content.comm_id !== this.id) return;
      const { method, state, content: event } = content.data;
      if (method === "custom") this.emit("msg:custom", event);
      if (method !== "update") return;
      Object.assign(this.state, state);
      Object.keys(state).forEach((name) => this.emit(`change:${name}`));
    }

    close() {
      this.kernel.iopubMessage.disconnect(this.receive, this);
      this.handlers = [];
      this.onActivity = () => {};
    }
  }

  /** The module of a view, and its style sheet in the page; they come once, as long as `bundle` names the same ones. */
  function load({ bundle, script, style }) {
    if (!imported.has(bundle)) {
      document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
      imported.set(bundle, import(URL.createObjectURL(new Blob([script], { type: "text/javascript" }))));
    }
    return imported.get(bundle);
  }

  /** A notebook: its views, and what its kernel knows of them. */
  class Page {
    constructor(panel, context) {
      Object.assign(this, { panel, views: new Set() });
      const { sessionContext } = context;
      const connected = () => {
        this.views.forEach((view) => view.wake());
        this.adopt();
      };
      sessionContext.kernelChanged.connect(connected);
      sessionContext.connectionStatusChanged.connect((_context, status) => status === "connected" && connected());
      sessionContext.iopubMessage.connect((_context, { header, content, parent_header }) => {
        const isOther = parent_header.session !== this.kernel?.clientId; // as of this page before it was loaded again
        if (isOther && content.data?.[VIEW] && header.msg_type !== "update_display_data") this.adopt();
      });
      context.ready.then(connected);
      panel.disposed.connect(() => this.own?.dispose());
      panel.addClass("rl-inserts");
      panel.node.addEventListener("click", ({ target }) => this.suggest(target.closest("code.rl-cell")));
      panel.node.addEventListener(CELL, (event) => {
        event.preventDefault();
        this.insert(event.target, event.detail.code);
      });
    }

    get kernel() {
      return this.panel.sessionContext.session?.kernel;
    }

    /** The connection for requests: another one while the kernel runs a cell since before the page was loaded, as the page's own sends nothing then for some seconds. */
    async line() {
      const { kernel } = this;
      if (!kernel) return undefined;
      await until(kernel.connectionStatusChanged, () => kernel.connectionStatus === "connected");
      const isKnown = () => kernel.status !== "unknown";
      if (!isKnown()) await Promise.race([until(kernel.statusChanged, isKnown), sleep(KNOWN)]);
      if (isKnown()) return kernel;
      if (this.own?.id !== kernel.id) {
        this.own?.dispose();
        this.own = kernel.clone();
      }
      const { own } = this;
      await until(own.connectionStatusChanged, () => own.connectionStatus === "connected");
      return own;
    }

    get cells() {
      return this.panel.isDisposed ? [] : this.panel.content.widgets;
    }

    async ask(body) {
      try {
        const line = await this.line();
        return line && (await request(line, body));
      } catch {
        return undefined; // the kernel has ended: another one is asked once it is there
      }
    }

    /** Show views of the cell that runs which were shown before the page was loaded, or to a page that is gone. */
    async adopt() {
      if (!this.panel.model?.defaultKernelLanguage.includes("python")) return;
      const answer = await this.ask({ call: "shown" });
      for (const { cell, ...output } of answer?.result ?? []) {
        const outputs = this.cells.find(({ model }) => model.id === cell)?.model.outputs;
        const isThere = places(outputs).some((i) => isOf(outputs.get(i), output.metadata[VIEW].model_id));
        if (outputs && !isThere) outputs.add({ output_type: "display_data", ...output });
      }
    }

    /** Insert what a view without a kernel suggests to run; a live one has buttons, which send an event of ours. */
    suggest(code) {
      const isChosen = !window.getSelection().isCollapsed; // somebody copies a part of it
      if (code?.closest(".rl") && !isChosen) this.insert(code, code.textContent);
    }

    /** Put code into a new cell below the one that shows the element, and go there; it is not run. */
    insert(element, code) {
      const { content } = this.panel;
      const after = this.cells.findIndex(({ node }) => node.contains(element));
      content.model.sharedModel.insertCell(after + 1, { cell_type: "code", source: code, metadata: { trusted: true } });
      content.deselectAll();
      content.activeCellIndex = after + 1;
      content.activate();
      content.scrollToItem?.(after + 1);
    }

    /** Put data into an output of this notebook, so that it is saved. */
    replace(output, data) {
      for (const { model } of this.cells) {
        const i = places(model.outputs).find((each) => model.outputs.get(each) === output);
        if (i === undefined) continue;
        const json = output.toJSON();
        model.outputs.set(i, { ...json, data: { ...json.data, ...data } });
      }
    }
  }

  const plugin = ({ Panel, Widget }) => {
    /** The renderer of one output. */
    class View extends Panel {
      constructor(page, options) {
        super();
        this.page = page;
        this.html = page.panel.content.rendermime.getFactory("text/html").createRenderer({ ...options, mimeType: "text/html" });
        this.addWidget(this.html);
        page.views.add(this);
      }

      /** Called again when the HTML has changed. */
      async renderModel(output) {
        const isShown = this.live && isOf(output, this.id);
        this.output = output;
        if (isShown) return;
        this.close();
        this.id = output.metadata[VIEW]?.model_id;
        await Promise.race([this.wake(), sleep(LOOK)]);
        if (!this.live) await this.html.renderModel(output);
      }

      /** Show it live, if the kernel has it. */
      async wake() {
        const { kernel } = this.page;
        if (!kernel || !this.id || this.live || this.model) return;
        const model = (this.model = new Model(this.page, kernel, this.id));
        const answer = await this.page.ask({ model_id: this.id, call: "open", args: { known: [...imported.keys()] } });
        if (this.model !== model) return;
        if (!answer?.result) return this.close();
        try {
          await this.mount(model, answer.result);
        } catch (error) {
          console.error(error);
          this.close(); // its HTML is shown again
        }
      }

      async mount(model, { state, ...code }) {
        model.state = { state };
        const { render } = (await load(code)).default;
        if (this.model !== model) return;
        this.live = new Widget();
        this.html.hide();
        this.addWidget(this.live);
        this.end = await render({ model, el: this.live.node });
        model.onActivity = () => this.updateSoon(model);
      }

      updateSoon(model) {
        this.changed ??= Date.now();
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.updateHtml(model), Math.min(PAUSE, this.changed + LATEST - Date.now()));
      }

      async updateHtml(model) {
        this.changed = undefined;
        const fresh = (await this.page.ask({ model_id: this.id, call: "static" }))?.result;
        const changed = fresh && Object.keys(fresh).some((type) => fresh[type] !== this.output.data[type]);
        if (changed && this.model === model) this.page.replace(this.output, fresh);
      }

      close() {
        clearTimeout(this.timer);
        this.model?.close();
        this.end?.();
        this.live?.dispose();
        Object.assign(this, { timer: undefined, model: undefined, end: undefined, live: undefined });
        if (!this.isDisposed) this.html.show();
      }

      dispose() {
        if (this.isDisposed) return;
        this.page.views.delete(this);
        this.close();
        super.dispose();
      }
    }

    const extend = (panel, context) => {
      const page = new Page(panel, context);
      const createRenderer = (options) => new View(page, options);
      // not safe: of an untrusted notebook its HTML is shown, which is sanitized; -11 is before the widget manager
      panel.content.rendermime.addFactory({ safe: false, mimeTypes: [VIEW], createRenderer }, -11);
    };
    return {
      id: "rolloutlab:views",
      autoStart: true,
      activate(app) {
        document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: sheet }));
        app.docRegistry.addWidgetExtension("Notebook", { createNew: (panel, context) => void extend(panel, context) });
      },
    };
  };

  let shared;
  (window._JUPYTERLAB ??= {}).rolloutlab = {
    init: (modules) => (shared = modules),
    get: async () => {
      const versions = Object.values(shared["@lumino/widgets"]);
      const lumino = (await (versions.find(({ loaded }) => loaded) ?? versions[0]).get())();
      return () => ({ __esModule: true, default: plugin(lumino) });
    },
  };
})();

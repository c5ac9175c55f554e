"""A marimo notebook with a view of each kind."""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    import rolloutlab
    from rolloutlab.api.wire.training import Event
    from rolloutlab.training.job import Job
    from tests.labs import lab_with

    lab = rolloutlab.lab()
    lab_with(lab.store, ["Paris", "Lyon"], ["Oslo", "Bergen"], rewards=[1, 0, 1, 0])
    steps = [
        {"step": i, "num_gradient_steps": 3, "kl": 0.01 * i, "entropy": 0.5, "old_new_correlation": 1 - 0.01 * i}
        for i in (1, 2, 3)
    ]
    events = [Event(id=str(i), type="gradient_step", data=data) for i, data in enumerate(steps)]
    job = Job(None, None, "0" * 8, "lab/practice", [], known=[*events, Event(id="9", type="training_ended", data={})])
    return job, lab, mo


@app.cell
def _(lab, mo):
    mo.ui.anywidget(lab.collection("capitals").widget)
    return


@app.cell
def _(lab, mo):
    mo.ui.anywidget(lab.rewards("capitals").widget)
    return


@app.cell
def _(job, mo):
    mo.ui.anywidget(job.widget)
    return


if __name__ == "__main__":
    app.run()

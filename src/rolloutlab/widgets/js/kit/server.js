// The Jupyter server that a page comes from: where it has our extension, it reaches a kernel that is busy with a cell.

import { Told } from "./kernel.js";

/** The path under which the server is, ending in a slash; null for a page that no Jupyter server has made. */
function baseUrl() {
  const config = document.getElementById("jupyter-config-data");
  try {
    return config ? JSON.parse(config.textContent).baseUrl || null : document.body.dataset.baseUrl || null;
  } catch {
    return null;
  }
}

/** What the kernel with this ticket answers; fails with Told where it says an error, and with another where it is not reached. */
export async function tell(ticket, call, args = {}) {
  const base = baseUrl();
  if (!base) throw new Error("no Jupyter server");
  const address = new URL(`${base.replace(/\/?$/, "/")}rolloutlab/here`, location.href);
  if (address.origin !== location.origin) throw new Error("another server's page");
  const xsrf = document.cookie.match(/(?:^|;\s*)_xsrf=([^;]*)/)?.[1];
  const response = await fetch(address, {
    method: "POST",
    credentials: "same-origin",
    referrerPolicy: "same-origin",
    headers: { "Content-Type": "application/json", ...(xsrf && { "X-XSRFToken": xsrf }) },
    body: JSON.stringify({ ticket, origin: location.origin, call, args }),
  });
  if (!response.ok) throw new Error(`answered ${response.status}`);
  const told = await response.json();
  if (told.error) throw new Told(told.error);
  return told.result;
}

// The Jupyter server that a page comes from: where it has our extension, it reaches a kernel that is busy with a cell.

import { KernelError } from "./kernel.js";

/** The base path of the server, ending in a slash; null for a page without a Jupyter server. */
function baseUrl() {
  const config = document.getElementById("jupyter-config-data");
  try {
    return config ? JSON.parse(config.textContent).baseUrl || null : document.body.dataset.baseUrl || null;
  } catch {
    return null;
  }
}

/** The result from the kernel with this ticket; rejects with KernelError for an error of the kernel, with another where it cannot be reached. */
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
  const body = await response.json();
  if (body.error) throw new KernelError(body.error);
  return body.result;
}

"""Where a browser comes back to after a sign-in: what the Jupyter server and a kernel share. Standard library only."""

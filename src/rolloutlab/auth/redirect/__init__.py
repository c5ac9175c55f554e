"""Delivery of the authorization response from the browser to the kernel."""

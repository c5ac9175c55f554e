"""What travels between the notebook and a service: inert pydantic models of the specification.

Nothing here knows a clock, generates an id or does I/O. The objects and their field names are those of the
training and chat specification; unknown properties are kept wherever the specification lets clients add some.
"""
